//! A device which this process serves.
//!
//! Owns what is known of the device: the workers and the load of its queues, and whether the device stays where the device is. Does
//! not own the list of devices.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::Shared;

use super::activity::Activity;
use crate::export::Export;
use crate::ublk::queue::Mode;
use crate::worker::QueueGone;

/// A device this process serves.
pub(super) struct Hosted {
    pub export: Arc<Export>,
    /// The end of each queue, for more than one who waits.
    gone: Vec<Shared<QueueGone>>,
    /// The worker of each queue.
    pub workers: Vec<usize>,
    /// The requests of each queue.
    pub activity: Vec<Activity>,
    /// Whether requests wait for something that may take long.
    pub waits: bool,
    pub mode: Mode,
    pub stay: Stay,
}

/// Whether a device stays with its workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stay {
    /// The kernel cannot take the device back from this server, or has refused to.
    Fixed,
    /// The device may be moved.
    Movable,
    /// The kernel takes the device back, or perhaps does: the queues leave, and the device must go on to other workers.
    Leaving,
}

impl Hosted {
    /// A device of so many queues, none of which has a worker yet.
    pub fn new(export: Arc<Export>, queues: u16, mode: Mode, stay: Stay) -> Self {
        let activity =
            (0..queues).map(|queue_id| Activity::begin(export.known_queue_stats(queue_id).as_deref()));
        Self {
            activity: activity.collect(),
            export,
            gone: Vec::new(),
            workers: Vec::new(),
            waits: false,
            mode,
            stay,
        }
    }

    /// Takes note of a queue whose tags are armed.
    pub fn armed(&mut self, gone: QueueGone) {
        self.gone.push(gone.shared());
    }

    /// The ends of the queues whose tags were armed.
    pub fn gone(&self) -> Vec<Shared<QueueGone>> {
        self.gone.clone()
    }
}
