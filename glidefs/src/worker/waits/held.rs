//! Writes which are held back: their export bounds the data at risk, packs of the export are merged more slowly than made, the
//! index of the export may not grow, or the export has its share of the log.
//!
//! Owns the order within an export: first in, first out. But writes which leave the index no larger overtake a first write held back by
//! a full index, and zeroes which take no log space overtake one held back by the log, so a client can make room. Each export is asked
//! for itself; the order across exports is made behind (`ready`). Does not own the bounds (`cache::Volume::pace`,
//! `cache::Volume::index_pace`, `cache::Volume::log_pace`). Invariants: a held write of one export keeps no other export waiting; a
//! held write has neither a buffer nor log space; where the client alone can make room in an index, some tags of each queue have no
//! held write.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stop;
use crate::cache::{Coming, Content, Pace, Resource, Volume};
use crate::export::Operation;
use crate::observe::io::WorkerStats;
use crate::units::{ExportId, FRAME_SECTORS};
use crate::worker::requests::TagRequest;

/// Time between two questions whether the first write of an export may go on.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// The writes which one worker holds back.
#[derive(Debug)]
pub struct HeldWrites {
    /// No export in here is without writes.
    exports: BTreeMap<ExportId, HeldExport>,
    /// The next look begins behind this export: the first ones may leave nothing to the others.
    first: ExportId,
    /// When to ask next whether a write may go on.
    due: Option<Instant>,
    /// Writes found by one look. Empty between turns.
    leaving: VecDeque<Released>,
    stats: Arc<WorkerStats>,
}

/// The answer to a write which comes.
#[derive(Clone, Copy, Debug)]
pub enum Hold {
    /// Goes on, and does not wait.
    Go(TagRequest),
    /// Waits among the held writes.
    Waits,
    /// Fails, as a wait would have no end, and does not wait.
    Full,
}

/// The bound which holds a write back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Data at risk, or packs to be merged.
    Risk,
    /// A budget.
    Budget(Resource),
}

/// The held writes of one export.
#[derive(Debug)]
struct HeldExport {
    volume: Arc<Volume>,
    /// Each with the time before which nobody asks whether the write, once the first, may go on.
    writes: VecDeque<(TagRequest, Instant)>,
    /// Why the first write is held back, and up to when the time was counted.
    reason: Reason,
    counted: Instant,
}

/// A write which leaves.
#[derive(Debug)]
pub enum Released {
    /// The write goes on, and counts as promised.
    Goes(TagRequest),
    /// The write fails, as the index is full.
    Full(TagRequest),
}

impl HeldWrites {
    pub fn new(stats: Arc<WorkerStats>) -> Self {
        Self { exports: BTreeMap::new(), first: ExportId(0), due: None, leaving: VecDeque::new(), stats }
    }

    /// Keeps a write which may not go on at once. `depth` is that of the request's queue.
    pub fn enter(
        &mut self,
        mut request: TagRequest,
        (volume, depth): (&Arc<Volume>, u16),
        now: Instant,
    ) -> Hold {
        let held = self.exports.get_mut(&volume.id());
        let (pace, reason) = match &held {
            // The bound is asked when the earlier writes have gone on.
            Some(export) if is_in_line(export.reason, &request) => (Pace::Wait, export.reason),
            _ => ask(volume, &mut request, false, Coming::default()),
        };
        // A paused write may have to wait later.
        let has_tags = reason == Reason::Risk
            || !volume.waits_for_client()
            || held.as_ref().map_or(0, |export| export.of_queue(&request)) < waits_max(depth);
        let due = match pace {
            Pace::Pause(_) if !has_tags => return Hold::Go(request),
            Pace::Full if !has_tags || volume.fails_when_full() => return Hold::Full,
            Pace::Go => return Hold::Go(request),
            Pace::Pause(pause) => now + pause,
            Pace::Wait | Pace::Full => now + ASK_AGAIN,
        };
        match reason {
            Reason::Risk => self.stats.risk_waits.add(1),
            Reason::Budget(resource) => {
                match resource {
                    Resource::Index => self.stats.index_waits.add(1),
                    Resource::Log => self.stats.log_waits.add(1),
                }
                volume.count_held(resource);
            }
        }
        if let Some(export) = held {
            export.writes.push_back((request, now));
        } else {
            let (volume, writes) = (Arc::clone(volume), VecDeque::from([(request, due)]));
            let export = HeldExport { volume, writes, reason, counted: now };
            self.exports.insert(export.volume.id(), export);
            self.due = Some(self.due.map_or(due, |earliest| earliest.min(due)));
        }
        Hold::Waits
    }

    /// Takes out the writes of exports whose waits are ended.
    pub fn stop(&mut self) -> Vec<TagRequest> {
        let mut stopped = Vec::new();
        self.exports.retain(|_, export| {
            let may_wait = stop::may_wait(&export.volume);
            if !may_wait {
                stopped.extend(export.writes.drain(..).map(|(request, _)| request));
            }
            may_wait
        });
        stopped
    }

    /// When to call [`next`](Self::next) again.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A write which leaves now. Of several exports another one is first at each look.
    pub fn next(&mut self, now: Instant) -> Option<Released> {
        if let Some(released) = self.leaving.pop_front() {
            return Some(released);
        }
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        // Data of writes let go on is counted only when the data is in the log.
        let mut leaving_bytes = 0;
        let mut look = |export: &mut HeldExport| {
            leaving_bytes += export.take_due(now, &mut self.leaving, leaving_bytes);
        };
        let behind = (Excluded(self.first), Unbounded);
        self.exports.range_mut(behind).for_each(|(_, export)| look(export));
        self.exports.range_mut(..=self.first).for_each(|(_, export)| look(export));
        let next = self.exports.range(behind).next().or_else(|| self.exports.first_key_value());
        self.first = next.map_or(self.first, |(id, _)| *id);
        self.exports.retain(|_, export| !export.writes.is_empty());
        self.due = self.exports.values().filter_map(|export| Some(export.writes.front()?.1)).min();
        self.leaving.pop_front()
    }
}

/// Most writes of a queue of this depth which wait for the client to make room: the others leave tags for DISCARD.
fn waits_max(depth: u16) -> usize {
    depth.saturating_sub((depth / 4).max(2)).into()
}

impl HeldExport {
    /// Number of writes of the queue of `request`.
    fn of_queue(&self, request: &TagRequest) -> usize {
        let queue = request.tag.queue_index;
        self.writes.iter().filter(|(held, _)| held.tag.queue_index == queue).count()
    }

    /// Moves the writes to `leaving` which may go on, or fail. Returns the bytes of data of the former. `others_bytes` of other
    /// exports leave before.
    fn take_due(&mut self, now: Instant, leaving: &mut VecDeque<Released>, others_bytes: u64) -> u64 {
        let mut own_bytes = 0;
        while let Some((request, due)) = self.writes.front_mut().filter(|(_, due)| *due <= now) {
            let coming = Coming { own: own_bytes, all: own_bytes + others_bytes };
            let (pace, reason) = ask(&self.volume, request, true, coming);
            if let Reason::Budget(resource) = self.reason {
                self.volume.count_held_time(resource, now.saturating_duration_since(self.counted));
            }
            (self.reason, self.counted) = (reason, now);
            leaving.push_back(match pace {
                Pace::Go => {
                    own_bytes += request.data_bytes() as u64;
                    Released::Goes(*request)
                }
                Pace::Full if self.volume.fails_when_full() => Released::Full(*request),
                Pace::Pause(_) | Pace::Wait | Pace::Full => {
                    *due = now + ASK_AGAIN;
                    break;
                }
            });
            self.writes.pop_front();
        }
        if matches!(self.reason, Reason::Budget(_)) {
            self.overtake(now, leaving);
        }
        own_bytes
    }

    /// Moves later writes to `leaving` which do not need the resource for which the first write waits.
    fn overtake(&mut self, now: Instant, leaving: &mut VecDeque<Released>) {
        let Self { volume, writes, reason, .. } = self;
        let mut is_first = true;
        writes.retain_mut(|(request, due)| {
            let stays = std::mem::take(&mut is_first)
                || *due > now
                || is_in_line(*reason, request)
                || ask(volume, request, true, Coming::default()).0 != Pace::Go;
            if !stays {
                leaving.push_back(Released::Goes(*request));
            }
            stays
        });
    }
}

/// Whether `request` goes on only behind a first write which is held back for `reason`.
fn is_in_line(reason: Reason, request: &TagRequest) -> bool {
    match reason {
        Reason::Risk => true,
        Reason::Budget(Resource::Index) => false,
        Reason::Budget(Resource::Log) => takes_log_space(request),
    }
}

/// Whether the data of the export may take more frames after `request`. Zeroes of six sectors and fewer may: within a frame they may
/// leave two extents with data in the frame, each of which counts the frame.
fn takes_log_space(request: &TagRequest) -> bool {
    let whole = request.range.count() > FRAME_SECTORS - 2;
    request.operation == Operation::Write || !whole
}

/// When a write may go on, and which bound says so. `coming` is the data of writes which were just let go on.
pub fn ask(volume: &Volume, request: &mut TagRequest, paused: bool, coming: Coming) -> (Pace, Reason) {
    let content = match request.operation {
        Operation::Discard | Operation::WriteZeroes => Content::Zeroes { whole: request.fua },
        _ => Content::Data,
    };
    if takes_log_space(request) {
        let pace = volume.log_pace(coming, paused);
        if pace != Pace::Go {
            return (pace, Reason::Budget(Resource::Log));
        }
    }
    let (pace, kept) = volume.index_pace(request.range, content, paused);
    if pace != Pace::Go {
        return (pace, Reason::Budget(Resource::Index));
    }
    let pace = volume.pace(request.data_bytes() as u64, paused);
    if pace == Pace::Go {
        request.kept = kept;
    } else if let Some(kept) = kept {
        volume.give_back(kept);
    }
    (pace, Reason::Risk)
}
