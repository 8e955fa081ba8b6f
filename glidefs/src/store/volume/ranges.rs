//! Arithmetic of sector ranges and of the ranges of packs.
//!
//! Owns no state.

use crate::store::format::PackRef;
use crate::units::SectorRange;

/// The sectors from `start` to before `end`; an empty range when `end` is before `start`.
pub(super) fn between(start: u64, end: u64) -> SectorRange {
    let count = end.saturating_sub(start);
    SectorRange::new(start, count).unwrap_or_else(|| unreachable!("the end of a range does not overflow"))
}

/// The range from the lowest to the highest sector of a pack.
pub(super) fn reach(pack: &PackRef) -> SectorRange {
    // `PackRef::check`: the highest sector is below the last possible one.
    between(pack.lowest_sector, pack.highest_sector + 1)
}

pub(super) fn overlaps(pack: &PackRef, range: SectorRange) -> bool {
    pack.lowest_sector < range.end() && range.start() <= pack.highest_sector && !range.is_empty()
}
