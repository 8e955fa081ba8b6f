//! Writes which are held back: their export bounds the data at risk, packs of the export are merged more slowly than made, or the
//! index of the export may not grow.
//!
//! Owns the order within an export: first in, first out, but for writes which a full index holds back: a write which leaves the
//! index no larger goes on before these, so that a client can make room. Bounds are of one export, so exports do not compete here;
//! the turns of exports are made behind (`ready`). Does not own the bounds (`cache::Volume::pace`, `cache::Volume::index_pace`).
//! Invariants: a held write of one export keeps no other export waiting; a held write has neither a buffer nor log space.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::stop;
use crate::cache::{Pace, Volume};
use crate::observe::io::WorkerStats;
use crate::units::ExportId;
use crate::worker::requests::TagRequest;

/// Time between two questions whether the first write of an export may go on.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// The writes which one worker holds back.
#[derive(Debug)]
pub struct HeldWrites {
    /// No export in here is without writes.
    exports: BTreeMap<ExportId, HeldExport>,
    /// No write may be asked for before this time.
    due: Option<Instant>,
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
    Index,
}

/// The held writes of one export.
#[derive(Debug)]
struct HeldExport {
    volume: Arc<Volume>,
    /// Each with the time at which the write may be asked for, once the write is the first.
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
        Self { exports: BTreeMap::new(), due: None, stats }
    }

    /// Keeps a write which may not go on at once.
    pub fn enter(&mut self, mut request: TagRequest, volume: &Arc<Volume>, now: Instant) -> Hold {
        let held = self.exports.get_mut(&volume.id());
        let (pace, reason) = match &held {
            // The bound is asked when the earlier writes have gone on.
            Some(export) if export.reason == Reason::Risk => (Pace::Wait, Reason::Risk),
            _ => ask(volume, &mut request, false),
        };
        let due = match pace {
            Pace::Go => return Hold::Go(request),
            Pace::Full => return Hold::Full,
            Pace::Pause(pause) => now + pause,
            Pace::Wait => now + ASK_AGAIN,
        };
        match reason {
            Reason::Risk => self.stats.risk_waits.add(1),
            Reason::Index => {
                self.stats.index_waits.add(1);
                volume.count_held();
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

    /// A write which leaves now. Of several exports the one with the lowest id is first.
    pub fn next(&mut self, now: Instant) -> Option<Released> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let mut going = None;
        for (id, export) in &mut self.exports {
            let Some((request, due)) = export.writes.front_mut().filter(|(_, due)| *due <= now) else {
                continue;
            };
            let (pace, reason) = ask(&export.volume, request, true);
            if export.reason == Reason::Index {
                export.volume.count_held_time(now.saturating_duration_since(export.counted));
            }
            (export.reason, export.counted) = (reason, now);
            match pace {
                Pace::Go | Pace::Full => {
                    going = Some((*id, pace));
                    break;
                }
                Pace::Pause(_) | Pace::Wait => *due = now + ASK_AGAIN,
            }
        }
        let Some((id, pace)) = going else {
            self.due = self.exports.values().filter_map(|export| Some(export.writes.front()?.1)).min();
            return None;
        };
        let export = self.exports.get_mut(&id)?;
        let next = export.writes.pop_front();
        if export.writes.is_empty() {
            self.exports.remove(&id);
        }
        let (request, _) = next?;
        Some(if pace == Pace::Full { Released::Full(request) } else { Released::Goes(request) })
    }
}

/// When a write may go on, and which bound says so.
pub fn ask(volume: &Volume, request: &mut TagRequest, paused: bool) -> (Pace, Reason) {
    let (pace, kept) = volume.index_pace(request.range, paused);
    if pace != Pace::Go {
        return (pace, Reason::Index);
    }
    let pace = volume.pace(request.data_bytes() as u64, paused);
    if pace == Pace::Go {
        request.kept = kept;
    } else if let Some(kept) = kept {
        volume.give_back(kept);
    }
    (pace, Reason::Risk)
}
