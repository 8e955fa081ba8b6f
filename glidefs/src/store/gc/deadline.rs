//! The time of a run, and when a grace period is over.
//!
//! Owns the comparison of times. Does not own where times come from.

/// The time of a run by the clock of the store, and the grace period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline {
    pub now_millis: u64,
    pub grace_millis: u64,
}

impl Deadline {
    /// Whether the grace period of an event at `millis` is over.
    pub fn is_over(self, millis: u64) -> bool {
        millis.checked_add(self.grace_millis).is_some_and(|end| end <= self.now_millis)
    }
}
