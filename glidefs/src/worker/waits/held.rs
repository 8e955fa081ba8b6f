//! Writes which are held back: their export bounds the data at risk, or packs of the export are merged more slowly than made.
//!
//! Owns the order within an export: first in, first out. Bounds are of one export, so exports do not compete here; the turns of
//! exports are made behind (`ready`). Does not own the bounds (`cache::Volume::pace`). Invariants: a held write of one export keeps
//! no other export waiting; a held write has neither a buffer nor log space.

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

/// The held writes of one export.
#[derive(Debug)]
struct HeldExport {
    volume: Arc<Volume>,
    /// Each with the time at which the write may be asked for, once the write is the first.
    writes: VecDeque<(TagRequest, Instant)>,
}

impl HeldWrites {
    pub fn new(stats: Arc<WorkerStats>) -> Self {
        Self { exports: BTreeMap::new(), due: None, stats }
    }

    /// Keeps a write which may not go on at once. `false` when the write may go on: then the write was not kept.
    pub fn holds_back(&mut self, request: TagRequest, volume: &Arc<Volume>, now: Instant) -> bool {
        if let Some(export) = self.exports.get_mut(&volume.id()) {
            // The bound is asked when the earlier writes have gone on.
            export.writes.push_back((request, now));
        } else {
            let due = match volume.pace(request.data_bytes() as u64, false) {
                Pace::Go => return false,
                Pace::Pause(pause) => now + pause,
                Pace::Wait => now + ASK_AGAIN,
            };
            let export = HeldExport { volume: Arc::clone(volume), writes: VecDeque::from([(request, due)]) };
            self.exports.insert(volume.id(), export);
            self.due = Some(self.due.map_or(due, |earliest| earliest.min(due)));
        }
        self.stats.risk_waits.add(1);
        true
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

    /// A write which may go on now, and counts as promised. Of several exports the one with the lowest id is first.
    pub fn next(&mut self, now: Instant) -> Option<TagRequest> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let mut going = None;
        for (id, export) in &mut self.exports {
            let Some((request, due)) = export.writes.front_mut().filter(|(_, due)| *due <= now) else {
                continue;
            };
            match export.volume.pace(request.data_bytes() as u64, true) {
                Pace::Go => {
                    going = Some(*id);
                    break;
                }
                Pace::Pause(_) | Pace::Wait => *due = now + ASK_AGAIN,
            }
        }
        let Some(id) = going else {
            self.due = self.exports.values().filter_map(|export| Some(export.writes.front()?.1)).min();
            return None;
        };
        let export = self.exports.get_mut(&id)?;
        let next = export.writes.pop_front();
        if export.writes.is_empty() {
            self.exports.remove(&id);
        }
        next.map(|(request, _)| request)
    }
}
