//! The index of a volume in layers: active data, cuts on their way to the store, and clean data, which the store has.
//!
//! ```text
//!  sequence numbers   1 ······ stored ······ first cut ······ last cut ······ last
//!                     └── clean ──┘└── frozen ──┘└── frozen ────┘└── active ─────┘
//! ```
//!
//! Owns which layer an extent belongs to, and the moves between them. Does not own when a cut is made or carried to the
//! store. Invariants: the sequence number of an extent decides the extent's layer, in whatever order extents come; a frozen layer
//! stays as the cut left the layer until the store has the whole cut or the cut is taken back, and the oldest comes first; only
//! `clean` forgets. A volume without a store has everything in `active`. Once the store knows which content is lost, the doubt ends,
//! and no doubted content is read from here.

mod look_up;

use std::collections::VecDeque;
use std::time::Duration;

use allocator_api2::vec::Vec as CellVec;

pub(in crate::cache) use self::look_up::Looks;
use super::cells::{CELL_BYTES_MAX, Cells};
use super::doubts::{Doubt, Doubts};
use super::extent::{Backing, Extent};
use super::hold::EXTENTS_MAX;
use super::index::Index;
use super::layer::{Dead, Layer};
use super::ranks::Ranks;
use crate::cache::log::table::SegmentTable;
use crate::units::{SectorRange, Seq};

const _: () =
    assert!(EXTENTS_MAX * size_of::<SectorRange>() <= CELL_BYTES_MAX, "lists made under a lock lie in cells");

/// How far a volume's history had come when the marks were last written down. Recovery starts from the marks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeqMarks {
    /// Everything up to here is in the store.
    pub stored: Seq,
    /// Nothing up to here may be read from the log: newer data of the same sectors may have left the log for the store.
    pub evicted: Seq,
}

#[derive(Debug)]
pub(in crate::cache) struct Layers {
    active: Layer,
    /// The cuts not in the store, oldest first. The first one is on the way there.
    frozen: VecDeque<Frozen>,
    clean: Layer,
    /// Last sequence number of the last cut in the store.
    stored: Seq,
    /// Content as old as the highest doubt cannot be relied on, until the store has a newer cut, which says which content is
    /// lost. Doubts are kept afterwards, so the log goes on saying which damage was found.
    pub(super) doubts: Doubts,
}

/// The layer of a sector's newest content not in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cache) enum Dirty {
    Active,
    Cut,
    Not,
}

/// A cut: the content, and the figures of the writes.
#[derive(Debug, Default)]
pub(in crate::cache) struct Frozen {
    pub(in crate::cache::volume) index: Layer,
    /// Last sequence number of the cut. Each cut has a higher one than the cuts before.
    pub last: Seq,
    /// Numbers up to `last` which have neither been appended nor failed.
    pub under_way: u64,
    /// When the oldest of the content was appended.
    pub since: Option<Duration>,
    /// Highest of the cut's failed numbers.
    pub failed: Seq,
}

impl Default for Layers {
    fn default() -> Self {
        Self::new(Seq(0))
    }
}

impl Layers {
    /// Empty layers of a volume which is in the store up to `stored`.
    pub fn new(stored: Seq) -> Self {
        Self {
            active: Layer::default(),
            frozen: VecDeque::new(),
            clean: Layer::clean(),
            stored,
            doubts: Doubts::default(),
        }
    }

    /// Whether there is no content, no cut and no doubt, and the store has everything up to `stored`.
    pub fn is_blank_at(&self, stored: Seq) -> bool {
        self.stored == stored && self.len() == 0 && self.frozen.is_empty() && self.doubts.is_empty()
    }

    pub fn stored(&self) -> Seq {
        self.stored
    }

    /// Makes `active` and `clean` the content of the layers, which are empty. The references are counted by the caller.
    pub fn load(&mut self, active: Index, clean: Index) {
        self.active.load(active);
        self.clean.load(clean);
    }

    /// Last sequence number of the last cut; without a cut, of the data in the store.
    pub fn cut(&self) -> Seq {
        self.frozen.back().map_or(self.stored, |cut| cut.last)
    }

    /// The cuts, oldest first.
    pub fn cuts(&self) -> &VecDeque<Frozen> {
        &self.frozen
    }

    /// The cuts which cover write `seq`, or were made later.
    pub fn cuts_from(&mut self, seq: Seq) -> impl Iterator<Item = &mut Frozen> {
        let first = self.first_cut(seq);
        self.frozen.range_mut(first..)
    }

    /// Whether nothing was written since the last cut.
    pub fn is_active_empty(&self) -> bool {
        self.active.is_empty()
    }

    /// Whether write `seq` is in the store.
    pub fn is_clean(&self, seq: Seq) -> bool {
        seq <= self.stored
    }

    /// Bytes of data in no cut.
    pub fn active_bytes(&self) -> u64 {
        self.active.live_bytes()
    }

    pub fn len(&self) -> usize {
        let frozen: usize = self.frozen.iter().map(|cut| cut.index.len()).sum();
        self.active.len() + frozen + self.clean.len()
    }

    pub fn clean_len(&self) -> usize {
        self.clean.len()
    }

    /// Memory of the indexes of all layers, counted as if no leaf were packed.
    pub fn index_bytes(&self) -> u64 {
        self.each_layer().map(|layer| layer.bytes()).sum()
    }

    /// The part of [`Self::index_bytes`] that packed leaves do not take.
    pub fn index_saved_bytes(&self) -> u64 {
        self.each_layer().map(|layer| layer.saved_bytes()).sum()
    }

    fn each_layer(&self) -> impl Iterator<Item = &Layer> {
        [&self.active, &self.clean].into_iter().chain(self.frozen.iter().map(|cut| &cut.index))
    }

    /// Bytes of data not in the store.
    pub fn dirty_bytes(&self) -> u64 {
        let frozen = self.frozen.iter().map(|cut| cut.index.live_bytes());
        frozen.fold(self.active.live_bytes(), u64::saturating_add)
    }

    /// Bytes of the log with data not in the store, in whole frames.
    pub fn log_bytes(&self) -> u64 {
        let frozen = self.frozen.iter().map(|cut| cut.index.frame_bytes());
        frozen.fold(self.active.frame_bytes(), u64::saturating_add)
    }

    /// Bytes of data in the store, and here as well.
    pub fn clean_bytes(&self) -> u64 {
        self.clean.live_bytes()
    }

    /// Makes `extent` the content of its sectors, except sectors with newer content. For `ranks` see [`Layer::insert`].
    pub fn insert(&mut self, table: &SegmentTable, ranks: Option<&Ranks>, extent: Extent) {
        if let Backing::Doubt { number } = extent.backing {
            return self.doubts.insert(table, extent.seq, extent.range, number);
        }
        let is_clean = self.is_clean(extent.seq);
        let layer = if is_clean { &mut self.clean } else { self.layer_mut(extent.seq) };
        layer.insert(table, ranks, extent);
    }

    /// The layer of write `seq`, which is not in the store.
    fn layer_mut(&mut self, seq: Seq) -> &mut Layer {
        let at = self.first_cut(seq);
        self.frozen.get_mut(at).map_or(&mut self.active, |cut| &mut cut.index)
    }

    /// The place of the first cut which covers write `seq`; behind all cuts if none does, as for nearly every write.
    #[inline]
    fn first_cut(&self, seq: Seq) -> usize {
        if seq > self.cut() { self.frozen.len() } else { self.frozen.partition_point(|cut| cut.last < seq) }
    }

    /// The layers where extents of write `seq`, which is not in the store, may be: while a cut is being taken back, some are in the
    /// layer after the cut already.
    fn layers_of(&self, seq: Seq) -> impl Iterator<Item = &Layer> {
        let at = self.first_cut(seq);
        let cuts = self.frozen.range(at..).map(|cut| &cut.index);
        cuts.chain([&self.active]).take(2)
    }

    fn layers_of_mut(&mut self, seq: Seq) -> impl Iterator<Item = &mut Layer> {
        let at = self.first_cut(seq);
        let cuts = self.frozen.range_mut(at..).map(|cut| &mut cut.index);
        cuts.chain([&mut self.active]).take(2)
    }

    /// The parts of a beginning of `range` which still come from write `seq` in segment `number`, hidden by newer data or not, in
    /// ascending order. Data in the store does not count. Looks at about `limit` extents. Returns the sector to go on from as
    /// well, unless all of `range` was looked at.
    pub fn dirty_parts(
        &self,
        range: SectorRange,
        (seq, number): (Seq, u32),
        limit: usize,
    ) -> (Vec<SectorRange>, Option<u64>) {
        if self.doubts.has(number, seq, range) {
            return (vec![range], None);
        }
        if seq <= self.stored {
            return (Vec::new(), None);
        }
        let (part, next) = beginning(range, self.layers_of(seq), limit);
        let mut found = Vec::new();
        for layer in self.layers_of(seq) {
            layer.parts(part, seq, number, |part| found.push(part));
        }
        found.sort_unstable_by_key(|part| part.start());
        (found, next)
    }

    /// Makes `copy` the place of those of its sectors which still come from the same write in segment `from`, and of no others:
    /// while a cut is thawed, newer extents of the same sectors may have left the layer for the next one. Looks at about `limit`
    /// extents. Returns the sector to go on from, unless all of `copy` was looked at.
    pub fn relocate(&mut self, table: &SegmentTable, copy: Extent, from: u32, limit: usize) -> Option<u64> {
        if let Backing::Doubt { number } = copy.backing {
            self.doubts.relocate(table, copy.seq, copy.range, (from, number));
            return None;
        }
        let (is_dirty, may_be_clean) = (copy.seq > self.stored, copy.seq <= self.cut());
        let dirty = self.layers_of(copy.seq).filter(|_| is_dirty);
        let (range, next) = beginning(copy.range, dirty.chain([&self.clean]), limit);
        let copy = copy.part(range)?;
        if is_dirty {
            self.layers_of_mut(copy.seq).for_each(|layer| relocate(layer, table, copy, from));
        }
        if may_be_clean {
            relocate(&mut self.clean, table, copy, from);
        }
        next
    }

    /// Forgets the clean content of a beginning of `range` for which `is` returns true. Looks at about `limit` extents. Returns the
    /// sector to go on from, unless all of `range` was looked at.
    pub fn evict(
        &mut self,
        table: &SegmentTable,
        range: SectorRange,
        limit: usize,
        is: impl Fn(Backing, Seq) -> bool,
    ) -> Option<u64> {
        let (range, next) = beginning(range, [&self.clean], limit);
        self.clean.remove_if(table, range, is);
        next
    }

    /// Whether a new extent of `range` takes the place of another one at least, so that the index has no more extents than before.
    pub fn is_replaced_by(&self, range: SectorRange) -> bool {
        self.active.has_within(range)
    }

    /// The largest end of a beginning of `range` where write `seq`, not in the store, meets at most `limit` extents of the write's
    /// layer, and the number of these extents.
    pub fn reach(&self, seq: Seq, range: SectorRange, limit: usize) -> (u64, usize) {
        let at = self.first_cut(seq);
        self.frozen.get(at).map_or(&self.active, |cut| &cut.index).reach(range, limit)
    }

    /// Whether a record may be lost without the store's knowledge.
    pub fn is_doubted(&self) -> bool {
        self.doubt_in_force().is_some()
    }

    /// The doubt in force, if any: the last sequence number that cannot be relied on, and the sector before which the doubt
    /// applies.
    pub fn doubt(&self) -> Option<(Seq, u64)> {
        self.doubt_in_force().map(|doubt| (doubt.seq, doubt.end))
    }

    /// Whether a doubt has ended while the log may still have doubted data newer than `evicted`.
    pub fn has_ended_doubt(&self, evicted: Seq) -> bool {
        let highest = self.doubts.highest();
        highest <= self.stored && highest > evicted
    }

    fn doubt_in_force(&self) -> Option<Doubt> {
        self.doubts.in_force(self.stored)
    }

    /// Takes all clean data out of use.
    pub fn forget_clean(&mut self) -> Dead {
        let mut dead = Dead::default();
        dead.add(std::mem::replace(&mut self.clean, Layer::clean()));
        dead
    }

    /// Takes everything out of use.
    pub fn clear(&mut self, table: &SegmentTable) -> Dead {
        self.doubts.clear(table);
        let mut dead = self.forget_clean();
        dead.add(std::mem::take(&mut self.active));
        for cut in std::mem::take(&mut self.frozen) {
            dead.add(cut.index);
        }
        dead
    }

    /// Makes the active layer a cut, with the figures of `cut`.
    pub fn freeze(&mut self, cut: Frozen) {
        debug_assert!(cut.last > self.cut() && cut.index.is_empty(), "the numbers of cuts ascend");
        self.frozen.push_back(Frozen { index: std::mem::take(&mut self.active), ..cut });
    }

    /// Makes extents of the first cut, which is in the store, clean, until about `limit` extents were touched. Returns whether none
    /// is left in the cut. If the cut ends a doubt, all clean data is out of use with the cut's: write down beforehand that nothing
    /// up to the cut may be taken from the log any more.
    pub fn thaw_some(&mut self, table: &SegmentTable, limit: usize) -> (bool, Dead) {
        let mut dead = Dead::default();
        let Some(cut) = self.frozen.front_mut() else { return (true, dead) };
        let is_last = cut.index.move_some(table, &mut self.clean, limit);
        if is_last {
            let last = cut.last;
            debug_assert!(last > self.stored, "the history in the store only grows");
            let doubted = self.is_doubted();
            self.stored = last;
            self.frozen.pop_front();
            if doubted && !self.is_doubted() {
                dead = self.forget_clean();
            }
        }
        (is_last, dead)
    }

    /// Makes extents of the first cut a part of the second, or of the active layer where there is no second, until about `limit`
    /// extents were touched. Returns `true` when none is left: then it is as if the first cut had not been made. The older content
    /// goes to the layer of the newer, and never hides newer content there; so readers find the same content all the time.
    pub fn undo_some(&mut self, table: &SegmentTable, limit: usize) -> bool {
        let Some(mut first) = self.frozen.pop_front() else { return true };
        let joined = self.frozen.front_mut().map_or(&mut self.active, |second| &mut second.index);
        if !first.index.move_some(table, joined, limit) {
            self.frozen.push_front(first);
            return false;
        }
        if let Some(second) = self.frozen.front_mut() {
            second.since = first.since.or(second.since);
            second.failed = second.failed.max(first.failed);
        }
        true
    }

    /// Forgets dirty content up to `mark` from sector `from` on. Looks at about `limit` extents. Returns the sector to go on from,
    /// unless all extents behind were looked at. No reader finds older content in the place: clean content must be gone, and a sector
    /// leaves all dirty layers at once.
    pub fn leave_from(&mut self, table: &SegmentTable, mark: Seq, from: u64, limit: usize) -> Option<u64> {
        debug_assert!(self.clean.is_empty(), "older content must not show up");
        let Self { active, frozen, .. } = self;
        let share = (limit / (1 + frozen.len())).max(1);
        let range = SectorRange::new(from, u64::MAX.saturating_sub(from))?;
        let dirty = frozen.iter().map(|cut| &cut.index).chain([&*active]);
        let (range, next) = beginning(range, dirty, share);
        for layer in frozen.iter_mut().map(|cut| &mut cut.index).chain([active]) {
            layer.remove_if(table, range, |_, seq| seq <= mark);
        }
        next
    }

    /// Notes that everything up to `mark` is in the store, when all such content has left the dirty layers. Returns the highest
    /// failed number of cuts that so came to an end.
    pub fn left(&mut self, mark: Seq) -> Seq {
        debug_assert!(mark > self.stored, "the history in the store only grows");
        self.stored = mark;
        let mut failed = Seq(0);
        while let Some(cut) = self.frozen.front().filter(|cut| cut.last <= mark) {
            debug_assert!(cut.index.is_empty() && cut.under_way == 0, "the cut has no later number");
            failed = failed.max(cut.failed);
            self.frozen.pop_front();
        }
        failed
    }
}

/// The beginning of `range` where none of `layers` has more than `limit` extents, and the sector to go on from.
fn beginning<'a>(
    range: SectorRange,
    layers: impl IntoIterator<Item = &'a Layer>,
    limit: usize,
) -> (SectorRange, Option<u64>) {
    let ends = layers.into_iter().map(|layer| layer.reach(range, limit).0);
    let end = ends.min().unwrap_or(range.end());
    let part = SectorRange::new(range.start(), end.saturating_sub(range.start())).unwrap_or(range);
    (part, Some(end).filter(|end| *end < range.end()))
}

/// Makes `copy` the place of those sectors of `layer` which come from the same write in segment `from`.
fn relocate(layer: &mut Layer, table: &SegmentTable, copy: Extent, from: u32) {
    let mut found = CellVec::new_in(Cells);
    layer.parts(copy.range, copy.seq, from, |part| found.push(part));
    for extent in found.into_iter().filter_map(|part| copy.part(part)) {
        layer.insert(table, None, extent);
    }
}

#[cfg(test)]
mod tests;
