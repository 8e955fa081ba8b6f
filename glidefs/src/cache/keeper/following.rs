//! A successor that takes the log over soon: the log is made quick to read, and stays as the successor finds the log.
//!
//! ```text
//!  asked ─▶ shards go to new segments ─▶ a checkpoint is written ─▶ held: no checkpoint, and no segment is used again
//! ```
//!
//! Owns the order of these steps. Does not own the reading (`recovery/ahead`), which counts only if nothing has changed: while free
//! segments are scarce, segments are used again all the same, and the start of the successor takes longer. Invariant: requests are served
//! as ever.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Keeper;
use crate::locks::MutexExt;

/// Longest time until shards have gone to new segments: a shard without one waits for the keeper.
const ROLL_TIME: Duration = Duration::from_secs(2);

/// What is asked of the keeper for a successor, and how far the keeper is.
#[derive(Debug, Default)]
pub(in crate::cache) struct Successor {
    state: Mutex<Wish>,
    held: Condvar,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wish {
    #[default]
    None,
    Asked,
    Held,
}

impl Successor {
    /// Asks the keeper to prepare for a successor.
    pub fn ask(&self) {
        let mut state = self.state.lock_whole();
        if *state == Wish::None {
            *state = Wish::Asked;
        }
    }

    /// Tells the keeper that no successor comes.
    pub fn withdraw(&self) {
        *self.state.lock_whole() = Wish::None;
    }

    /// Waits until the keeper holds the log still, at most `patience`. Returns whether the keeper does.
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

    fn wish(&self) -> Wish {
        *self.state.lock_whole()
    }

    fn hold(&self) {
        let mut state = self.state.lock_whole();
        if *state == Wish::Asked {
            *state = Wish::Held;
        }
        drop(state);
        self.held.notify_all();
    }
}

/// How far the keeper is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Following {
    #[default]
    No,
    /// The shards go to new segments, up to this time.
    Rolling(Duration),
    /// A checkpoint of everything sealed is written.
    Writing,
    Held,
}

impl Keeper {
    /// Whether the log is to stay as a successor finds the log.
    pub(super) fn is_held(&self) -> bool {
        self.following == Following::Held
    }

    /// Does the next step for a successor, and returns whether there was any.
    pub(super) fn follow(&mut self) -> bool {
        let shared = &self.shared;
        let now = shared.clock.now();
        let next = match (self.following, shared.successor.wish()) {
            // Asked once more, by another successor.
            (_, Wish::None) | (Following::Held, Wish::Asked) => Following::No,
            (Following::No, _) => {
                for port in &shared.ports {
                    port.ask_to_roll();
                }
                Following::Rolling(now.saturating_add(ROLL_TIME))
            }
            (Following::Rolling(until), _) => {
                let is_over = || self.closed.is_empty() && !shared.ports.iter().any(|port| port.is_rolling());
                if now < until && !is_over() {
                    return false;
                }
                self.checkpointer.ask();
                Following::Writing
            }
            (Following::Writing, _) if self.checkpointer.is_asked() => return false,
            (Following::Writing, _) => {
                shared.successor.hold();
                Following::Held
            }
            (Following::Held, Wish::Held) => return false,
        };
        std::mem::replace(&mut self.following, next) != next
    }
}
