//! The doubts of a volume: records may be lost, so older content of the volume cannot be relied on.
//!
//! Owns which doubts are known and which one is in force. Does not own where damage is found (`recovery`). Invariants: of the
//! doubts not ended by the store, the one with the highest sequence number is in force; each doubt counts as one extent of the
//! segment with the doubt's entry, so the log keeps the entry.

use super::Volume;
use super::extent::{Backing, Extent, Piece};
use super::store_link::StoreLink;
use crate::cache::log::table::{Refs, SegmentTable};
use crate::units::{SectorRange, Seq};

/// A record of the volume may be lost, of this sequence number or a lower one. The entry in segment `number` says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    pub seq: Seq,
    number: u32,
    /// The sectors of the entry: the first one is the id of the damaged segment, the count is a checksum of the damage found
    /// there.
    evidence: SectorRange,
    /// The export ended before this sector when the export was made larger; no record that may be lost has a later sector.
    pub end: u64,
}

impl Doubt {
    fn is(&self, number: u32, seq: Seq, evidence: SectorRange) -> bool {
        (self.number, self.seq, self.evidence) == (number, seq, evidence)
    }

    /// Counts `extents` more in the segment with the entry.
    fn count(&self, table: &SegmentTable, extents: i32) {
        table.count_refs(Refs { number: self.number, extents, sectors: 0 });
    }

    /// Takes note that the entry has moved to segment `number`.
    fn move_to(&mut self, table: &SegmentTable, number: u32) {
        let old = *self;
        self.number = number;
        self.count(table, 1);
        old.count(table, -1);
    }

    /// `piece`, as far as the piece can be relied on.
    pub fn judge(self, piece: Piece) -> Piece {
        if piece.seq > self.seq {
            return piece;
        }
        Piece { backing: Some(Backing::Damaged { number: self.number }), ..piece }
    }
}

/// All doubts, ended ones included: the log goes on saying which damage was found.
#[derive(Debug, Default)]
pub(super) struct Doubts(Vec<Doubt>);

impl Doubts {
    /// Adds the doubt of sequence number `seq`, whose entry is in segment `number`. A known doubt's entry is in segment `number`
    /// from now on.
    pub fn insert(&mut self, table: &SegmentTable, seq: Seq, evidence: SectorRange, number: u32) {
        let is_same = |known: &&mut Doubt| (known.seq, known.evidence) == (seq, evidence);
        if let Some(known) = self.0.iter_mut().find(is_same) {
            known.move_to(table, number);
            return;
        }
        let doubt = Doubt { seq, number, evidence, end: u64::MAX };
        doubt.count(table, 1);
        self.0.push(doubt);
    }

    /// Notes that the entry of a doubt has moved from segment `from` to segment `to`.
    pub fn relocate(
        &mut self,
        table: &SegmentTable,
        seq: Seq,
        evidence: SectorRange,
        (from, to): (u32, u32),
    ) {
        if let Some(doubt) = self.0.iter_mut().find(|doubt| doubt.is(from, seq, evidence)) {
            doubt.move_to(table, to);
        }
    }

    /// Whether segment `number` has the entry of this doubt.
    pub fn has(&self, number: u32, seq: Seq, evidence: SectorRange) -> bool {
        self.0.iter().any(|doubt| doubt.is(number, seq, evidence))
    }

    /// Whether segment `number` has the entry of a doubt.
    pub fn is_in(&self, number: u32) -> bool {
        self.0.iter().any(|doubt| doubt.number == number)
    }

    /// Whether there is no doubt, not even an ended one.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn extents(&self) -> impl Iterator<Item = Extent> {
        self.0.iter().map(|doubt| {
            let backing = Backing::Doubt { number: doubt.number };
            Extent { range: doubt.evidence, seq: doubt.seq, backing }
        })
    }

    /// The doubt in force in a volume which is in the store up to `stored`.
    pub fn in_force(&self, stored: Seq) -> Option<Doubt> {
        let highest = self.0.iter().max_by_key(|doubt| doubt.seq).copied();
        highest.filter(|doubt| doubt.seq > stored)
    }

    /// Highest sequence number of a doubt, ended or not; 0 without one.
    pub fn highest(&self) -> Seq {
        self.0.iter().map(|doubt| doubt.seq).max().unwrap_or_default()
    }

    /// Whether there is or was a doubt about the damage for which `evidence` stands.
    pub fn has_evidence(&self, evidence: SectorRange) -> bool {
        self.0.iter().any(|doubt| doubt.evidence == evidence)
    }

    /// Notes that the export is made larger than `size_sectors`: doubts not ended by `stored` are about the smaller export.
    pub fn grows_from(&mut self, size_sectors: u64, stored: Seq) {
        for doubt in self.0.iter_mut().filter(|doubt| doubt.seq > stored) {
            doubt.end = doubt.end.min(size_sectors);
        }
    }

    /// Forgets the doubts, except the highest, about segments with ids for which `is_gone` returns true.
    pub fn forget(&mut self, table: &SegmentTable, is_gone: impl Fn(u64) -> bool) {
        let highest = self.highest();
        self.0.retain(|doubt| {
            let stays = doubt.seq == highest || !is_gone(doubt.evidence.start());
            if !stays {
                doubt.count(table, -1);
            }
            stays
        });
    }

    pub fn clear(&mut self, table: &SegmentTable) {
        for doubt in std::mem::take(&mut self.0) {
            doubt.count(table, -1);
        }
    }
}

impl Volume {
    /// Whether a record of the volume may be lost, and the store does not know of the loss.
    pub(in crate::cache) fn is_doubted(&self) -> bool {
        self.lock().layers.is_doubted()
    }

    /// The doubt in force, if any: the last sequence number that cannot be relied on, and the sector before which the doubt
    /// applies.
    pub(in crate::cache) fn doubt(&self) -> Option<(Seq, u64)> {
        // `grow` tells the doubt of a larger size before the link.
        let size_sectors = self.store_link().map_or(u64::MAX, StoreLink::size_sectors);
        self.lock().layers.doubt().map(|(seq, end)| (seq, end.min(size_sectors)))
    }

    /// Last sequence number of the highest doubt, ended or not.
    pub(in crate::cache) fn doubted_to(&self) -> Seq {
        self.lock().layers.doubts.highest()
    }

    /// Whether there is or was a doubt about the segment and the damage for which `evidence` stands.
    pub(in crate::cache) fn has_doubt_of(&self, evidence: SectorRange) -> bool {
        self.lock().layers.doubts.has_evidence(evidence)
    }

    /// Forgets the doubts, except the highest, about segments for which `is_gone` returns true.
    pub(in crate::cache) fn forget_doubts(&self, table: &SegmentTable, is_gone: impl Fn(u64) -> bool) {
        self.lock().layers.doubts.forget(table, is_gone);
    }

    /// Whether the store has a cut which ended a doubt, while it is not written down yet that the doubted data is out of use.
    pub(in crate::cache) fn has_ended_doubt(&self) -> bool {
        let inner = self.lock();
        inner.layers.has_ended_doubt(inner.evicted)
    }

    /// Whether an entry in segment `number` says that a record of the volume may be lost.
    pub(in crate::cache) fn is_doubted_in(&self, number: u32) -> bool {
        self.lock().layers.doubts.is_in(number)
    }
}
