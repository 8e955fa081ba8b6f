//! Log lines that repeat: one line passes every ten seconds, with the number of lines held back.
//!
//! Owns the decision whether a line is written. Does not own the line nor the subject of the line: code that logs the failures
//! of exports keeps one [`Repeat`] per export. Invariants: after a line has passed, no other line passes for ten seconds; the
//! lines held back are counted in a line that passes at the same time, or in a later one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::units::nanos;

/// For so long no other line passes after a line has passed.
pub const PAUSE: Duration = Duration::from_secs(10);

/// Lets one of many equal log lines pass. Shared by the threads that log the same trouble.
/// Each export has several, so the time counts from a moment that all of them share.
#[derive(Debug, Default)]
pub struct Repeat {
    /// When the next line may pass, nanoseconds after [`ZERO`].
    next: AtomicU64,
    suppressed: AtomicU64,
}

/// The zero of all times: the first time somebody asked to log.
static ZERO: OnceLock<Instant> = OnceLock::new();

impl Repeat {
    /// Asks to log now. Returns the number of lines held back since the last line, or `None` if this line is held back as
    /// well.
    pub fn pass(&self) -> Option<u64> {
        self.pass_at(ZERO.get_or_init(Instant::now).elapsed())
    }

    /// As [`Self::pass`], at the time `now` after [`ZERO`].
    pub fn pass_at(&self, now: Duration) -> Option<u64> {
        let now_nanos = nanos(now);
        let next = self.next.load(Relaxed);
        let after = now_nanos.saturating_add(nanos(PAUSE));
        // If several threads come at the same time, the exchange succeeds for one.
        let passes = now_nanos >= next && self.next.compare_exchange(next, after, Relaxed, Relaxed).is_ok();
        if passes {
            return Some(self.suppressed.swap(0, Relaxed));
        }
        self.suppressed.fetch_add(1, Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_passes_in_ten_seconds_and_tells_how_many_did_not() {
        let repeat = Repeat::default();
        let at = |millis| repeat.pass_at(Duration::from_millis(millis));
        assert_eq!(at(5), Some(0), "the first one is never late");
        for millis in 6..1006 {
            assert_eq!(at(millis), None);
        }
        assert_eq!(at(10_004), None);
        assert_eq!(at(10_005), Some(1001));
        assert_eq!(at(10_006), None);
        assert_eq!(at(60_000), Some(1));
        assert_eq!(at(90_000), Some(0));
    }

    #[test]
    fn of_several_threads_one_passes_and_none_is_forgotten() {
        let repeat = Repeat::default();
        let passed: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..1000).filter_map(|_| repeat.pass_at(Duration::from_secs(1))).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        // The line that passes may count lines which another thread holds back at the same moment.
        let [counted] = passed[..] else { panic!("{passed:?}") };
        assert_eq!(repeat.pass_at(Duration::from_secs(11)), Some(3999 - counted));
    }
}
