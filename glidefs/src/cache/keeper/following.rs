//! A successor that takes the log over soon: the log is made quick to read, and the checkpoint stays.
//!
//! ```text
//!  asked ─▶ shards go to new segments ─▶ a checkpoint is written, or given up ─▶ held: the checkpoint stays
//! ```
//!
//! Owns the order of these steps. Does not own the reading (`recovery/ahead`), which counts only with the same checkpoint. Invariants:
//! requests are served, and segments sealed, cleaned and used again, as ever; a step that takes long, or fails, costs the successor
//! time and nothing else.

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
    /// Whether the checkpoint is to stay.
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
                let is_over = || {
                    self.closed.is_empty()
                        && !shared.has_closed()
                        && !shared.ports.iter().any(|port| port.is_rolling())
                };
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
