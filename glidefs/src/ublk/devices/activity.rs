//! How much of a worker each queue of a device takes, and which devices may be moved at present.
//!
//! Owns the figures of a device in service, taken at intervals from the counters of the queues. Does not own the load of a worker
//! (`worker/load.rs`) nor the choice of a move (`placement/moves.rs`).

use crate::export::Export;
use crate::observe::io::QueueStats;
use crate::units::REQUEST_COST_BYTES;

/// The requests of one queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Activity {
    /// Cost of all requests done so far.
    done: u64,
    /// Cost of the requests done between the last two looks.
    pub recent: u64,
    /// The part of a CPU which the queue took of its worker, per cent.
    pub load: u64,
    /// Whether requests are under way, and none was done between the last two looks.
    pub is_stalled: bool,
}

impl Activity {
    /// A queue which is idle so far. The counters of an export, if there are any, go on from one device to the next.
    pub fn begin(stats: Option<&QueueStats>) -> Self {
        let mut queue = Self::default();
        if let Some(stats) = stats {
            queue.look(stats);
        }
        Self { recent: 0, is_stalled: false, ..queue }
    }

    /// Looks at the counters of a queue.
    pub fn look(&mut self, stats: &QueueStats) {
        let ((reads, read_bytes), (writes, written)) =
            (stats.read_size.count_and_sum(), stats.write_size.count_and_sum());
        let requests = [reads, writes, stats.flushes.get(), stats.zeroes.get()];
        let requests = requests.into_iter().fold(0, u64::wrapping_add);
        let done = requests.wrapping_mul(REQUEST_COST_BYTES).wrapping_add(read_bytes).wrapping_add(written);
        self.recent = done.wrapping_sub(self.done);
        self.done = done;
        self.is_stalled = self.recent == 0 && stats.in_flight.get() != 0;
    }

    /// Takes the queue's part of a worker which was busy for `percent` of the time with requests of the cost `total`.
    pub fn share(&mut self, percent: u64, total: u64) {
        let share = u128::from(self.recent).saturating_mul(percent.into()).checked_div(total.into());
        self.load = share.and_then(|share| u64::try_from(share).ok()).unwrap_or(0);
    }
}

/// Whether requests of the export wait for something that may take long.
pub(super) fn waits(export: &Export, activity: &[Activity]) -> bool {
    activity.iter().any(|queue| queue.is_stalled) || export.volume().waits_for().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_the_part_of_the_load_which_its_requests_cost() {
        let (stats, mut queue) = (QueueStats::default(), Activity::default());
        stats.write_size.record(8 << 10);
        queue.look(&stats);
        queue.share(80, 64 << 10);
        assert_eq!((queue.recent, queue.load, queue.is_stalled), (16 << 10, 20, false));
        queue.look(&stats);
        queue.share(80, 0);
        assert_eq!((queue.recent, queue.load, queue.is_stalled), (0, 0, false), "idle since");
    }

    #[test]
    fn a_queue_is_stalled_while_requests_are_under_way_and_none_ends() {
        let (stats, mut queue) = (QueueStats::default(), Activity::default());
        stats.in_flight.add(1);
        queue.look(&stats);
        assert!(queue.is_stalled);
        stats.flushes.add(1);
        queue.look(&stats);
        assert!(!queue.is_stalled);
    }
}
