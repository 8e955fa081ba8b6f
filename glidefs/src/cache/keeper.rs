//! The keeper: everything the log needs and that may block, on a thread of its own.
//!
//! The keeper gives shards prepared segments, seals the segments filled by shards, frees the segments nobody needs, and cleans
//! others to make them free. Does not own appends of requests. Invariant: a segment is freed only when everything appended
//! anywhere before the segment's last extent was replaced is stable; otherwise a power cut could lose both the old copy and the
//! new copy of data covered by a FLUSH.

mod barrier;
mod checkpoint;
mod cleaner;
#[cfg(test)]
mod faults;
mod mapped;
mod prepare;
mod relief;
mod runs;
pub(super) mod sealing;
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::barrier::Barrier;
pub use self::checkpoint::CheckpointPace;
use self::checkpoint::Checkpointer;
use self::cleaner::Cleaner;
use self::mapped::Mapped;
use self::prepare::Preparer;
use self::relief::Relief;
use self::sealing::{Sealing, seal_one, sync, write_footer_again};
use super::handoff::{OWNED_MAX, OWNED_MIN, OWNED_THROUGH, Way};
use crate::cache::log::disk::SegmentFile;
use crate::cache::log::format::THROUGH;
use crate::cache::log::info::SegmentInfo;
use crate::cache::log::life::State;
use crate::cache::log::pressure::RESERVE;
use crate::cache::log::scan::{self, Identity};
use crate::cache::log::seal;
use crate::cache::log::segment::SegmentWriter;
use crate::cache::log::table::Stability;
use crate::cache::shared::Shared;
use crate::cache::sync_hold::SyncHold;
use crate::cache::verify::restore_asked;
use crate::cache::volume::cells;

/// Longest time between two steps.
const PATIENCE: Duration = Duration::from_millis(100);
/// Extents out of use that are forgotten in one step.
const BURIED_EXTENTS: usize = 1 << 16;
/// Most free chunks of leaves that go back to the kernel at a time: 1 MiB.
const RELEASED_CHUNKS: usize = 64;
/// Pause between two times: so 10 MiB a second at most, and most of what is soon in use again stays.
const RELEASE_PAUSE: Duration = Duration::from_millis(100);
/// Pause between two tries of a write refused by the disk.
const DISK_PAUSE: Duration = Duration::from_secs(1);

/// The background work of a cache; one for each cache.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    /// Segments let go by shards, to be sealed.
    closed: Vec<SegmentWriter>,
    /// Sealed segments whose footer or trailer the disk did not take, and the time of the next try.
    without_footer: Vec<SegmentWriter>,
    footers_at: Duration,
    /// When to make the rest of damaged segments stable again in place, because there is no room to move the rest to.
    rescue_at: Duration,
    /// When to give memory of leaves back to the kernel.
    cells_at: Duration,
    barrier: Option<Barrier>,
    cleaner: Cleaner,
    preparer: Preparer,
    checkpointer: Checkpointer,
    relief: Relief,
    mapped: Mapped,
    /// The index of the shard which is next to get a segment: the one behind the shard asked last.
    turn: usize,
}

impl Keeper {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        // The start has taken the checkpoint away.
        let checkpointer = Checkpointer::new(u32::try_from(shared.recovered.segments).unwrap_or(u32::MAX));
        Self {
            shared,
            checkpointer,
            closed: Vec::new(),
            without_footer: Vec::new(),
            footers_at: Duration::ZERO,
            rescue_at: Duration::ZERO,
            cells_at: Duration::ZERO,
            barrier: None,
            cleaner: Cleaner::default(),
            preparer: Preparer::default(),
            relief: Relief::default(),
            mapped: Mapped::default(),
            turn: 0,
        }
    }

    /// Whether a checkpoint is under way.
    #[cfg(test)]
    pub(super) fn makes_checkpoint(&self) -> bool {
        self.checkpointer.is_busy()
    }

    #[cfg(test)]
    pub(super) fn without_checkpoints(&mut self) {
        self.checkpointer.again_at = Duration::MAX;
    }

    /// Works until `stop` is true; checks `stop` at least ten times a second. Then makes the next start quick. Blocks on the disk.
    pub fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            if !self.step() {
                self.shared.signal.wait(PATIENCE);
            }
        }
        self.rest();
    }

    /// Seals what can be sealed, and completes a checkpoint of the index: the next start has little to read.
    pub fn rest(&mut self) {
        self.seal();
        self.checkpointer.complete(&self.shared);
    }

    /// Does some of the work that is due, and returns whether there was any.
    pub fn step(&mut self) -> bool {
        let mut progress = restore_asked(&self.shared);
        progress |= self.prepare();
        progress |= self.shared.bury_some(BURIED_EXTENTS);
        progress |= self.relief.step(&self.shared, BURIED_EXTENTS);
        self.release_cells();
        self.mapped.step(&self.shared);
        progress |= self.prepare();
        progress |= self.seal();
        progress |= self.free();
        let free = self.usable();
        if self.cleaner.step(&self.shared, &mut self.preparer, free) {
            progress = true;
        }
        progress |= self.free();
        progress |= self.prepare();
        // A checkpoint makes no room: whoever waits for room is told so, whether a checkpoint is under way or not.
        progress |= self.publish_pressure(progress);
        if self.preparer.failing {
            self.checkpointer.give_way(&self.shared);
            return progress;
        }
        progress | self.checkpointer.step(&self.shared)
    }

    /// Gives free chunks of leaves back. Counts as no progress: no request waits for it.
    fn release_cells(&mut self) {
        let now = self.shared.clock.now();
        if now >= self.cells_at {
            self.cells_at = now.saturating_add(RELEASE_PAUSE);
            cells::release(RELEASED_CHUNKS);
        }
    }

    /// Gives every shard segments, first those no shard can do without. One segment at a time, shards in turns.
    fn prepare(&mut self) -> bool {
        let plenty = self.shared.watermarks.clean_below.saturating_mul(2);
        let mut progress = false;
        for (owned, spare) in [(OWNED_MIN, RESERVE), (OWNED_MAX, plenty.max(RESERVE))] {
            let ports = &self.shared.ports;
            // The number of ports of which none was served since.
            let mut passed = 0;
            while passed < ports.len() {
                let (shard, port) = (self.turn, &ports[self.turn]);
                self.turn = (shard + 1) % ports.len();
                passed += 1;
                if port.owned(Way::Common) < owned
                    && let Some(segment) =
                        self.preparer.prepare(&self.shared, number_of(shard), spare, Way::Common)
                {
                    port.offer(Way::Common, segment);
                    (progress, passed) = (true, 0);
                    if std::mem::take(&mut self.preparer.filled) {
                        // Filling a file takes long, and no shard waits: other work comes first.
                        return true;
                    }
                }
            }
        }
        progress | self.prepare_through()
    }

    /// Gives segments for writes whose FLUSH is expected to the shards that ask, while enough are free.
    fn prepare_through(&mut self) -> bool {
        let mut progress = false;
        if self.shared.pressure.is_scarce() || self.preparer.failing {
            return false;
        }
        let spare = self.shared.watermarks.kept_from_through(number_of(self.shared.ports.len()));
        for (shard, port) in self.shared.ports.iter().enumerate() {
            if port.is_waiting(Way::Through)
                && port.owned(Way::Through) < OWNED_THROUGH
                && let Some(segment) =
                    self.preparer.prepare(&self.shared, number_of(shard) | THROUGH, spare, Way::Through)
            {
                port.offer(Way::Through, segment);
                progress = true;
                if std::mem::take(&mut self.preparer.filled) {
                    return true;
                }
            }
        }
        progress
    }

    /// Has the shards do without segments that they can do without, while free ones are scarce.
    fn publish_scarcity(&self, is_scarce: bool) {
        let was_scarce = self.shared.pressure.set_scarce(is_scarce);
        for port in self.shared.ports.iter().filter(|_| is_scarce) {
            while let Some(segment) = port.take_back_through() {
                self.shared.close(segment);
            }
            if !was_scarce && port.owned(Way::Through) > 0 {
                port.wake();
            }
        }
    }

    fn seal(&mut self) -> bool {
        self.cleaner.heal(&self.shared);
        self.shared.take_closed(&mut self.closed);
        let mut progress = false;
        let now = self.shared.clock.now();
        let poisoned = |segment: &SegmentWriter| self.shared.table.get(segment.number).is_poisoned();
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
                Sealing::Done => self.checkpointer.sealed = self.checkpointer.sealed.saturating_add(1),
            }
            progress = true;
            // A sync takes long: shards must not run dry during several in a row.
            self.prepare();
            self.release_cells();
        }
        self.write_footers();
        progress
    }

    /// Tries again to write the footers refused by the disk.
    fn write_footers(&mut self) {
        let now = self.shared.clock.now();
        if self.without_footer.is_empty() || now < self.footers_at {
            return;
        }
        self.footers_at = now.saturating_add(DISK_PAUSE);
        self.without_footer.retain(|segment| !write_footer_again(&self.shared, segment));
    }

    /// Frees the segments nobody needs, as soon as the data that replaced theirs is stable.
    fn free(&mut self) -> bool {
        let shared = &self.shared;
        let raised = self.barrier.take().or_else(|| Barrier::raise(&shared.table));
        let Some(mut barrier) = raised else { return false };
        let mut failed = false;
        barrier.needs.retain(|place| match place.stability(&shared.table) {
            Stability::Stable => false,
            Stability::Unsynced => match sync(shared, place.number) {
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
            // The data that was to replace the segments must move first.
            return true;
        }
        if !barrier.needs.is_empty() {
            shared.block_keeper_on_sync();
            self.barrier = Some(barrier);
            return false;
        }
        let mut progress = false;
        for number in barrier.unneeded {
            progress |= release(shared, number, || self.checkpointer.withdraw(shared));
        }
        progress
    }

    /// Whether a segment is free and can be had: while the disk gives no new files, only a segment with a file can.
    fn is_usable(&self, info: &SegmentInfo) -> bool {
        info.state() == State::Free && (!self.preparer.failing || info.file().is_some())
    }

    /// How many segments can be had.
    fn usable(&self) -> u32 {
        let usable = self.shared.table.iter().filter(|(_, info)| self.is_usable(info));
        // At most the table's limit, a `u32`.
        u32::try_from(usable.count()).unwrap_or(u32::MAX)
    }

    /// Tells the shards how full the cache is; `true` when the cache got stuck in this step, which wakes all shards.
    fn publish_pressure(&self, progress: bool) -> bool {
        let shared = &self.shared;
        let free = self.usable();
        let is_scarce = free < shared.watermarks.scarce_below();
        let gives_back = is_scarce && shared.ports.iter().any(|port| port.owned(Way::Through) > 0);
        let idle = !progress && self.barrier.is_none() && self.closed.is_empty() && !gives_back;
        let stuck = idle && (free <= RESERVE || self.preparer.failing);
        let is_clean = |info: &SegmentInfo| {
            info.state() == State::Sealed && info.dirty_extents() == 0 && !info.is_poisoned()
        };
        let can_be_had =
            || shared.table.iter().filter(|(_, info)| self.is_usable(info) || is_clean(info)).count();
        let wants_writeback = shared.has_store() && can_be_had() < shared.watermarks.writeback_below as usize;
        let news = stuck && !shared.pressure.is_stuck();
        shared.pressure.set(shared.watermarks.pause_per_frame(free), stuck, wants_writeback);
        if news {
            // A disk that gives no segment has been reported with the disk's error, and with a store a writeback makes room.
            if !self.preparer.failing && !shared.has_store() {
                tracing::warn!(
                    free_segments = free,
                    segments = shared.table.limit(),
                    "the cache is full of data that is needed: writes wait, or fail, until data is overwritten or discarded, an export is deleted, or cache.size grows"
                );
            }
            for port in &shared.ports {
                port.wake();
            }
        }
        self.publish_scarcity(is_scarce);
        news
    }
}

/// The number of a shard as segment headers have it.
fn number_of(shard: usize) -> u32 {
    // There are more segments than shards, and a segment number is a `u32`.
    u32::try_from(shard).unwrap_or(u32::MAX)
}

/// Frees a segment nobody needs, unless a read or a sync of the segment is still under way. `withdraw` takes the checkpoint away before
/// the file of the segment is put out of use; where `withdraw` answers `false`, the segment stays.
fn release(shared: &Shared, number: u32, withdraw: impl FnOnce() -> bool) -> bool {
    let info = shared.table.get(number);
    if !info.is_unneeded() {
        return false;
    }
    let Some(_hold) = SyncHold::begin(shared, number) else { return false };
    // Asked once: a worker may retire the segment at any time.
    let retired = info.is_retired();
    if retired && !withdraw() {
        return false;
    }
    if let Some(file) = info.file().filter(|_| retired) {
        discard(shared, number, &**file);
    }
    info.end_use();
    shared.heat.forget(number, u64::MAX);
    info.enter(if retired { State::Quarantined } else { State::Free });
    true
}

/// Makes sure that no recovery takes the file of segment number `number`, which nobody needs, for a segment with data: the file
/// is erased, or removed where the disk does not confirm the erasing.
fn discard(shared: &Shared, number: u32, file: &dyn SegmentFile) {
    let frames = shared.table.segment_frames();
    let erased = seal::erase(file, frames);
    file.forget_pages();
    // After a failed sync the page cache may have zeroes where the disk has a segment: the disk is asked.
    let is_blank =
        || matches!(scan::identify(file, shared.table.cache_id(), frames), Ok(Some(Identity::Blank { .. })));
    if erased.is_ok() && is_blank() {
        return;
    }
    if let Err(error) = shared.disk.remove_segment(number) {
        tracing::warn!(
            file = shared.disk.segment_name(number),
            error = &error as &dyn std::error::Error,
            "a segment file out of use can be neither erased nor removed"
        );
    }
}
