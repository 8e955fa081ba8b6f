//! The trace of a block request: an unbroken line of steps, each in one part of the way.
//!
//! Invariant: the steps of a trace add up to the time from the begin to the end, whatever the request's way was: a request is in exactly one
//! part at any moment.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;

/// Most steps of a trace. A request with more, such as one that waits again and again, has the rest of its time in [`Part::Other`].
pub const STEPS_MAX: usize = 16;

/// A part of the way of a request. The texts stand in the description of the API and in docs/traces.md as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Part {
    /// Waits for the worker: behind other requests of a turn, or for a turn of the export among others.
    Queue,
    /// Waits because of a limit of the export.
    Limit,
    /// Waits because data leaves more slowly than it comes: a bound on data at risk, packs to be merged, a share or the whole of the log,
    /// memory of the index.
    Brake,
    /// Waits for memory for the data, a slot: `buffers.slots_per_worker`.
    Slot,
    /// The bytes are copied between client and worker.
    Copy,
    /// A write waits to be appended together with others: for the end of the turn, for earlier appends, or for a free segment of the log.
    Batch,
    /// The record is appended, or the content is read from the log, with checksums.
    Log,
    /// Waits until data is stable on the cache disk: a FLUSH, or a FUA WRITE.
    Sync,
    /// Waits for the store: for content only in the store, or for the commit of a durable FLUSH.
    Store,
    /// The result is counted, and the answer is made.
    Reply,
    /// The worker decides; or the rest of a request with more than 16 steps.
    Other,
}

/// All parts, in the order of the way.
#[cfg(test)]
pub const PARTS: [Part; 11] = [
    Part::Queue,
    Part::Limit,
    Part::Brake,
    Part::Slot,
    Part::Copy,
    Part::Batch,
    Part::Log,
    Part::Sync,
    Part::Store,
    Part::Reply,
    Part::Other,
];

impl Part {
    /// The word of the part in answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Limit => "limit",
            Self::Brake => "brake",
            Self::Slot => "slot",
            Self::Copy => "copy",
            Self::Batch => "batch",
            Self::Log => "log",
            Self::Sync => "sync",
            Self::Store => "store",
            Self::Reply => "reply",
            Self::Other => "other",
        }
    }
}

/// The steps of a request so far.
#[derive(Clone, Debug)]
pub struct Steps {
    done: ArrayVec<(Part, Duration), STEPS_MAX>,
    part: Part,
    since: Instant,
}

impl Steps {
    /// A request that has been in `part` from `since` on.
    pub fn begin(part: Part, since: Instant) -> Self {
        Self { done: ArrayVec::new(), part, since }
    }

    /// The request is in `part` from `now` on.
    pub fn enter(&mut self, part: Part, now: Instant) {
        if part != self.part {
            self.close(now);
            self.part = part;
        }
    }

    /// Ends the step that the request is in.
    pub fn close(&mut self, now: Instant) {
        // A clock that stands still, or a moment from before: the step took no time, and the sum stays whole.
        let took = now.saturating_duration_since(self.since);
        self.since = self.since.max(now);
        if took.is_zero() {
            return;
        }
        // The last place is for all that does not fit.
        let part = if self.done.len() + 1 < STEPS_MAX { self.part } else { Part::Other };
        match self.done.last_mut() {
            Some((last, time)) if *last == self.part || *last == part => *time += took,
            _ => self.done.push((part, took)),
        }
    }

    /// The ended steps, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Part, Duration)> + '_ {
        self.done.iter().copied()
    }

    /// The time of all ended steps.
    pub fn total(&self) -> Duration {
        self.done.iter().map(|(_, took)| *took).sum()
    }

    /// The time of all ended steps in `part`.
    pub fn of(&self, part: Part) -> Duration {
        self.done.iter().filter(|(other, _)| *other == part).map(|(_, took)| *took).sum()
    }
}

/// A block request that has ended.
#[derive(Clone, Debug)]
pub struct RequestTrace {
    /// Name of the export the request was for.
    pub export: Arc<str>,
    /// Number of the device that the request came from.
    pub device_id: u32,
    /// Number of the queue in the device.
    pub queue_id: u16,
    /// Place of the request in the device's queue.
    pub tag: u16,
    /// `read`, `write`, `flush`, `discard` or `write_zeroes`.
    pub operation: &'static str,
    /// First byte of the device that was asked for.
    pub offset_bytes: u64,
    /// Number of bytes asked for.
    pub length_bytes: u64,
    /// Whether the request is acknowledged only when stable.
    pub fua: bool,
    /// Begin of the turn in which the worker found the request.
    pub began: Instant,
    /// How long the request may have lain with the kernel before, as the worker was in a turn: an estimate of the most.
    pub unseen_max: Duration,
    /// `ok`, or a word for the failure.
    pub result: &'static str,
    /// Where the time of the request went, by part.
    pub steps: Steps,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_time_whatever_the_way(
            moves in prop::collection::vec((0..PARTS.len(), 0..5_000_u64), 0..60),
        ) {
            let begin = Instant::now();
            let mut steps = Steps::begin(Part::Queue, begin);
            let mut now = begin;
            for (part, nanos) in moves {
                now += Duration::from_nanos(nanos);
                steps.enter(PARTS[part], now);
            }
            now += Duration::from_nanos(7);
            steps.close(now);
            prop_assert_eq!(steps.total(), now - begin);
            let of_parts: Duration = PARTS.iter().map(|part| steps.of(*part)).sum();
            prop_assert_eq!(of_parts, steps.total());
            prop_assert!(steps.iter().len() <= STEPS_MAX);
            let kinds: Vec<Part> = steps.iter().map(|(part, _)| part).collect();
            prop_assert!(kinds.windows(2).all(|pair| pair[0] != pair[1]), "{kinds:?}");
        }
    }

    #[test]
    fn a_way_of_more_steps_than_a_trace_has_ends_in_other() {
        let begin = Instant::now();
        let mut steps = Steps::begin(Part::Queue, begin);
        for step in 1..=40 {
            let part = if step % 2 == 0 { Part::Queue } else { Part::Log };
            steps.enter(part, begin + Duration::from_micros(step));
        }
        steps.close(begin + Duration::from_micros(41));
        assert_eq!(steps.total(), Duration::from_micros(41));
        assert_eq!(steps.iter().last(), Some((Part::Other, Duration::from_micros(26))));
    }

    #[test]
    fn the_list_of_parts_is_in_the_order_of_the_way_and_whole() {
        assert!(PARTS.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(PARTS.len(), Part::Other as usize + 1);
    }
}
