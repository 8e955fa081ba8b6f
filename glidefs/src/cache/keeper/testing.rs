//! Checkpoints at another pace, for tests.
//!
//! Owns nothing. The daemon keeps the usual pace.

use super::{CheckpointPace, Keeper};

impl Keeper {
    /// Has checkpoints made at `pace`.
    pub fn pace_checkpoints(&mut self, pace: CheckpointPace) {
        self.checkpointer.pace = pace;
    }
}
