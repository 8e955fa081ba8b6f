//! Which packs of a manifest have something of a range, without a look at each pack.
//!
//! Owns the search, and the questions that a manifest in memory answers without a request. Does not own how long the manifest stays
//! in memory (`metadata`).

use std::borrow::Borrow;
use std::sync::Arc;

use crate::store::format::{Manifest, PackRef};
use crate::store::volume::crowd::Crowd;
use crate::store::volume::damage;
use crate::store::volume::error::VolumeError;
use crate::store::volume::types::overlaps;
use crate::units::SectorRange;

/// The packs of a manifest, as **rows**: neighbours in the list whose sectors ascend.
///
/// A sector is in at most one pack of a row, so a row is searched by bisection. There are few rows, because a merge makes one row
/// of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store::volume) struct Rows {
    /// Position of the first pack of each row, ascending.
    starts: Vec<u32>,
    packs: u32,
}

impl Rows {
    pub fn of(packs: &[PackRef]) -> Self {
        let begins = |at: usize| at == 0 || packs[at].lowest_sector <= packs[at - 1].highest_sector;
        // PACKS_MAX fits into 32 bits.
        let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let starts = (0..packs.len()).filter(|at| begins(*at)).map(number).collect();
        Self { starts, packs: number(packs.len()) }
    }

    /// Number of packs and of rows: each row adds at most one pack that a read of one sector has to ask.
    pub fn crowd(&self) -> Crowd {
        Crowd { fan_out: self.starts.len(), packs: self.packs as usize }
    }

    /// Memory of the rows, bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&self.starts[..])
    }

    /// Those of `packs` that reach into `range`, newest first. The rows were made of `packs`.
    pub fn reaching<'a, P: Borrow<PackRef>>(
        &'a self,
        packs: &'a [P],
        range: SectorRange,
    ) -> impl Iterator<Item = &'a P> {
        self.rows(packs).flat_map(move |row| {
            let first = row.partition_point(|pack| pack.borrow().highest_sector < range.start());
            row[first..].iter().take_while(move |pack| overlaps((*pack).borrow(), range))
        })
    }

    /// The lowest sector above `at` at which one of `packs` begins. The rows were made of `packs`.
    pub fn next_begin<P: Borrow<PackRef>>(&self, packs: &[P], at: u64) -> Option<u64> {
        let begin = |row: &[P]| {
            let next = row.get(row.partition_point(|pack| pack.borrow().lowest_sector <= at))?;
            Some(next.borrow().lowest_sector)
        };
        self.rows(packs).filter_map(begin).min()
    }

    /// Most entries of the indexes of one pack of each row together, of which up to `of_each` count. The rows were made of `packs`.
    pub fn entries_max<P: Borrow<PackRef>>(&self, packs: &[P], of_each: u64) -> u64 {
        let longest = |row: &[P]| row.iter().map(|pack| u64::from(pack.borrow().entries).min(of_each)).max();
        self.rows(packs).filter_map(longest).fold(0, u64::saturating_add)
    }

    fn rows<'a, P>(&'a self, packs: &'a [P]) -> impl Iterator<Item = &'a [P]> {
        let ends = self.starts.iter().skip(1).copied().chain([self.packs]);
        let row = |(start, end): (&u32, u32)| packs.get(*start as usize..end as usize).unwrap_or_default();
        self.starts.iter().zip(ends).map(row)
    }
}

/// A manifest in memory, with the rows of its packs.
#[derive(Debug)]
pub(in crate::store::volume) struct LoadedManifest {
    pub manifest: Arc<Manifest>,
    pub rows: Rows,
}

impl LoadedManifest {
    pub fn of(manifest: Arc<Manifest>) -> Self {
        Self { rows: Rows::of(&manifest.packs), manifest }
    }

    /// Whether a read of `range` may find something other than zeroes.
    pub fn covers(&self, range: SectorRange) -> bool {
        self.reaching(range).next().is_some() || self.check(range).is_err()
    }

    /// An error when a sector of `range` is damaged.
    pub fn check(&self, range: SectorRange) -> Result<(), VolumeError> {
        let found = damage::first_in(&self.manifest.sections.damaged, range);
        found.map_or(Ok(()), |range| Err(VolumeError::Damaged { range }))
    }

    /// The packs that may have something of `range`, newest first.
    pub fn reaching(&self, range: SectorRange) -> impl Iterator<Item = &PackRef> {
        self.rows.reaching(&self.manifest.packs, range)
    }
}
