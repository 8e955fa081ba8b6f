//! Which packs of a manifest have something of a range, without a look at each pack.
//!
//! Owns the search. Does not own the list of packs, which every call gets anew.

use std::borrow::Borrow;

use crate::store::format::PackRef;
use crate::store::volume::crowd::Crowd;
use crate::store::volume::ranges::overlaps;
use crate::units::SectorRange;

/// Which packs of a manifest have something of a range, without a look at each.
///
/// A list of packs is cut into **rows**: neighbours whose sectors ascend. A sector is in one pack of a row at most, so a row is
/// searched in halves, and there are few rows: merging makes one of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::store::volume) struct Rows {
    /// Where each row begins, ascending.
    starts: Vec<u32>,
    packs: u32,
}

impl Rows {
    pub fn of(packs: &[PackRef]) -> Self {
        let begins = |at: usize| at == 0 || packs[at].lowest_sector <= packs[at - 1].highest_sector;
        // PACKS_MAX fits.
        let number = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let starts = (0..packs.len()).filter(|at| begins(*at)).map(number).collect();
        Self { starts, packs: number(packs.len()) }
    }

    /// Packs that a sector may be in, at most.
    pub fn crowd(&self) -> Crowd {
        Crowd { fan_out: self.starts.len(), packs: self.packs as usize }
    }

    /// Memory they take, bytes.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&self.starts[..])
    }

    /// Those of `packs`, which these rows were made of, that reach into `range`: newest first.
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

    /// The lowest sector behind `at` where one of `packs`, which these rows were made of, begins.
    pub fn next_begin<P: Borrow<PackRef>>(&self, packs: &[P], at: u64) -> Option<u64> {
        let begin = |row: &[P]| {
            let next = row.get(row.partition_point(|pack| pack.borrow().lowest_sector <= at))?;
            Some(next.borrow().lowest_sector)
        };
        self.rows(packs).filter_map(begin).min()
    }

    fn rows<'a, P>(&'a self, packs: &'a [P]) -> impl Iterator<Item = &'a [P]> {
        let ends = self.starts.iter().skip(1).copied().chain([self.packs]);
        let row = |(start, end): (&u32, u32)| packs.get(*start as usize..end as usize).unwrap_or_default();
        self.starts.iter().zip(ends).map(row)
    }
}
