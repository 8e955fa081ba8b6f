//! FLUSH and FUA: the segments that must become stable, one sync at a time for each file, and the requests that wait for segments
//! or for the store.
//!
//! Invariants: a waiter ends when every needed place is stable, or fails when one of the places never will be; a FLUSH that
//! arrives during a sync waits for the next sync, because the sync under way may not cover all data of the FLUSH. A waiter for the
//! store is looked at when the volume has told of progress: the shard enters itself with the volume before each look.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use slab::Slab;

use super::Shard;
use super::request::{Done, Token, Want};
use crate::cache::handoff::Port;
use crate::cache::log::table::Place;
use crate::cache::log::table::Stability;
use crate::cache::shared::Shared;
use crate::cache::sync_hold::SyncHold;
use crate::cache::volume::Volume;
use crate::cache::volume::error::IoError;
use crate::cache::volume::gate::Teller;
use crate::observe::trace::Part;
use crate::units::{ExportId, Seq};

/// A FLUSH or a FUA write.
#[derive(Debug)]
struct Waiter<T> {
    token: T,
    /// Number of needs not met.
    open: usize,
    outcome: Result<(), IoError>,
    /// The data that must be in the store as well.
    store: Option<InStore>,
}

/// All writes to a volume up to a sequence number.
#[derive(Debug)]
pub(super) struct InStore {
    volume: Arc<Volume>,
    seq: Seq,
    /// Cuts that could not be read before the wait began: one more fails the wait.
    unreadable: u64,
}

impl InStore {
    /// All writes to `volume` up to `seq`, where a FLUSH of the volume waits for the store; `None` elsewhere. Writeback is asked for
    /// at once, so that the way to the store begins beside the sync.
    pub fn of(volume: &Arc<Volume>, seq: Seq) -> Option<Self> {
        let unreadable = volume.unreadable_cuts();
        let store = volume.waits_for_store().then(|| Self { volume: Arc::clone(volume), seq, unreadable })?;
        volume.ask_writeback_to(seq);
        Some(store)
    }

    /// Whether the store has all the writes, or need not have them any more; an error when waiting for the store is in vain. If not,
    /// `teller` is told of the next progress.
    fn is_met(&self, teller: &Teller) -> Result<bool, IoError> {
        // Before the look, so progress between the two is not missed.
        self.volume.tell_of_progress(teller);
        if !self.volume.waits_for_store() {
            return Ok(true);
        }
        self.volume.is_in_store(self.seq, self.unreadable)
    }
}

/// A place that must become stable.
#[derive(Clone, Copy, Debug)]
struct Need {
    end: u32,
    waiter: usize,
}

/// A segment with frames that some waiter needs to be stable.
#[derive(Debug)]
struct Target {
    number: u32,
    segment_id: u64,
    needs: Vec<Need>,
    /// Whether a sync begun by this shard is under way.
    busy: bool,
}

#[derive(Debug)]
struct Syncing {
    hold: SyncHold<Arc<Shared>>,
    segment_id: u64,
    /// Frames appended before the sync began.
    covers: u32,
}

pub(super) struct Syncs<T> {
    waiters: Slab<Waiter<T>>,
    targets: Vec<Target>,
    under_way: Slab<Syncing>,
    /// Waiters that wait for the store only.
    stored: HashMap<ExportId, Vec<(T, InStore)>>,
    /// Wakes the shard for the progress of a volume.
    teller: Teller,
    /// Empty between calls: only the capacity is kept.
    told: Vec<ExportId>,
    places: Vec<Place>,
    spare: Vec<Vec<Need>>,
    spare_stored: Vec<Vec<(T, InStore)>>,
}

impl<T: std::fmt::Debug> std::fmt::Debug for Syncs<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { waiters, targets, under_way, stored, .. } = self;
        let mut parts = f.debug_struct("Syncs");
        parts.field("waiters", waiters).field("targets", targets).field("under_way", under_way);
        parts.field("stored", stored).finish_non_exhaustive()
    }
}

impl<T: Token> Syncs<T> {
    /// The syncs of the shard with this port.
    pub fn new(port: &Arc<Port>) -> Self {
        let port = Arc::clone(port);
        Self {
            waiters: Slab::new(),
            targets: Vec::new(),
            under_way: Slab::new(),
            stored: HashMap::new(),
            teller: Arc::new(move |export| port.tell(export)),
            told: Vec::new(),
            places: Vec::new(),
            spare: Vec::new(),
            spare_stored: Vec::new(),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.waiters.is_empty() && self.under_way.is_empty() && self.stored.is_empty()
    }

    /// Ends `token` when all of `places` are stable and the store has `store`.
    fn wait(&mut self, places: &[Place], store: Option<InStore>, token: T, done: &mut Done<T>) {
        let waiter = Waiter { token, open: places.len(), outcome: Ok(()), store };
        if places.is_empty() {
            return self.end(waiter, done);
        }
        let waiter = self.waiters.insert(waiter);
        for place in places {
            self.need(*place, waiter);
        }
    }

    /// Ends a waiter without needs, or puts the waiter among those that wait for the store.
    fn end(&mut self, waiter: Waiter<T>, done: &mut Done<T>) {
        let Waiter { token, outcome, store, .. } = waiter;
        match (outcome, store) {
            (Ok(()), Some(store)) => match store.is_met(&self.teller) {
                Ok(false) => {
                    token.enters(Part::Store);
                    let Self { stored, spare_stored, .. } = self;
                    let beside = stored.entry(store.volume.id());
                    beside.or_insert_with(|| spare_stored.pop().unwrap_or_default()).push((token, store));
                }
                outcome => done.push((token, outcome.map(drop))),
            },
            (outcome, _) => done.push((token, outcome)),
        }
    }

    /// Looks at the waiters for the store of each volume with progress.
    fn end_stored(&mut self, port: &Port, done: &mut Done<T>) {
        let Self { stored, teller, told, spare_stored, .. } = self;
        port.take_told(told);
        for export in told.drain(..) {
            let Some(waiters) = stored.get_mut(&export) else { continue };
            let mut at = 0;
            while let Some((_, store)) = waiters.get(at) {
                match store.is_met(teller) {
                    Ok(false) => at += 1,
                    outcome => {
                        let (token, _) = waiters.swap_remove(at);
                        done.push((token, outcome.map(drop)));
                    }
                }
            }
            if waiters.is_empty() {
                spare_stored.extend(stored.remove(&export));
            }
        }
    }

    fn need(&mut self, place: Place, waiter: usize) {
        let need = Need { end: place.end, waiter };
        let same =
            |target: &&mut Target| (target.number, target.segment_id) == (place.number, place.segment_id);
        if let Some(target) = self.targets.iter_mut().find(same) {
            target.needs.push(need);
            return;
        }
        let mut needs = self.spare.pop().unwrap_or_default();
        needs.push(need);
        self.targets.push(Target { number: place.number, segment_id: place.segment_id, needs, busy: false });
    }
}

/// Ends `token` when `place` is stable and the store has `store`.
pub(super) fn wait_for<T: Token>(shard: &mut Shard<T>, place: Place, store: Option<InStore>, mut token: T) {
    token.give_back();
    token.enters(Part::Sync);
    let is_stable = place.stability(&shard.shared.table) == Stability::Stable;
    let places: &[Place] = if is_stable { &[] } else { &[place] };
    shard.stats.sync_waiters.add(places.len() as u64);
    shard.syncs.wait(places, store, token, &mut shard.done);
}

pub(super) fn turn<T: Token>(shard: &mut Shard<T>) {
    shard.syncs.end_stored(&shard.shared.ports[shard.index], &mut shard.done);
    let mut at = 0;
    while at < shard.syncs.targets.len() {
        settle(shard, at);
        let target = &shard.syncs.targets[at];
        if target.needs.is_empty() && !target.busy {
            let target = shard.syncs.targets.swap_remove(at);
            shard.syncs.spare.push(target.needs);
            continue;
        }
        if !target.busy {
            begin(shard, at);
        }
        at += 1;
    }
}

/// Ends the needs of target `at` that are met, and the needs that never will be.
fn settle<T: Token>(shard: &mut Shard<T>, at: usize) {
    let Shard { shared, syncs, done, .. } = shard;
    let (number, segment_id) = (syncs.targets[at].number, syncs.targets[at].segment_id);
    let mut needs = std::mem::take(&mut syncs.targets[at].needs);
    needs.retain(|need| {
        let outcome = match shared.table.stability(number, segment_id, need.end) {
            Stability::Unsynced => return true,
            Stability::Stable => Ok(()),
            Stability::Lost => Err(IoError::Sync),
        };
        debug_assert!(
            syncs.waiters.get(need.waiter).is_some_and(|waiter| waiter.open > 0),
            "a need is counted by a waiter that has not ended"
        );
        let waiter = &mut syncs.waiters[need.waiter];
        waiter.outcome = waiter.outcome.and(outcome);
        waiter.open -= 1;
        if waiter.open == 0 {
            let waiter = syncs.waiters.remove(need.waiter);
            syncs.end(waiter, done);
        }
        false
    });
    syncs.targets[at].needs = needs;
}

/// Begins a sync for target `at`, unless a sync of the file, by anybody, is under way.
fn begin<T: Token>(shard: &mut Shard<T>, at: usize) {
    let Shard { shared, syncs, stats, wanted, index, .. } = shard;
    let target = &mut syncs.targets[at];
    let begin = || SyncHold::begin(Arc::clone(shared), target.number);
    let hold = begin().or_else(|| {
        // Set before the second try, so that the end of a sync between the tries wakes the shard.
        shared.ports[*index].block_on_sync();
        begin()
    });
    let Some(hold) = hold else { return };
    let info = shared.table.get(target.number);
    let (Some(file), true) = (info.file(), info.segment_id() == target.segment_id) else {
        // The segment is not in use any more; the next turn finds all needs met.
        drop(hold);
        shared.ports[*index].wake();
        return;
    };
    debug_assert!(!target.needs.is_empty(), "nobody waits for the sync that begins");
    target.busy = true;
    stats.syncs.add(1);
    let flight = Syncing { hold, segment_id: target.segment_id, covers: info.appended() };
    // At most one for each target.
    let op = u32::try_from(syncs.under_way.insert(flight)).unwrap_or(u32::MAX);
    wanted.push(Want::Sync { op, file: Arc::clone(file) });
}

impl<T: Token> Shard<T> {
    /// Takes a FLUSH. The token comes back when every write to this volume acknowledged before, by any shard, survives a power
    /// cut.
    pub fn flush(&mut self, volume: &Arc<Volume>, token: T) {
        let Some(token) = self.enter(volume, token) else { return };
        volume.flush_habit.flushed();
        let mut places = std::mem::take(&mut self.syncs.places);
        places.clear();
        match volume.flush(&self.shared.table, &mut places) {
            Ok(covers) => {
                let count =
                    if places.is_empty() { &self.stats.empty_flushes } else { &self.stats.sync_waiters };
                count.add(1);
                let store = InStore::of(volume, covers);
                self.syncs.wait(&places, store, token, &mut self.done);
            }
            Err(error) => self.finish(token, Err(error)),
        }
        self.syncs.places = places;
    }

    /// Takes the result of the [`Want::Sync`] with this `op`.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the worker has no more use for the result, as in `read_done`"
    )]
    pub fn sync_done(&mut self, op: u32, result: io::Result<()>) {
        let Some(flight) = self.syncs.under_way.try_remove(op as usize) else {
            debug_assert!(false, "no sync {op} is under way");
            return;
        };
        if let Err(error) = &result {
            self.stats.sync_errors.add(1);
            if let Some(suppressed) = self.bad_syncs.pass() {
                tracing::error!(
                    file = self.shared.disk.segment_name(flight.hold.number),
                    error = error as &dyn std::error::Error,
                    suppressed,
                    "the cache disk failed to make data stable; FLUSH fails for the exports concerned until the data was written again"
                );
            }
        }
        let Syncing { hold, segment_id, covers } = flight;
        let number = hold.number;
        hold.end(covers, result.is_ok());
        if result.is_err() {
            self.shared.signal.raise();
        }
        let same = |target: &Target| (target.number, target.segment_id) == (number, segment_id);
        let found = self.syncs.targets.iter().position(same);
        debug_assert!(found.is_some(), "a target is kept until its sync has ended");
        if let Some(at) = found {
            debug_assert!(self.syncs.targets[at].busy, "one sync at a time is under way for a target");
            self.syncs.targets[at].busy = false;
            settle(self, at);
        }
    }
}
