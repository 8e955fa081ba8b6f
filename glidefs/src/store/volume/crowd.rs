//! How many packs a read may have to ask, and how much slower writers must be for that to stay bounded.
//!
//! Owns the figures and their bounds. Does not own slowing anybody down. Invariant: a volume with [`FAN_OUT_MAX`] packs to ask, or
//! with nearly as many packs as a manifest can list, asks for its writers to be stopped.

use std::borrow::Borrow;

use super::VolumeError;
use super::merge::MERGED_BYTES_MAX;
use super::view::overlaps;
use crate::store::format::{BLOCK_BYTES_MAX, ENTRIES_MAX, PACK_BYTES_TARGET, PACKS_MAX, PackRef};
use crate::units::{SECTOR_BYTES, SectorRange};

/// Most packs that a read of one sector may have to ask.
pub const FAN_OUT_MAX: usize = 128;
/// Writers are slowed from so many packs to ask on.
const SLOW_FROM_FAN_OUT: usize = 64;
/// Writers are stopped from so many packs to ask on: cuts that are under way then still fit below [`FAN_OUT_MAX`].
const STOP_FROM_FAN_OUT: usize = 120;
/// Writers are slowed from so many packs in all on, and stopped when there are so many.
const SLOW_FROM_PACKS: usize = PACKS_MAX / 4 * 3;
const STOP_FROM_PACKS: usize = PACKS_MAX / 16 * 15;

/// Largest volume, bytes: merged once, it takes half of what a manifest can list, and the rest is for what is yet to be merged.
pub const VOLUME_BYTES_MAX: u64 = PACKS_MAX as u64 / 2 * MERGED_BYTES_MAX;

/// An error when a volume of `size_sectors` does not fit its manifest.
pub fn check_size(size_sectors: u64) -> Result<(), VolumeError> {
    let size_bytes = size_sectors.saturating_mul(SECTOR_BYTES);
    if size_bytes <= VOLUME_BYTES_MAX { Ok(()) } else { Err(VolumeError::TooLarge { size_bytes }) }
}

/// An error when a manifest has no room for the packs of a cut of `data_bytes` in `extents`.
pub(super) fn check_room(packs: usize, data_bytes: u64, extents: usize) -> Result<(), VolumeError> {
    // Packs end by their length, or by the number of their entries, of which a block has one.
    let entries = extents as u64 * 2 + data_bytes / BLOCK_BYTES_MAX as u64;
    let more = 2 + data_bytes / PACK_BYTES_TARGET + entries / (ENTRIES_MAX as u64 / 2);
    let fits = (packs as u64).saturating_add(more) <= PACKS_MAX as u64;
    if fits { Ok(()) } else { Err(VolumeError::TooManyPacks { packs }) }
}

/// How crowded a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crowd {
    /// Packs that a read of one sector may have to ask, at most.
    pub fan_out: usize,
    /// Packs in all.
    pub packs: usize,
}

impl Crowd {
    /// How much slower writers must be, from 0 to 100: stopped.
    pub fn percent(self) -> u32 {
        percent(self.fan_out, SLOW_FROM_FAN_OUT, STOP_FROM_FAN_OUT).max(percent(
            self.packs,
            SLOW_FROM_PACKS,
            STOP_FROM_PACKS,
        ))
    }
}

/// How far `figure` is from `from`, which counts as 0, to `until`, which counts as 100.
fn percent(figure: usize, from: usize, until: usize) -> u32 {
    let over = figure.saturating_sub(from).saturating_mul(100) / (until - from);
    u32::try_from(over.min(100)).unwrap_or(100)
}

/// Which packs of a manifest have something of a range, without a look at each.
///
/// A list of packs is cut into **rows**: neighbours whose sectors ascend. A sector is in one pack of a row at most, so a row is
/// searched in halves, and there are few rows: merging makes one of many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rows {
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
