//! A successor that takes the log over soon: the log is made quick to read, and the checkpoint stays.
//!
//! ```text
//!  asked ─▶ shards go to new segments ─▶ a checkpoint is written, or given up ─▶ held: the checkpoint stays
//! ```
//!
//! Owns the order of these steps. Does not own the reading (`recovery/ahead`), which counts only with the same checkpoint. Invariants:
//! requests are served, and segments sealed, cleaned and used again, as ever; a step that takes long, or fails, costs the successor
//! time and nothing else.

use std::time::Duration;

use super::Keeper;
use crate::cache::successor::Wish;

/// Longest time until shards have gone to new segments: a shard without one waits for the keeper.
const ROLL_TIME: Duration = Duration::from_secs(2);

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
