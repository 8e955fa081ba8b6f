//! Where the time of each request goes, and which requests `glidefs trace` shows.
//!
//! Owns the row of each request under way, and the choice: slow requests, and a sample of all. Does not own the ring of those that have
//! ended (`observe::trace`), nor when a request goes to another part, which the steps of a request say with [`enter`].
//! Invariants: the table belongs to one worker and has a fixed size, so no lock is taken and nothing allocated; the parts of a request add
//! up to its total; only a sampled request reads the clock when it goes to another part. The others take the time at which the worker
//! last looked: at the begin of the turn, or at an answer since. So a wait, or a call that blocks the worker, counts for its part, and what
//! the worker does in between counts for the part after it.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::tag::TagId;
use crate::observe::trace::{PARTS, Part, TraceRing, TracedRequest};
pub use crate::units::nanos;

/// A request that took at least so long is shown.
pub const SLOW: Duration = Duration::from_millis(10);
/// Time between two samples of a worker.
const SAMPLE_INTERVAL_NANOS: u64 = 100_000_000;
/// While requests come, a sample comes at least this often: the rate may have been chosen under more load.
const SAMPLE_INTERVAL_NANOS_MAX: u64 = 1_000_000_000;
/// Most requests of which one is sampled.
const ONE_IN_MAX: u32 = 1 << 24;
/// Rows of the table. Where two requests under way have the same row, the one before loses it: its time is all in the part `queue`.
const ROWS: usize = 1024;

/// How a request that is to be shown has spent its time.
pub struct Way {
    pub total_nanos: u64,
    /// By [`Part`].
    pub part_nanos: [u64; PARTS],
    /// The number of requests that a sample stands for.
    pub one_in: Option<u32>,
}

/// A request under way.
#[derive(Clone, Copy)]
struct Row {
    /// `None`: the row is free.
    owner: Option<TagId>,
    part: Part,
    /// The number of requests that a sample stands for; 0: it is not sampled.
    one_in: u32,
    /// When it came to `part`, on the clock of the table.
    since: u64,
    part_nanos: [u64; PARTS],
}

/// Which requests are sampled.
struct Sampling {
    /// Requests until the next sample.
    left: u32,
    /// Requests since the last sample.
    passed: u32,
    /// One in so many is sampled, on average.
    one_in: u32,
    /// When the last one was sampled.
    last: u64,
    random: u32,
}

/// The requests of a worker.
struct Table {
    /// Empty in a thread that is no worker.
    rows: Box<[Row]>,
    sampling: Sampling,
    /// Time 0 of the table's clock.
    began: Instant,
    /// The latest time that the worker has read, nanoseconds since `began`.
    now: u64,
    ring: Arc<TraceRing>,
}

thread_local! {
    static TABLE: RefCell<Option<Table>> = const { RefCell::new(None) };
}

/// Makes the table of the calling worker. Its requests go to `ring`.
pub fn begin_worker(ring: Arc<TraceRing>) {
    TABLE.set(Some(Table::new(ring, Instant::now())));
}

/// Notes the begin of a turn.
pub fn begin_turn(now: Instant) {
    with(|table| table.tick(now));
}

/// Notes a request that has come.
#[inline]
pub fn begin(tag: TagId) {
    with(|table| table.begin(tag));
}

/// Notes that a request is in `part` from now on.
#[inline]
pub fn enter(tag: TagId, part: Part) {
    with(|table| table.enter(tag, part));
}

/// Notes the answer to a request at `now`, `total` after it came. Returns how it spent its time if it is to be shown.
#[inline]
pub fn end(tag: TagId, total: Duration, now: Instant) -> Option<Way> {
    with(|table| table.end(tag, total, now)).flatten()
}

/// Shows a request that has ended.
pub fn show(request: TracedRequest) {
    with(|table| table.ring.push(request));
}

#[inline]
fn with<R>(work: impl FnOnce(&mut Table) -> R) -> Option<R> {
    TABLE.with_borrow_mut(|table| table.as_mut().map(work))
}

impl Table {
    fn new(ring: Arc<TraceRing>, began: Instant) -> Self {
        let row = Row { owner: None, part: Part::Queue, one_in: 0, since: 0, part_nanos: [0; PARTS] };
        let sampling = Sampling { left: 0, passed: 0, one_in: 1, last: 0, random: 0 };
        Self { rows: vec![row; ROWS].into(), sampling, began, now: 0, ring }
    }

    fn tick(&mut self, now: Instant) {
        // Never back, so the time in a part is never negative.
        self.now = self.now.max(nanos(now.saturating_duration_since(self.began)));
    }

    fn begin(&mut self, tag: TagId) {
        let now = self.now;
        let one_in = self.sampling.take(now);
        if let Some(row) = self.rows.get_mut(row_of(tag)) {
            *row = Row { owner: Some(tag), part: Part::Queue, one_in, since: now, part_nanos: [0; PARTS] };
        }
    }

    fn enter(&mut self, tag: TagId, part: Part) {
        let Some(row) = self.rows.get_mut(row_of(tag)).filter(|row| row.owner == Some(tag)) else { return };
        if row.one_in > 0 {
            self.now = self.now.max(nanos(self.began.elapsed()));
        }
        row.part_nanos[row.part as usize] += self.now - row.since;
        row.since = self.now;
        row.part = part;
    }

    fn end(&mut self, tag: TagId, total: Duration, now: Instant) -> Option<Way> {
        self.tick(now);
        let row = self.rows.get_mut(row_of(tag))?;
        let is_own = row.owner == Some(tag);
        if !(total >= SLOW || is_own && row.one_in > 0) {
            if is_own {
                row.owner = None;
            }
            return None;
        }
        let mut way = Way { total_nanos: nanos(total), part_nanos: [0; PARTS], one_in: None };
        let mut part = Part::Queue;
        if is_own {
            row.owner = None;
            (way.part_nanos, part) = (row.part_nanos, row.part);
            way.one_in = Some(row.one_in).filter(|one_in| *one_in > 0);
        }
        // What is left of the total belongs to the last part.
        let before = way.part_nanos.iter().fold(0, |sum: u64, nanos| sum.saturating_add(*nanos));
        way.part_nanos[part as usize] += way.total_nanos.saturating_sub(before);
        Some(way)
    }
}

impl Sampling {
    /// Counts a request at `now`. Returns how many it stands for if it is the next sample, otherwise 0.
    #[inline]
    fn take(&mut self, now: u64) -> u32 {
        self.passed = self.passed.saturating_add(1);
        if self.left > 0 && now - self.last < SAMPLE_INTERVAL_NANOS_MAX {
            self.left -= 1;
            return 0;
        }
        self.sample(now)
    }

    #[cold]
    fn sample(&mut self, now: u64) -> u32 {
        // The load since the last sample; a burst counts for twice as many at most.
        let load = u64::from(self.passed) * SAMPLE_INTERVAL_NANOS / (now - self.last).max(1);
        let one_in_max = self.one_in.saturating_mul(2).min(ONE_IN_MAX);
        self.one_in = u32::try_from(load).unwrap_or(u32::MAX).clamp(1, one_in_max);
        self.last = now;
        // From 0 to twice the mean: with a fixed distance, a client that repeats a few requests would always have the same one sampled.
        // A step of a linear congruential generator, whose upper bits are the better ones.
        self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        self.left = (self.random >> 7) % (2 * self.one_in - 1);
        std::mem::take(&mut self.passed)
    }
}

/// Neighbouring tags of a queue have different rows, and so, mostly, have equal tags of several queues.
fn row_of(tag: TagId) -> usize {
    let queue = tag.queue_index.wrapping_mul(0x9E37_79B1) >> 22;
    (queue as usize + usize::from(tag.tag)) % ROWS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn tag(queue_index: u32, tag: u16) -> TagId {
        TagId { queue_index, tag }
    }

    fn part(number: usize) -> Part {
        [Part::Queue, Part::Limit, Part::Brake, Part::Slot, Part::Copy, Part::Log, Part::Sync, Part::Store]
            [number]
    }

    /// A table that samples nothing for the time of a test.
    fn table() -> Table {
        let mut table = Table::new(Arc::default(), Instant::now());
        table.sampling.left = u32::MAX;
        table
    }

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_total_and_each_has_the_time_that_the_worker_saw_pass_in_it(
            moves in prop::collection::vec((0..PARTS, 0..50_000_000_u64), 0..30),
        ) {
            let mut table = table();
            let (came, mut at, mut here) = (table.began, 0, Part::Queue);
            let mut expected = [0; PARTS];
            table.begin(tag(3, 5));
            for (number, nanos) in moves {
                at += nanos;
                expected[here as usize] += nanos;
                table.tick(came + Duration::from_nanos(at));
                here = part(number);
                table.enter(tag(3, 5), here);
            }
            let total = Duration::from_nanos(at + 7) + SLOW;
            expected[here as usize] += 7 + nanos(SLOW);
            let way = table.end(tag(3, 5), total, came + total).unwrap();
            prop_assert_eq!(way.part_nanos, expected);
            prop_assert_eq!(way.part_nanos.iter().sum::<u64>(), way.total_nanos);
            prop_assert_eq!(way.one_in, None);
        }
    }

    #[test]
    fn a_request_is_shown_if_it_is_slow_or_a_sample_and_gives_its_row_back() {
        let mut table = table();
        let end = |table: &mut Table, took| table.end(tag(0, 1), took, table.began + took);
        table.begin(tag(0, 1));
        assert!(end(&mut table, SLOW / 2).is_none());
        table.begin(tag(0, 1));
        assert!(end(&mut table, SLOW).is_some());
        table.sampling.left = 0;
        table.begin(tag(0, 1));
        assert_eq!(end(&mut table, SLOW / 2).unwrap().one_in, Some(3));
        assert!(table.rows.iter().all(|row| row.owner.is_none()));
    }

    #[test]
    fn a_request_whose_row_went_to_another_has_all_its_time_in_the_queue() {
        let mut table = table();
        let (first, second) = (tag(0, 1), tag(0, 1 + u16::try_from(ROWS).unwrap()));
        assert_eq!(row_of(first), row_of(second));
        table.begin(first);
        table.begin(second);
        table.tick(table.began + SLOW);
        table.enter(first, Part::Store);
        table.enter(second, Part::Log);
        let now = table.began + 2 * SLOW;
        let way = table.end(first, 2 * SLOW, now).unwrap();
        assert_eq!(way.part_nanos[Part::Queue as usize], way.total_nanos);
        let way = table.end(second, 2 * SLOW, now).unwrap();
        assert_eq!(way.part_nanos[Part::Log as usize], nanos(SLOW));
    }

    #[test]
    fn about_ten_requests_a_second_are_sampled_whatever_the_load_and_stand_for_all() {
        let mut sampling = Sampling { left: 0, passed: 0, one_in: 1, last: 0, random: 0 };
        let mut now = 0;
        for (a_second, samples) in [(1_000_000, 5..20), (10, 5..11), (20_000, 5..20), (1, 1..2)] {
            let run = |sampling: &mut Sampling, now: &mut u64, seconds: u64| {
                let mut taken = Vec::new();
                for _ in 0..a_second * seconds {
                    *now += SECOND / a_second;
                    taken.extend(Some(sampling.take(*now)).filter(|one_in| *one_in > 0));
                }
                taken
            };
            // It adjusts within a second or two.
            run(&mut sampling, &mut now, 3);
            let before = u64::from(sampling.passed);
            let taken = run(&mut sampling, &mut now, 10);
            let stood_for: u64 = taken.iter().map(|one_in| u64::from(*one_in)).sum();
            assert_eq!(stood_for + u64::from(sampling.passed), before + a_second * 10);
            assert!(samples.contains(&(taken.len() / 10)), "{} at {a_second}", taken.len());
        }
    }
}
