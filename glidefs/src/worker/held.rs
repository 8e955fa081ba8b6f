//! Writes of exports that bound what is at risk, or whose packs are merged more slowly than they are made, held back until the
//! cache lets them go on.
//!
//! Owns their order: within an export that of their arrival. Does not own the bounds (`cache`). Invariant: an export that must
//! wait keeps no other export waiting, and a held write has neither a buffer nor log space.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::requests::Fetched;
use crate::cache::{Pace, Volume};
use crate::observe::io::WorkerStats;
use crate::units::ExportId;

/// How often a write that must wait asks again.
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// The writes that one worker holds back.
#[derive(Debug)]
pub(super) struct HeldWrites {
    /// None of them is empty.
    exports: BTreeMap<ExportId, Waiting>,
    /// When the first of any export may be asked for, or earlier.
    due: Option<Instant>,
    stats: Arc<WorkerStats>,
}

/// The writes of one export.
#[derive(Debug)]
struct Waiting {
    volume: Arc<Volume>,
    /// When each may be asked for, if it is the first.
    writes: VecDeque<(Fetched, Instant)>,
}

impl HeldWrites {
    pub fn new(stats: Arc<WorkerStats>) -> Self {
        Self { exports: BTreeMap::new(), due: None, stats }
    }

    /// Keeps a write that may not go on at once, and says whether it did.
    pub fn holds_back(&mut self, fetched: Fetched, volume: &Arc<Volume>, now: Instant) -> bool {
        if let Some(waiting) = self.exports.get_mut(&volume.id()) {
            // Its turn comes when those before it have gone on.
            waiting.writes.push_back((fetched, now));
        } else {
            let due = match volume.pace(fetched.data_bytes() as u64, false) {
                Pace::Go => return false,
                Pace::Pause(pause) => now + pause,
                Pace::Wait => now + ASK_AGAIN,
            };
            let waiting = Waiting { volume: Arc::clone(volume), writes: VecDeque::from([(fetched, due)]) };
            self.exports.insert(volume.id(), waiting);
            self.due = Some(self.due.map_or(due, |earliest| earliest.min(due)));
        }
        self.stats.risk_waits.add(1);
        true
    }

    /// Takes out the writes of exports whose requests may not wait any more.
    pub fn end_waits(&mut self) -> Vec<Fetched> {
        let mut ended = Vec::new();
        self.exports.retain(|_, waiting| {
            let ends = waiting.volume.are_waits_ended();
            if ends {
                ended.extend(waiting.writes.drain(..).map(|(fetched, _)| fetched));
            }
            !ends
        });
        ended
    }

    /// When to ask for the next.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A write that may go on now.
    pub fn next(&mut self, now: Instant) -> Option<Fetched> {
        if self.due.is_none_or(|due| due > now) {
            return None;
        }
        let mut going = None;
        for (id, waiting) in &mut self.exports {
            let Some((fetched, due)) = waiting.writes.front_mut().filter(|(_, due)| *due <= now) else {
                continue;
            };
            match waiting.volume.pace(fetched.data_bytes() as u64, true) {
                Pace::Go => {
                    going = Some(*id);
                    break;
                }
                Pace::Pause(_) | Pace::Wait => *due = now + ASK_AGAIN,
            }
        }
        let Some(id) = going else {
            self.due = self.exports.values().filter_map(|waiting| Some(waiting.writes.front()?.1)).min();
            return None;
        };
        let waiting = self.exports.get_mut(&id)?;
        let next = waiting.writes.pop_front();
        if waiting.writes.is_empty() {
            self.exports.remove(&id);
        }
        next.map(|(fetched, _)| fetched)
    }
}
