//! Guesses from the last writes of an export whether a FLUSH follows the next one.
//!
//! Owns the guess only: a wrong one costs time and nothing else. Approximate where several workers note at once.

use std::sync::atomic::{AtomicU8, Ordering};

/// So many FLUSHes in a row, each behind exactly one write, and one more is expected behind the next write.
const HABIT: u8 = 4;

/// The habit of one export: whether each of its writes is flushed before the next one comes, as those of a database's log are.
#[derive(Debug, Default)]
pub struct FlushHabit {
    /// WRITEs since the last FLUSH; 2 stands for more.
    writes: AtomicU8,
    /// FLUSHes in a row that came behind one WRITE each, up to `HABIT`.
    flushes: AtomicU8,
}

impl FlushHabit {
    /// Notes a WRITE that is not FUA. Returns whether a FLUSH is expected behind this write.
    pub fn wrote(&self) -> bool {
        let writes = self.writes.load(Ordering::Relaxed);
        if writes > 0 {
            self.writes.store(2, Ordering::Relaxed);
            self.flushes.store(0, Ordering::Relaxed);
            return false;
        }
        self.writes.store(1, Ordering::Relaxed);
        self.flushes.load(Ordering::Relaxed) >= HABIT
    }

    /// Notes a FLUSH, behind however many WRITEs.
    pub fn flushed(&self) {
        let writes = self.writes.load(Ordering::Relaxed);
        self.writes.store(0, Ordering::Relaxed);
        let flushes = self.flushes.load(Ordering::Relaxed);
        match writes {
            0 => {}
            1 => self.flushes.store(HABIT.min(flushes.saturating_add(1)), Ordering::Relaxed),
            _ => self.flushes.store(0, Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The habit after so many `pairs` of a write and a FLUSH.
    fn after(pairs: u8) -> FlushHabit {
        let habit = FlushHabit::default();
        for _ in 0..pairs {
            habit.wrote();
            habit.flushed();
        }
        habit
    }

    #[test]
    fn a_flush_is_expected_behind_a_write_when_the_last_ones_had_one_each() {
        assert!(!after(0).wrote());
        assert!(!after(HABIT - 1).wrote());
        assert!(after(HABIT).wrote());
        assert!(after(255).wrote());
    }

    #[test]
    fn two_writes_without_a_flush_between_end_the_habit() {
        let habit = after(HABIT);
        assert!(habit.wrote() && !habit.wrote());
        habit.flushed();
        assert!(!habit.wrote());
        habit.flushed();
        assert!(!habit.wrote(), "one pair is no habit");
    }

    #[test]
    fn a_flush_without_a_write_says_nothing() {
        let habit = after(HABIT);
        habit.flushed();
        assert!(habit.wrote());
    }
}
