//! How many packs a read may have to ask, and how much slower writers must be for that to stay bounded.
//!
//! Owns the figures and their bounds. Does not own slowing anybody down. Invariant: a volume with [`FAN_OUT_MAX`] packs to ask, or
//! with nearly as many packs as a manifest can list, asks for its writers to be stopped.

use super::error::VolumeError;
use super::limits::VOLUME_BYTES_MAX;
use crate::store::format::{BLOCK_BYTES_MAX, ENTRIES_MAX, PACK_BYTES_TARGET, PACKS_MAX};
use crate::units::SECTOR_BYTES;

/// Most packs that a read of one sector may have to ask.
pub const FAN_OUT_MAX: usize = 128;
/// Writers are slowed from so many packs to ask on.
const SLOW_FROM_FAN_OUT: usize = 64;
/// Writers are stopped from so many packs to ask on: cuts that are under way then still fit below [`FAN_OUT_MAX`].
const STOP_FROM_FAN_OUT: usize = 120;
/// Writers are slowed from so many packs in all on, and stopped when there are so many.
const SLOW_FROM_PACKS: usize = PACKS_MAX / 4 * 3;
const STOP_FROM_PACKS: usize = PACKS_MAX / 16 * 15;

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
