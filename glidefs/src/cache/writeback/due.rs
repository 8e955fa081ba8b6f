//! When a volume with data to write back is cut.
//!
//! Owns the decision only, and when to decide again: functions of the figures of the volume and of the time.

use std::time::Duration;

use crate::cache::volume::VolumeFigures;
use crate::cache::volume::durability::Triggers;
use crate::units::Seq;

/// How long a due cut waits for a FLUSH. After that time the cut is made without one.
const FLUSH_PATIENCE: Duration = Duration::from_millis(500);

/// Looks at a volume that is written to, in the time for which a volume must be quiet: a volume is found quiet by a quarter of this
/// time late at most.
const QUIET_LOOKS: u32 = 4;

/// The decision about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// No cut yet.
    Later,
    /// A cut at the next FLUSH.
    AtFlush,
    /// A cut at once.
    Now,
}

/// The state of a volume with data to write back, as seen until now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    /// Time of the first look at data that is in no cut.
    pub since: Duration,
    /// The last sequence number seen, and the time of the first look with this number.
    last_seq: Seq,
    changed: Duration,
    /// Time of the first look at which a cut was due.
    due: Option<Duration>,
}

impl Watch {
    pub fn new(now: Duration) -> Self {
        Self { since: now, last_seq: Seq::default(), changed: now, due: None }
    }

    /// The decision at `now`. `hurry` is true when somebody waits for the cut.
    pub fn look(&mut self, now: Duration, figures: &VolumeFigures, triggers: &Triggers, hurry: bool) -> Due {
        if figures.last_seq != self.last_seq {
            self.last_seq = figures.last_seq;
            self.changed = now;
        }
        if hurry || now.saturating_sub(self.changed) >= triggers.quiet {
            return Due::Now;
        }
        let is_due =
            figures.dirty_bytes >= triggers.size_bytes || now.saturating_sub(self.since) >= triggers.age;
        if !is_due {
            return Due::Later;
        }
        let due = *self.due.get_or_insert(now);
        if now.saturating_sub(due) >= FLUSH_PATIENCE { Due::Now } else { Due::AtFlush }
    }

    /// When to look again after the look at `now`, unless the size of the data asks for a look before.
    pub fn next(&self, now: Duration, triggers: &Triggers) -> Duration {
        let is_written_to = self.changed == now;
        let wait = if is_written_to { triggers.quiet / QUIET_LOOKS } else { triggers.quiet };
        let cut = self
            .due
            .map_or(self.since.saturating_add(triggers.age), |due| due.saturating_add(FLUSH_PATIENCE));
        self.changed.saturating_add(wait).min(cut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIGGERS: Triggers =
        Triggers { size_bytes: 1000, age: Duration::from_secs(10), quiet: Duration::from_secs(2) };

    fn figures(last_seq: u64, dirty_bytes: u64) -> VolumeFigures {
        VolumeFigures { last_seq: Seq(last_seq), dirty_bytes, ..VolumeFigures::default() }
    }

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_busy_volume_is_cut_at_a_flush_when_it_is_large_or_old_and_anyway_when_none_comes() {
        let mut watch = Watch::new(at(0));
        assert_eq!(watch.look(at(0), &figures(1, 10), &TRIGGERS, false), Due::Later);
        assert_eq!(watch.look(at(100), &figures(2, 1000), &TRIGGERS, false), Due::AtFlush);
        assert_eq!(watch.look(at(599), &figures(3, 1000), &TRIGGERS, false), Due::AtFlush);
        assert_eq!(watch.look(at(600), &figures(4, 1000), &TRIGGERS, false), Due::Now);
        let mut watch = Watch::new(at(0));
        for second in 0..10 {
            assert_eq!(watch.look(at(second * 1000), &figures(second, 10), &TRIGGERS, false), Due::Later);
        }
        assert_eq!(watch.look(at(10_000), &figures(11, 10), &TRIGGERS, false), Due::AtFlush);
    }

    #[test]
    fn a_quiet_volume_is_cut_where_it_is_and_one_that_is_waited_for_at_once() {
        let mut watch = Watch::new(at(0));
        assert_eq!(watch.look(at(500), &figures(7, 10), &TRIGGERS, false), Due::Later);
        assert_eq!(watch.look(at(2499), &figures(7, 10), &TRIGGERS, false), Due::Later);
        assert_eq!(watch.look(at(2500), &figures(7, 10), &TRIGGERS, false), Due::Now);
        assert_eq!(Watch::new(at(0)).look(at(0), &figures(1, 1), &TRIGGERS, true), Due::Now);
    }

    #[test]
    fn looks_at_the_named_times_find_a_volume_quiet_old_or_without_a_flush_in_time() {
        // Quiet: the last write came right behind the first look.
        let mut watch = Watch::new(at(0));
        let (mut now, mut looks) = (at(0), 0);
        while watch.look(now, &figures(if now.is_zero() { 1 } else { 2 }, 10), &TRIGGERS, false) != Due::Now {
            let next = watch.next(now, &TRIGGERS);
            assert!(next > now, "{next:?} after {now:?}");
            (now, looks) = (next, looks + 1);
        }
        assert_eq!((now, looks), (at(2500), 3));
        // Written to all the time: old after ten seconds, and cut although no FLUSH comes.
        let mut watch = Watch::new(at(0));
        let (mut now, mut seq, mut due) = (at(0), 1, Duration::ZERO);
        loop {
            match watch.look(now, &figures(seq, 10), &TRIGGERS, false) {
                Due::Now => break,
                Due::AtFlush if due.is_zero() => due = now,
                Due::AtFlush | Due::Later => {}
            }
            (now, seq) = (watch.next(now, &TRIGGERS), seq + 1);
        }
        assert_eq!((due, now), (at(10_000), at(10_500)));
    }
}
