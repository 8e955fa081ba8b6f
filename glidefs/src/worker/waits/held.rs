//! Writes which are held back: their export bounds the data at risk, packs of the export are merged more slowly than made, the
//! index of the export may not grow, or the export has its share of the log.
//!
//! Owns the order within an export: first in, first out. But writes which leave the index no larger overtake a first write held back by
//! a full index, and zeroes which take no log space overtake one held back by the log, so a client can make room. Each export is asked
//! for itself; the order across exports is made behind (`ready`). Does not own the bounds (`cache::Volume::pace`,
//! `cache::Volume::index_pace`, `cache::Volume::log_pace`). Invariants: a held write of one export keeps no other export waiting; a
//! held write has neither a buffer nor log space; where the client alone can make room in an index, some tags of each queue have no
//! held write. A look costs as much as the exports which are due and the writes which leave, however many stay; all looks together take a
//! bounded share of the worker's time, because the more exports have held writes, the more seldom each is asked for, and the fewer of its
//! writes that may overtake.

mod overtaking;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::overtaking::{Answer, take_some};
use super::stop;
use crate::cache::{Coming, Content, Pace, Resource, Volume};
use crate::export::Operation;
use crate::observe::io::WorkerStats;
use crate::units::{ExportId, FRAME_SECTORS};
use crate::worker::requests::TagRequest;

/// Time between two questions whether the first write of an export may go on.
const ASK_AGAIN: Duration = Duration::from_millis(10);
/// The same, for each export with held writes: so the number of questions a second is bounded. A question about an export that is in no
/// CPU cache any more took 4 to 5 microseconds (`cargo bench --bench path -- held`): a tenth of a CPU, without the wake-ups.
const ASK_AGAIN_EACH: Duration = Duration::from_micros(50);

/// Questions are due at multiples of this time, so that one wake-up of the worker is for many: a wake-up costs more than a question.
const GRID: Duration = Duration::from_micros(2500);

/// Most writes behind the first that all looks within [`ASK_AGAIN`] together ask for; each export may ask for one. Zeroes
/// between many small extents take the longest, some microseconds each.
const OVERTAKING_MAX: usize = 64;

/// The writes which one worker holds back.
#[derive(Debug)]
pub struct HeldWrites {
    /// No export in here is without writes.
    exports: BTreeMap<ExportId, HeldExport>,
    /// The next look begins behind this export: the first ones may leave nothing to the others.
    first: ExportId,
    /// When to ask next whether the first write of an export may go on: an entry for each export.
    due: BTreeSet<(Instant, ExportId)>,
    /// Writes found by one look. Empty between turns.
    leaving: VecDeque<Released>,
    /// The multiples of [`GRID`] count from here.
    origin: Instant,
    stats: Arc<WorkerStats>,
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
    /// The place in `writes` of the next one to be asked for behind the first.
    next: usize,
    /// How many of them each queue has, by queue index.
    of_queues: HashMap<u32, usize>,
    /// Why the first write is held back, and up to when the time was counted.
    reason: Reason,
    counted: Instant,
}

/// A write which is not, or not any more, held.
#[derive(Debug)]
pub enum Released {
    /// The write goes on, and counts as promised.
    Goes(TagRequest),
    /// The write fails, as the index is full.
    Full(TagRequest),
}

impl HeldWrites {
    pub fn new(stats: Arc<WorkerStats>) -> Self {
        let (first, leaving) = (ExportId(0), VecDeque::new());
        let origin = Instant::now();
        Self { exports: BTreeMap::new(), first, due: BTreeSet::new(), leaving, origin, stats }
    }

    /// Keeps a write which may not go on at once. `None` when the write waits now; one whose wait would have no end fails. `depth` is
    /// that of the request's queue.
    pub fn enter(
        &mut self,
        mut request: TagRequest,
        (volume, depth): (&Arc<Volume>, u16),
        now: Instant,
    ) -> Option<Released> {
        let again = self.again(now);
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
            Pace::Pause(_) if !has_tags => return Some(Released::Goes(request)),
            Pace::Full if !has_tags || volume.fails_when_full() => return Some(Released::Full(request)),
            Pace::Go => return Some(Released::Goes(request)),
            Pace::Pause(pause) => now + pause,
            Pace::Wait | Pace::Full => again,
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
            export.push(request, now);
        } else {
            let mut export = HeldExport::new(Arc::clone(volume), reason, now);
            export.push(request, due);
            self.exports.insert(volume.id(), export);
            self.due.insert((due, volume.id()));
        }
        None
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
        self.due.retain(|(_, id)| self.exports.contains_key(id));
        stopped
    }

    /// When to call [`next`](Self::next) again.
    pub fn due(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// A write which leaves now. Of several exports another one is first at each look.
    pub fn next(&mut self, now: Instant) -> Option<Released> {
        if let Some(released) = self.leaving.pop_front() {
            return Some(released);
        }
        let mut looks: Vec<ExportId> = Vec::new();
        while let Some((_, id)) = self.due.first().filter(|(due, _)| *due <= now) {
            looks.push(*id);
            self.due.pop_first();
        }
        if looks.is_empty() {
            return None;
        }
        looks.sort_unstable();
        let behind = looks.partition_point(|id| *id <= self.first);
        looks.rotate_left(behind);
        let first = self.exports.range((Excluded(self.first), Unbounded)).next();
        let first = first.or_else(|| self.exports.first_key_value()).map(|(id, _)| *id);
        // Data of writes let go on is counted only when the data is in the log.
        let mut leaving_bytes = 0;
        let again = self.again(now);
        let overtaking_max = (OVERTAKING_MAX / self.exports.len().max(1)).max(1);
        for id in &looks {
            let Some(export) = self.exports.get_mut(id) else { continue };
            leaving_bytes += export.take_due((now, again), &mut self.leaving, leaving_bytes);
            export.overtake(now, overtaking_max, &mut self.leaving);
            match export.writes.front() {
                Some((_, due)) => drop(self.due.insert((*due, *id))),
                None => drop(self.exports.remove(id)),
            }
        }
        self.first = first.unwrap_or(self.first);
        debug_assert_eq!(
            self.due.len(),
            self.exports.len(),
            "each export with held writes is asked for again"
        );
        self.leaving.pop_front()
    }

    /// When an export is asked again which is asked now.
    fn again(&self, now: Instant) -> Instant {
        let exports = u32::try_from(self.exports.len()).unwrap_or(u32::MAX);
        let wanted = now + ASK_AGAIN_EACH.saturating_mul(exports).max(ASK_AGAIN);
        let passed = wanted.saturating_duration_since(self.origin).as_nanos();
        // Below the length of the grid, which is a `u64`.
        let over = u64::try_from(passed % GRID.as_nanos()).unwrap_or(0);
        if over == 0 { wanted } else { wanted + GRID.saturating_sub(Duration::from_nanos(over)) }
    }
}

/// Most writes of a queue of this depth which wait for the client to make room: the others leave tags for DISCARD.
fn waits_max(depth: u16) -> usize {
    depth.saturating_sub((depth / 4).max(2)).into()
}

impl HeldExport {
    /// An export without held writes, whose first is about to be held back for `reason`.
    fn new(volume: Arc<Volume>, reason: Reason, now: Instant) -> Self {
        Self { volume, writes: VecDeque::new(), next: 1, of_queues: HashMap::new(), reason, counted: now }
    }

    fn push(&mut self, request: TagRequest, due: Instant) {
        *self.of_queues.entry(request.tag.queue_index).or_default() += 1;
        self.writes.push_back((request, due));
    }

    /// Takes note that `request` is not held any more.
    fn left(of_queues: &mut HashMap<u32, usize>, request: &TagRequest) {
        if let Some(count) = of_queues.get_mut(&request.tag.queue_index) {
            debug_assert!(*count > 0, "a held write is counted");
            *count = count.saturating_sub(1);
        }
    }

    /// Number of writes of the queue of `request`.
    fn of_queue(&self, request: &TagRequest) -> usize {
        self.of_queues.get(&request.tag.queue_index).copied().unwrap_or(0)
    }

    /// Moves the writes to `leaving` which may go on, or fail. Returns the bytes of data of the former. `others_bytes` of other
    /// exports leave before. A first write which stays is asked for at `again`.
    fn take_due(
        &mut self,
        (now, again): (Instant, Instant),
        leaving: &mut VecDeque<Released>,
        others_bytes: u64,
    ) -> u64 {
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
                    *due = again;
                    break;
                }
            });
            Self::left(&mut self.of_queues, request);
            self.writes.pop_front();
            self.next = self.next.saturating_sub(1);
        }
        own_bytes
    }

    /// Moves later writes to `leaving` which do not need the resource for which the first write waits. Asks for at most `asks_max`.
    fn overtake(&mut self, now: Instant, asks_max: usize, leaving: &mut VecDeque<Released>) {
        let Self { volume, writes, next, of_queues, reason, .. } = self;
        if *reason == Reason::Risk {
            return;
        }
        take_some(writes, next, asks_max, |(request, due)| {
            if *due > now || is_in_line(*reason, request) {
                return Answer::NotAsked;
            }
            if ask(volume, request, true, Coming::default()).0 != Pace::Go {
                return Answer::Stays;
            }
            Self::left(of_queues, request);
            leaving.push_back(Released::Goes(*request));
            Answer::Goes
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
    let (pace, promised) = volume.pace(request.data_bytes() as u64, paused);
    if pace == Pace::Go {
        (request.kept, request.promised) = (kept, promised);
    } else if let Some(kept) = kept {
        volume.give_back(kept);
    }
    (pace, Reason::Risk)
}
