//! READs which wait for data from the store.
//!
//! Owns the READs whose wait has ended. A waiting READ is a task of the executor; the GET itself runs on the control threads
//! (`Volume::fetch`). READs end in the order in which the answers come. Invariant: a READ in here has no slot.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use super::stop;
use crate::cache::{Fill, IoError, Volume};
use crate::worker::executor::Executor;
use crate::worker::requests::TagRequest;

/// A READ whose wait has ended, with the data; without data when the READ needs none from the store any more.
pub type Arrived = (TagRequest, Result<Option<Fill>, IoError>);

/// Each READ that waits for the store.
#[derive(Default)]
pub struct StoreReads {
    arrived: Rc<RefCell<VecDeque<Arrived>>>,
}

impl StoreReads {
    /// Fetches from the store the data of `request` that is not here.
    pub fn fetch(&self, executor: &Executor, request: TagRequest, volume: &Arc<Volume>) {
        let Some(answer) = volume.fetch(request.range) else {
            // A write has brought the data meanwhile: the READ is served by the next turn.
            return self.arrived.borrow_mut().push_back((request, Ok(None)));
        };
        let (volume, arrived) = (Arc::clone(volume), Rc::clone(&self.arrived));
        executor.spawn(async move {
            let answer = tokio::select! {
                biased;
                answer = answer => match answer {
                    Ok(answer) => answer.map(Some),
                    // The daemon stops. The READ stays the kernel's, which gives it to the next daemon.
                    Err(_) => return,
                },
                error = stop::stopped(&volume) => Err(error),
            };
            arrived.borrow_mut().push_back((request, answer));
        });
    }

    /// The READ whose wait ended first.
    pub fn next(&self) -> Option<Arrived> {
        self.arrived.borrow_mut().pop_front()
    }

    /// Whether [`next`](Self::next) has a READ.
    pub fn has_next(&self) -> bool {
        !self.arrived.borrow().is_empty()
    }
}
