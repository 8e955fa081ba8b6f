//! Lists of sectors whose content was lost before the store had the content.
//!
//! Owns the arithmetic of such lists: ascending ranges, none empty, with a gap between two. Does not own who finds the damage
//! (`CutSource`), nor where a list is kept (`Sections`). Invariant: a sector is on the list of a state if and only if the last
//! cut that had the sector had no content for the sector.

use super::types::between;
use crate::units::SectorRange;

/// The list of the state after a cut. `damage` is the list before the cut. Sectors of `written` become whole, then sectors of
/// `lost` become damaged, and the volume ends before sector `end`. `damage` and `written` ascend.
pub(super) fn after(
    damage: &[SectorRange],
    written: impl Iterator<Item = SectorRange>,
    lost: &[SectorRange],
    end: u64,
) -> Vec<SectorRange> {
    let mut left = without(damage, written);
    left.extend_from_slice(lost);
    left.sort_unstable_by_key(|range| range.start());
    let mut joined: Vec<SectorRange> = Vec::new();
    for range in left {
        let range = between(range.start().min(end), range.end().min(end));
        match joined.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if range.start() <= last.end() => {
                *last = between(last.start(), last.end().max(range.end()));
            }
            _ => joined.push(range),
        }
    }
    joined
}

/// Ranges of `damage` without the sectors of `written`; both ascend.
fn without(damage: &[SectorRange], written: impl Iterator<Item = SectorRange>) -> Vec<SectorRange> {
    let mut left = Vec::new();
    let mut written = written.peekable();
    for range in damage {
        let mut at = range.start();
        while let Some(next) = written.peek().copied().filter(|next| next.start() < range.end()) {
            if next.end() > at {
                left.push(between(at, next.start()));
                at = next.end().min(range.end());
            }
            if next.end() > range.end() {
                // The next range of damage may begin in the same write.
                break;
            }
            written.next();
        }
        left.push(between(at, range.end()));
    }
    left.retain(|range| !range.is_empty());
    left
}

/// The first run of sectors in `range` that is on the list `damage`.
pub(super) fn first_in(damage: &[SectorRange], range: SectorRange) -> Option<SectorRange> {
    let at = damage.partition_point(|damaged| damaged.end() <= range.start());
    let found = damage.get(at).filter(|found| found.start() < range.end() && !range.is_empty())?;
    Some(between(found.start().max(range.start()), found.end().min(range.end())))
}

/// Parts of the list `damage` within `sectors`.
pub(super) fn parts_in(damage: &[SectorRange], sectors: std::ops::Range<u64>) -> Vec<SectorRange> {
    let part = |range: &SectorRange| between(range.start().max(sectors.start), range.end().min(sectors.end));
    let met = damage.iter().filter(|range| range.start() < sectors.end && range.end() > sectors.start);
    met.map(part).collect()
}

/// Number of sectors on the list `damage`.
pub(super) fn sectors(damage: &[SectorRange]) -> u64 {
    // Ranges of a list do not overlap, so the sum does not overflow.
    damage.iter().map(|range| range.count()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(list: &[(u64, u64)]) -> Vec<SectorRange> {
        list.iter().map(|(start, count)| SectorRange::new(*start, *count).unwrap()).collect()
    }

    #[test]
    fn a_list_follows_what_is_written_and_lost_sector_by_sector() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (mut damage, mut model) = (Vec::new(), [false; 64]);
        for _ in 0..2000 {
            let (mut written, mut lost, mut at) = (Vec::new(), Vec::new(), 0);
            while at < 60 {
                let (start, count) = (at + random(8), 1 + random(12));
                if start + count > 64 {
                    break;
                }
                // A source may list lost sectors as written or not.
                if random(3) > 0 {
                    written.push((start, count));
                    (start..start + count).for_each(|sector| model[sector as usize] = false);
                }
                if random(4) == 0 {
                    let from = start + random(count);
                    lost.push((from, 1));
                    model[from as usize] = true;
                }
                at = start + count;
            }
            let end = 32 + random(33);
            model[end as usize..].fill(false);
            damage = after(&damage, ranges(&written).into_iter(), &ranges(&lost), end);
            assert!(damage.windows(2).all(|pair| pair[0].end() < pair[1].start()));
            assert_eq!(sectors(&damage), model.iter().filter(|lost| **lost).count() as u64);
            for sector in 0..64 {
                let found = first_in(&damage, SectorRange::new(sector, 1).unwrap()).is_some();
                assert_eq!(found, model[sector as usize], "{sector} of {damage:?}");
            }
        }
    }

    #[test]
    fn the_first_damage_in_a_range_is_found() {
        let damage = ranges(&[(10, 5), (20, 5)]);
        let first = |start, count| first_in(&damage, SectorRange::new(start, count).unwrap());
        assert_eq!(first(0, 10), None);
        assert_eq!(first(12, 100), SectorRange::new(12, 3));
        assert_eq!(first(15, 6), SectorRange::new(20, 1));
        assert_eq!(first(25, 6), None);
        assert_eq!(first(12, 0), None);
    }
}
