//! How many packs a read may have to ask, and how much slower writers must be to keep that number bounded.
//!
//! Owns the figures and their bounds. Does not own slowing anybody down. Invariant: a volume asks for a stop of writes before a
//! read has [`FAN_OUT_MAX`] packs to ask, and before a manifest has no place for another pack.

use super::error::VolumeError;
use super::limits::VOLUME_BYTES_MAX;
use crate::store::format::{BLOCK_BYTES_MAX, ENTRIES_MAX, PACK_BYTES_TARGET, PACKS_MAX};
use crate::units::SECTOR_BYTES;

/// Most packs that a read of one sector may have to ask.
pub const FAN_OUT_MAX: usize = 128;
/// Writers are slowed when a read of one sector may have to ask this many packs.
const SLOW_FROM_FAN_OUT: usize = 64;
/// Writers are stopped when a read of one sector may have to ask this many packs: cuts under way still fit below [`FAN_OUT_MAX`].
const STOP_FROM_FAN_OUT: usize = 120;
/// Writers are slowed when a manifest lists this many packs, and stopped at [`STOP_FROM_PACKS`].
const SLOW_FROM_PACKS: usize = PACKS_MAX / 4 * 3;
const STOP_FROM_PACKS: usize = PACKS_MAX / 16 * 15;

/// An error when merged packs of a volume of `size_sectors` do not fit a manifest.
pub fn check_size(size_sectors: u64) -> Result<(), VolumeError> {
    let size_bytes = size_sectors.saturating_mul(SECTOR_BYTES);
    if size_bytes <= VOLUME_BYTES_MAX { Ok(()) } else { Err(VolumeError::TooLarge { size_bytes }) }
}

/// An error when a manifest that lists `packs` packs has no room for a cut of `data_bytes` in `extents`.
pub(super) fn check_room(packs: usize, data_bytes: u64, extents: usize) -> Result<(), VolumeError> {
    // A pack ends by length, or by the number of entries in its index. A block takes one entry.
    let entries = extents as u64 * 2 + data_bytes / BLOCK_BYTES_MAX as u64;
    let more = 2 + data_bytes / PACK_BYTES_TARGET + entries / (ENTRIES_MAX as u64 / 2);
    let fits = (packs as u64).saturating_add(more) <= PACKS_MAX as u64;
    if fits { Ok(()) } else { Err(VolumeError::TooManyPacks { packs }) }
}

/// How crowded a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Crowd {
    /// Most packs that a read of one sector may have to ask.
    pub fan_out: usize,
    /// Packs in the manifest.
    pub packs: usize,
}

impl Crowd {
    /// How much slower writers must be, in percent: 100 means stopped.
    pub fn percent(self) -> u32 {
        percent(self.fan_out, SLOW_FROM_FAN_OUT, STOP_FROM_FAN_OUT).max(percent(
            self.packs,
            SLOW_FROM_PACKS,
            STOP_FROM_PACKS,
        ))
    }
}

/// Where `figure` is between `from` (0 percent) and `until` (100 percent).
fn percent(figure: usize, from: usize, until: usize) -> u32 {
    let over = figure.saturating_sub(from).saturating_mul(100) / (until - from);
    u32::try_from(over.min(100)).unwrap_or(100)
}
