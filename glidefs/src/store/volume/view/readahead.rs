//! Reading ahead of sequential readers, into the block cache.
//!
//! Owns which readers are sequential, and how far ahead of each to fetch. Does not own fetching, nor how long the block cache
//! keeps blocks. Invariant: a window begins only for a reader whose reads continued each other twice, and the windows under way
//! stay within the budget.
//!
//! ```text
//!             reads                 last window            next one: begun when half of the last was read
//!   ──────────────────────────────┬───────────┴───────────┬ ─ ─ ─ ─ ─ ─ ─ ─ ─ ─
//!                                end                   ahead_end
//! ```

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::store::format::BLOCK_SECTORS_MAX;
use crate::store::volume::types::between;
use crate::units::{SECTOR_BYTES, SectorRange};

/// Most streams of a volume, sequential or not yet, at a time.
const STREAMS_MAX: usize = 8;
/// A stream counts as sequential after this many continuing reads.
const FOLLOWED_MIN: u32 = 2;
/// A sequential stream that was not continued for this many reads of the volume makes room for a new stream.
const IDLE_READS_MAX: u64 = 64;
/// How far before or after the expected position a read may be, in lengths of the read: requests overtake each other.
const DISORDER_MAX: u64 = 8;
/// Length of the first window, sectors.
const WINDOW_SECTORS_MIN: u64 = (256 << 10) / SECTOR_BYTES;
/// Length of the longest window, bytes: as much as one request for blocks carries.
const WINDOW_BYTES_MAX: usize = super::fetch::GET_BYTES_MAX;
/// Most bytes of all windows under way.
const UNDER_WAY_BYTES_MAX: usize = 16 << 20;

/// Bounds the windows under way in a process.
#[derive(Debug)]
pub(in crate::store::volume) struct ReadaheadBudget {
    /// One permit per KiB of window.
    permits: Arc<Semaphore>,
    pub window_sectors_max: u64,
}

impl ReadaheadBudget {
    /// The budget for a block cache with `blocks_bytes` of memory: blocks read ahead have to stay in memory until a reader wants
    /// them.
    pub fn within(blocks_bytes: usize) -> Self {
        let permits = Arc::new(Semaphore::new(UNDER_WAY_BYTES_MAX.min(blocks_bytes / 4) >> 10));
        let window_bytes = WINDOW_BYTES_MAX.min(blocks_bytes / 16) as u64;
        let window_blocks = (window_bytes / (BLOCK_SECTORS_MAX * SECTOR_BYTES)).max(1);
        Self { permits, window_sectors_max: window_blocks * BLOCK_SECTORS_MAX }
    }

    pub fn take(&self, window: SectorRange) -> Option<OwnedSemaphorePermit> {
        let permits = u32::try_from(window.count().div_ceil(1024 / SECTOR_BYTES)).ok()?;
        self.permits.clone().try_acquire_many_owned(permits).ok()
    }
}

/// Streams of reads of one volume: the readers, as far as reads tell.
#[derive(Debug, Default)]
pub(in crate::store::volume) struct Streams {
    streams: Vec<Stream>,
    reads: u64,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// First sector of the stream.
    start: u64,
    /// End of the last continuing read.
    end: u64,
    /// Number of continuing reads.
    followed: u32,
    /// Length of the last window, sectors; 0 when there was no window.
    window: u64,
    /// End of the last window.
    ahead_end: u64,
    /// Number of the last read of the stream, counted over all reads of the volume.
    used: u64,
}

/// How a read belongs to a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// The read continues the stream.
    Next,
    /// The read comes late: the stream is past its end.
    Late,
}

impl Stream {
    fn new(range: SectorRange, used: u64) -> Self {
        Self { start: range.start(), end: range.end(), followed: 0, window: 0, ahead_end: 0, used }
    }

    fn is_sequential(&self) -> bool {
        self.followed >= FOLLOWED_MIN
    }

    fn fit(&self, range: SectorRange) -> Option<Fit> {
        let disorder = range.count().saturating_mul(DISORDER_MAX);
        if range.start() == self.end {
            return Some(Fit::Next);
        }
        if !self.is_sequential() {
            // The first two reads of a stream may arrive in the wrong order.
            return (self.followed == 0 && range.end() == self.start).then_some(Fit::Next);
        }
        if range.start() > self.end {
            return (range.start() - self.end <= disorder).then_some(Fit::Next);
        }
        (self.end - range.start() <= disorder).then_some(if range.end() > self.end {
            Fit::Next
        } else {
            Fit::Late
        })
    }

    fn follow(&mut self, range: SectorRange) {
        self.start = self.start.min(range.start());
        self.end = self.end.max(range.end());
        self.followed = self.followed.saturating_add(1);
    }

    /// The range to read ahead now in a volume of `size_sectors`, and the length of the window, which is shorter at the end of
    /// the volume. `window_max` is in sectors.
    fn next_window(&self, size_sectors: u64, window_max: u64) -> Option<(SectorRange, u64)> {
        if !self.is_sequential() {
            return None;
        }
        let (start, window) = if self.window == 0 {
            (self.end, WINDOW_SECTORS_MIN)
        } else if self.ahead_end.saturating_sub(self.end) <= self.window / 2 {
            (self.ahead_end.max(self.end), self.window.saturating_mul(2))
        } else {
            return None;
        };
        let window = window.min(window_max);
        let end = start.checked_add(window)?.checked_next_multiple_of(BLOCK_SECTORS_MAX)?;
        let range = between(start, end.min(size_sectors));
        (!range.is_empty()).then_some((range, window))
    }
}

impl Streams {
    /// Notes a read of `range`. Returns the range to read ahead for this reader, if there is one and `admit` agrees.
    pub fn note(
        &mut self,
        range: SectorRange,
        size_sectors: u64,
        window_max: u64,
        admit: impl FnOnce(SectorRange) -> bool,
    ) -> Option<SectorRange> {
        if range.is_empty() {
            return None;
        }
        self.reads += 1;
        let fits = self.streams.iter().enumerate().filter_map(|(at, stream)| Some((at, stream.fit(range)?)));
        // A stream that ends exactly where the read begins comes before streams that the read may belong to out of order.
        let best = fits.max_by_key(|(at, _)| self.streams[*at].end == range.start());
        let Some((at, fit)) = best else {
            self.begin(range);
            return None;
        };
        let stream = &mut self.streams[at];
        stream.used = self.reads;
        if fit == Fit::Late {
            return None;
        }
        stream.follow(range);
        let (ahead, window) = stream.next_window(size_sectors, window_max)?;
        if !admit(ahead) {
            return None;
        }
        (stream.window, stream.ahead_end) = (window, ahead.end());
        Some(ahead)
    }

    /// Begins a stream with a read that belongs to no stream.
    fn begin(&mut self, range: SectorRange) {
        let new = Stream::new(range, self.reads);
        if self.streams.len() < STREAMS_MAX {
            self.streams.push(new);
            return;
        }
        let reads = self.reads;
        let worth = |stream: &&mut Stream| {
            let reading = stream.is_sequential() && reads - stream.used <= IDLE_READS_MAX;
            (reading, stream.used)
        };
        if let Some(least) = self.streams.iter_mut().min_by_key(worth) {
            *least = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 1 << 30;
    const MAX: u64 = WINDOW_BYTES_MAX as u64 / SECTOR_BYTES;

    fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(start, count).unwrap()
    }

    fn windows(reads: &[SectorRange], size_sectors: u64) -> Vec<SectorRange> {
        let mut streams = Streams::default();
        reads.iter().filter_map(|range| streams.note(*range, size_sectors, MAX, |_| true)).collect()
    }

    #[test]
    fn windows_double_follow_each_other_and_keep_half_a_window_ahead() {
        let mut streams = Streams::default();
        let (mut ahead_end, mut lengths) = (0, Vec::new());
        for at in (0..65_536).step_by(8) {
            if let Some(window) = streams.note(range(at, 8), SIZE, MAX, |_| true) {
                assert!(ahead_end == 0 || window.start() == ahead_end);
                assert_eq!(window.end() % BLOCK_SECTORS_MAX, 0);
                lengths.push(window.count() / (256 << 1));
                ahead_end = window.end();
            }
            assert!(at < 16 || ahead_end >= at + 8);
        }
        assert_eq!(lengths[..7], [1, 2, 4, 8, 16, 16, 16], "in 256 KiB");
    }

    #[test]
    fn the_third_read_in_a_row_is_the_first_that_reads_ahead() {
        let reads = [range(800, 16), range(816, 16), range(832, 16)];
        assert_eq!(windows(&reads[..2], SIZE), []);
        assert_eq!(windows(&reads, SIZE), [range(848, 1408 - 848)]);
        assert_eq!(windows(&reads, 900), [range(848, 52)], "up to the end of the volume");
        assert_eq!(windows(&reads, 848), [], "at the end");
    }

    #[test]
    fn what_is_not_admitted_is_tried_with_the_next_read() {
        let mut streams = Streams::default();
        let reads = (0..5).map(|at| range(at * 8, 8));
        let admitted: Vec<_> =
            reads.map(|read| streams.note(read, SIZE, MAX, |_| read.start() >= 24)).collect();
        assert!(admitted[..3].iter().all(Option::is_none));
        assert_eq!(admitted[3].map(SectorRange::start), Some(32));
    }

    proptest! {
        #[test]
        fn readers_may_be_interleaved_and_a_little_out_of_order(
            readers in 1..=4_u64,
            count in 1..=256_u64,
            picks in vec((0..4_u64, any::<bool>()), 200..400),
        ) {
            let mut streams = Streams::default();
            let mut next = [0; 4];
            let mut ahead_end: Vec<u64> = (0..4).map(|reader| reader << 24).collect();
            let mut note = |read: SectorRange| {
                if let Some(window) = streams.note(read, SIZE, MAX, |_| true) {
                    let reader = (window.start() >> 24) as usize;
                    ahead_end[reader] = window.end();
                }
            };
            for (reader, swapped) in picks {
                let reader = reader % readers;
                let at = |turn: u64| range((reader << 24) + turn * count, count);
                let turn = next[reader as usize];
                // After the first four reads, neighbouring reads may overtake each other.
                let order = if swapped && turn >= 4 { [turn + 1, turn] } else { [turn, turn + 1] };
                for turn in order {
                    note(at(turn));
                }
                next[reader as usize] += 2;
            }
            for reader in 0..readers as usize {
                let end = ((reader as u64) << 24) + next[reader] * count;
                prop_assert!(next[reader] < 4 || ahead_end[reader] >= end, "{} {}", ahead_end[reader], end);
            }
        }

        #[test]
        fn a_random_reader_causes_no_windows(seed: u64) {
            use crate::store::ids::Entropy;
            let entropy = crate::store::faulty::Seeded::new(seed);
            let reads: Vec<_> = (0..2000).map(|_| range(entropy.next_u64() % (1 << 21) * 8, 8)).collect();
            prop_assert_eq!(windows(&reads, SIZE), []);
        }

        #[test]
        fn windows_stay_inside_the_volume_and_within_their_length(
            reads in vec((0..2000_u64, 1..64_u64), 0..200),
            size in 1..4000_u64,
            window_max in 1..20_u64,
        ) {
            let (mut streams, window_max) = (Streams::default(), window_max * BLOCK_SECTORS_MAX);
            for (start, count) in reads {
                let read = range(start.min(size), count.min(size - start.min(size)));
                if let Some(window) = streams.note(read, size, window_max, |_| true) {
                    prop_assert!(window.end() <= size && !window.is_empty());
                    prop_assert!(window.count() < window_max + BLOCK_SECTORS_MAX);
                }
                prop_assert!(streams.streams.len() <= STREAMS_MAX);
            }
        }
    }
}
