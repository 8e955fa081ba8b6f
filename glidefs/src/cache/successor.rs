//! Where the daemon asks the keeper to prepare for a successor, and waits for the keeper.
//!
//! Owns the question and the wait. Does not own what the keeper does (`keeper/following`).

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::locks::MutexExt;

/// What is asked of the keeper for a successor, and how far the keeper is.
#[derive(Debug, Default)]
pub(super) struct Successor {
    state: Mutex<Wish>,
    held: Condvar,
}

/// What is asked of the keeper, and done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wish {
    #[default]
    None,
    Asked,
    Held,
}

impl Successor {
    /// Asks the keeper to prepare for a successor.
    pub fn ask(&self) {
        *self.state.lock_whole() = Wish::Asked;
    }

    /// Tells the keeper that no successor comes.
    pub fn withdraw(&self) {
        *self.state.lock_whole() = Wish::None;
        self.held.notify_all();
    }

    /// Waits until the keeper is ready, at most `patience`. Returns whether the keeper is.
    pub fn wait(&self, patience: Duration) -> bool {
        let end = Instant::now().checked_add(patience);
        let mut state = self.state.lock_whole();
        while *state == Wish::Asked {
            let left = end.map_or(patience, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                break;
            }
            state = self.held.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *state == Wish::Held
    }

    /// What is asked, and done, at this moment.
    pub fn wish(&self) -> Wish {
        *self.state.lock_whole()
    }

    /// Notes that the keeper is ready.
    pub fn hold(&self) {
        let mut state = self.state.lock_whole();
        if *state == Wish::Asked {
            *state = Wish::Held;
        }
        drop(state);
        self.held.notify_all();
    }
}
