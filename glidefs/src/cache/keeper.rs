//! The keeper: everything the log needs that may block, on a thread of its own.
//!
//! It gives shards prepared segments, seals the ones they filled, frees those nobody needs and cleans others so that they
//! can be freed. Does not own appends of clients. Invariant: a slot is freed only when everything that was appended
//! anywhere before its last extent was replaced is stable; otherwise a power cut could lose both the old and the new
//! copy of what was flushed.

mod clean;
#[cfg(test)]
mod faults;
mod runs;
mod sealing;
#[cfg(test)]
mod tests;

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::clean::Cleaner;
use self::sealing::{Sealing, seal_one, write_footer_again};
use super::handoff::{OWNED_MAX, OWNED_MIN};
use crate::cache::log::disk::SegmentFile;
use crate::cache::log::format::SegmentHeader;
use crate::cache::log::pressure::RESERVE;
use crate::cache::log::scan::{self, Identity};
use crate::cache::log::seal;
use crate::cache::log::segment::Segment;
use crate::cache::log::table::{Event, Place, Slot, Stability, State};
use crate::cache::shared::Shared;

/// Longest time between two looks at what there is to do.
const PATIENCE: Duration = Duration::from_millis(100);
/// Pause between two tries to write what the disk did not take.
const DISK_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of a new segment that are written and synced at once.
const FILL_BYTES: usize = 1 << 20;
const SYNC_FAILED: &str = "the cache disk failed to make data stable; FLUSH fails until it was written again";
const NO_SEGMENT: &str = "the cache disk gave no segment: writes wait until it does; free space on the disk of cache.dir, or lower \
                          cache.size";
/// Shard number in the header of segments that cleaning fills.
pub(super) const CLEANER: u32 = u32::MAX;

/// The cache's background work. One a cache.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    /// Segments to seal.
    closed: Vec<Segment>,
    /// Sealed segments whose footer or trailer the disk did not take, and when to try again.
    without_footer: Vec<Segment>,
    footers_at: Duration,
    /// When to make stable again what is left of segments, where there is no room to move it to.
    rescue_at: Duration,
    barrier: Option<Barrier>,
    cleaner: Cleaner,
    preparer: Preparer,
    stuck: bool,
}

/// Slots that nobody needs, and what must become stable before they may be used again.
#[derive(Debug)]
struct Barrier {
    slots: Vec<u32>,
    needs: Vec<Place>,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            closed: Vec::new(),
            without_footer: Vec::new(),
            footers_at: Duration::ZERO,
            rescue_at: Duration::ZERO,
            barrier: None,
            cleaner: Cleaner::default(),
            preparer: Preparer::default(),
            stuck: false,
        }
    }

    /// Works until `stop` is true; checks it at least ten times a second. Blocks on the disk.
    pub fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            if !self.step() {
                self.shared.signal.wait(PATIENCE);
            }
        }
    }

    /// Does some of what there is to do now, and returns whether there was anything.
    pub fn step(&mut self) -> bool {
        let mut progress = self.prepare();
        progress |= self.seal();
        progress |= self.free();
        let free = self.usable();
        if self.cleaner.step(&self.shared, &mut self.preparer, free) {
            progress = true;
        }
        progress |= self.free();
        progress |= self.prepare();
        progress | self.publish_pressure(progress)
    }

    /// Gives every shard the segments it should have: first those it cannot do without.
    fn prepare(&mut self) -> bool {
        let plenty = self.shared.marks.clean_below.saturating_mul(2);
        let mut progress = false;
        for (owned, spare) in [(OWNED_MIN, RESERVE), (OWNED_MAX, plenty.max(RESERVE))] {
            for (index, port) in (0u32..).zip(&self.shared.ports) {
                while port.owned() < owned
                    && let Some(segment) = self.preparer.prepare(&self.shared, index, spare)
                {
                    port.offer(segment);
                    progress = true;
                    if std::mem::take(&mut self.preparer.filled) {
                        // Filling takes long, and nobody waits: other work comes first.
                        return true;
                    }
                }
            }
        }
        progress
    }

    fn seal(&mut self) -> bool {
        self.cleaner.heal(&self.shared);
        self.shared.take_closed(&mut self.closed);
        let mut progress = false;
        let now = self.shared.clock.now();
        let poisoned = |segment: &Segment| self.shared.slots.get(segment.slot).is_poisoned();
        let is_full = now >= self.rescue_at && self.closed.iter().any(poisoned) && self.usable() == 0;
        if is_full {
            self.rescue_at = now.saturating_add(DISK_PAUSE);
        }
        for segment in std::mem::take(&mut self.closed) {
            match seal_one(&self.shared, &segment, is_full) {
                Sealing::Waits => {
                    self.closed.push(segment);
                    continue;
                }
                Sealing::WithoutFooter => self.without_footer.push(segment),
                Sealing::Done => {}
            }
            progress = true;
            // A sync takes long: do not let shards run dry for several in a row.
            self.prepare();
        }
        self.write_footers();
        progress
    }

    /// Tries again to write the footers that the disk did not take.
    fn write_footers(&mut self) {
        let now = self.shared.clock.now();
        if self.without_footer.is_empty() || now < self.footers_at {
            return;
        }
        self.footers_at = now.saturating_add(DISK_PAUSE);
        self.without_footer.retain(|segment| !write_footer_again(&self.shared, segment));
    }

    /// Frees the slots nobody needs, as soon as what replaced them is stable.
    fn free(&mut self) -> bool {
        let Some(mut barrier) = self.barrier.take().or_else(|| self.raise_barrier()) else { return false };
        let shared = &self.shared;
        let mut failed = false;
        barrier.needs.retain(|place| match place.stability(&shared.slots) {
            Stability::Stable => false,
            Stability::Unsynced => match sync(shared, shared.slots.get(place.slot), place.slot) {
                Some(stable) => {
                    failed |= !stable;
                    false
                }
                None => true,
            },
            Stability::Lost => {
                failed = true;
                false
            }
        });
        if failed {
            // What was to replace the slots must move first.
            return true;
        }
        if !barrier.needs.is_empty() {
            shared.block_keeper_on_sync();
            self.barrier = Some(barrier);
            return false;
        }
        let mut progress = false;
        for number in barrier.slots {
            progress |= release(shared, number);
        }
        progress
    }

    fn raise_barrier(&self) -> Option<Barrier> {
        let slots = &self.shared.slots;
        let done = |slot: &Slot| match slot.state() {
            State::Sealed => true,
            State::Closed => slot.is_poisoned(),
            State::Free | State::Open | State::Quarantined => false,
        };
        // Looked for before the ends of the appends are read: what replaced their last extent is before those ends.
        let unneeded: Vec<u32> = slots
            .iter()
            .filter(|(_, slot)| done(slot) && slot.extents() == 0 && !slot.is_pinned())
            .map(|(number, _)| number)
            .collect();
        if unneeded.is_empty() {
            return None;
        }
        let mut needs = Vec::new();
        for (number, slot) in slots.iter() {
            if slot.is_poisoned() {
                if slot.extents() > 0 {
                    return None;
                }
                continue;
            }
            if matches!(slot.state(), State::Open | State::Closed) && slot.synced() < slot.appended() {
                needs.push(Place { slot: number, segment_id: slot.segment_id(), end: slot.appended() });
            }
        }
        Some(Barrier { slots: unneeded, needs })
    }

    /// Whether a slot is free and can be had: while the disk gives no new files, only one that has one.
    fn is_usable(&self, slot: &Slot) -> bool {
        slot.state() == State::Free && (!self.preparer.failing || slot.file().is_some())
    }

    /// How many can be had.
    fn usable(&self) -> u32 {
        let usable = self.shared.slots.iter().filter(|(_, slot)| self.is_usable(slot));
        // At most the limit.
        u32::try_from(usable.count()).unwrap_or(u32::MAX)
    }

    /// Tells the shards how full the cache is, and returns whether that is news to those that wait.
    fn publish_pressure(&mut self, progress: bool) -> bool {
        let shared = &self.shared;
        let free = self.usable();
        let idle = !progress && self.barrier.is_none() && self.closed.is_empty();
        let stuck = idle && (free <= RESERVE || self.preparer.failing);
        let is_clean =
            |slot: &Slot| slot.state() == State::Sealed && slot.dirty_extents() == 0 && !slot.is_poisoned();
        let can_be_had = shared.slots.iter().filter(|(_, slot)| self.is_usable(slot) || is_clean(slot));
        let wants_flush = shared.has_store() && can_be_had.count() < shared.marks.flush_below as usize;
        shared.pressure.set(shared.marks.pause_per_frame(free), stuck, wants_flush);
        let news = stuck && !self.stuck;
        self.stuck = stuck;
        if news {
            // A disk that gives no segment has been reported with its error, and a flush makes room.
            if !self.preparer.failing && !shared.has_store() {
                tracing::warn!(
                    free_segments = free,
                    segments = shared.slots.limit(),
                    "the cache is full of data that is needed: writes wait until it is in the store, exports are removed or cache.size grows"
                );
            }
            for port in &shared.ports {
                port.wake();
            }
        }
        news
    }
}

/// Writes a segment again whose sync failed, where it is: that takes no room, and the kernel counts the pages as unwritten
/// again. `false` when that fails too, or when the pages are gone; then its data must move.
fn heal(shared: &Shared, slot: &Slot, segment: &Segment) -> bool {
    if !slot.begin_sync() {
        return false;
    }
    let rewritten = scan::rewrite_records(&*segment.file, &segment.key, slot.synced(), slot.appended());
    let healed = match rewritten {
        Ok(true) => segment.file.sync().is_ok(),
        Ok(false) | Err(_) => false,
    };
    if healed {
        slot.heal();
        tracing::info!(
            file = shared.disk.segment_name(segment.slot),
            "made a segment stable after a failed sync"
        );
    }
    shared.cancel_sync(slot);
    healed
}

/// Syncs a slot's file and returns whether it is stable; `None` when somebody else is at it.
pub(super) fn sync(shared: &Shared, slot: &Slot, number: u32) -> Option<bool> {
    if !slot.begin_sync() {
        return None;
    }
    let covers = slot.appended();
    let synced = match slot.file() {
        Some(file) => file.sync(),
        None => Ok(()),
    };
    if let Err(error) = &synced {
        report(shared, number, error, SYNC_FAILED);
    }
    slot.end_sync(covers, synced.is_ok());
    shared.sync_ended();
    if synced.is_err() {
        // Its appender must let go of it.
        for port in &shared.ports {
            port.wake();
        }
    }
    Some(!slot.is_poisoned())
}

/// Frees a slot that nobody needs, unless a read or a sync of it is still under way.
fn release(shared: &Shared, number: u32) -> bool {
    let slot = shared.slots.get(number);
    if slot.extents() != 0 || slot.is_pinned() || !slot.begin_sync() {
        return false;
    }
    let retired = slot.is_retired();
    if let Some(file) = slot.file().filter(|_| retired) {
        discard(shared, number, &**file);
    }
    slot.end_use();
    slot.on(if retired { Event::Quarantine } else { Event::Release });
    shared.cancel_sync(slot);
    true
}

/// Makes sure that no recovery takes the file of slot `number`, which nobody needs, for a segment with data: the file is erased,
/// or goes where the disk still does not say that it is.
fn discard(shared: &Shared, number: u32, file: &dyn SegmentFile) {
    let frames = shared.slots.segment_frames();
    let erased = seal::erase(file, frames);
    file.forget_pages();
    // After a sync that failed the page cache may have zeroes where the disk has a segment.
    let is_blank =
        || matches!(scan::identify(file, shared.slots.cache_id(), frames), Ok(Identity::Blank { .. }));
    if erased.is_ok() && is_blank() {
        return;
    }
    if let Err(error) = shared.disk.remove_segment(number) {
        tracing::warn!(
            file = shared.disk.segment_name(number),
            error = &error as &dyn std::error::Error,
            "a segment file that is not used any more cannot be erased nor removed"
        );
    }
}

fn report(shared: &Shared, slot: u32, error: &std::io::Error, what: &'static str) {
    let file = shared.disk.segment_name(slot);
    tracing::error!(file, error = error as &dyn std::error::Error, "{what}");
}

/// Turns free slots into segments that can be appended to.
#[derive(Debug, Default)]
struct Preparer {
    /// Where to look for a free slot next, so that a slot whose file fails does not stand in the way.
    next_slot: u32,
    /// The disk did not give the last segment.
    failing: bool,
    /// The last segment was filled.
    filled: bool,
}

impl Preparer {
    /// A segment for shard `shard`; `None` when the disk failed or no more than `spare` slots are free.
    fn prepare(&mut self, shared: &Shared, shard: u32, spare: u32) -> Option<Segment> {
        let slots = &shared.slots;
        if slots.count(State::Free) <= spare {
            return None;
        }
        let limit = slots.limit();
        let free = |number: &u32| slots.get(*number).state() == State::Free;
        let in_turn = || (0..limit).map(|step| (self.next_slot + step) % limit).filter(free);
        // A disk that is full has room in the files that are there.
        let having_files = in_turn().filter(|number| self.failing && slots.get(*number).file().is_some());
        let number = having_files.chain(in_turn()).find(|number| slots.get(*number).begin_sync())?;
        self.next_slot = (number + 1) % limit;
        let prepared = self.prepare_slot(shared, shard, number);
        shared.cancel_sync(slots.get(number));
        if let Err(error) = &prepared
            && !self.failing
        {
            report(shared, number, error, NO_SEGMENT);
        }
        self.failing = prepared.is_err();
        prepared.ok()
    }

    /// Writes a fresh header into a free slot. Call with its file held by [`Slot::begin_sync`].
    fn prepare_slot(&mut self, shared: &Shared, shard: u32, number: u32) -> std::io::Result<Segment> {
        let (slots, slot) = (&shared.slots, shared.slots.get(number));
        let file = match slot.file() {
            Some(file) => Arc::clone(file),
            None => {
                let file = shared.disk.open_segment(number, slots.segment_bytes())?;
                self.filled = fill(shared, &*file)?;
                Arc::clone(slot.set_file(file))
            }
        };
        let header = SegmentHeader {
            cache_id: slots.cache_id(),
            segment_id: shared.new_segment_id(),
            shard,
            segment_bytes: slots.segment_bytes(),
        };
        file.forget_pages();
        seal::write_header(&*file, &header, slots.segment_frames(), &slot.front_unsure)?;
        slot.make_crcs(slots.segment_frames());
        slot.begin_use(header.segment_id, 1);
        slot.on(Event::Prepare);
        Ok(Segment::new(number, header.key(), file, slots.segment_frames()))
    }
}

/// Writes zeroes all over a new segment, as long as nobody waits for it. The file system notes for each allocated block
/// whether it was ever written, and a sync that covers a first write has to make that note stable as well: a FLUSH then
/// costs a commit of the file system's journal. `false` when nothing was written.
fn fill(shared: &Shared, file: &dyn SegmentFile) -> std::io::Result<bool> {
    let zeroes = vec![0; FILL_BYTES];
    let (mut at, end) = (0, shared.slots.segment_bytes());
    while at < end && !shared.is_keeper_needed() {
        let bytes = (end - at).min(FILL_BYTES as u64);
        // At most FILL_BYTES.
        let part = &zeroes[..usize::try_from(bytes).unwrap_or(FILL_BYTES)];
        file.write_at(&[IoSlice::new(part)], at)?;
        // A piece at a time, so that the keeper is never away for long.
        file.sync()?;
        at += bytes;
    }
    Ok(at > 0)
}
