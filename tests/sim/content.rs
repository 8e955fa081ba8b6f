//! Content of the simulation: each sector names the write, the export and the sector.
//!
//! Does not own which write is legal. Invariant: two sectors with different stamps differ, and no part of one can pass
//! for the other.

use std::sync::LazyLock;

use glidefs::testing::units::ExportId;

use super::file::SECTOR;
use super::rng::Rng;

/// Number of a write, never used twice in an episode. 0 stands for zeroes.
pub type Content = u64;

const MAGIC: u64 = 0x51ec_7042_0dd5_eed5;
const HEAD: usize = 32;
const NOISE: usize = 64 * 1024;

static BYTES: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut rng = Rng::new(MAGIC);
    (0..(NOISE + SECTOR) / 8).flat_map(|_| rng.next().to_le_bytes()).collect()
});

/// The bytes behind the head of a sector.
fn body(content: Content, export: u64, sector: u64) -> &'static [u8] {
    let stamp = content.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (export << 48) ^ sector;
    let at = stamp.wrapping_mul(0xd6e8_feb8_6659_fd93) >> 48;
    &BYTES[usize::try_from(at).unwrap()..][..SECTOR - HEAD]
}

/// Fills `buffer` with sectors of `export` from sector `first` on, stamped with write `content`.
pub fn fill(buffer: &mut [u8], content: Content, export: ExportId, first: u64) {
    let export = u64::from(export.0);
    for (sector, bytes) in (first..).zip(buffer.as_chunks_mut::<SECTOR>().0) {
        let (head, rest) = bytes.split_at_mut(HEAD);
        for (place, word) in head.as_chunks_mut::<8>().0.iter_mut().zip([MAGIC, content, export, sector]) {
            *place = word.to_le_bytes();
        }
        rest.copy_from_slice(body(content, export, sector));
    }
}

/// Export and sector in the stamp of `bytes`; `None` without a stamp.
pub fn stamp_of(bytes: &[u8; SECTOR]) -> Option<(ExportId, u64)> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let export = u32::try_from(word(16)).ok()?;
    (word(0) == MAGIC).then_some((ExportId(export), word(24)))
}

/// The content of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Zeroes, or a whole sector of this write, in the right place.
    Write(Content),
    /// A whole sector of another place.
    Misplaced {
        content: Content,
        export: u64,
        sector: u64,
    },
    Garbage,
}

/// Reads the stamp of the sector `sector` of `export`.
pub fn identify(bytes: &[u8; SECTOR], export: ExportId, sector: u64) -> Found {
    if bytes == &[0; SECTOR] {
        return Found::Write(0);
    }
    let (head, rest) = bytes.split_at(HEAD);
    let [magic, content, found_export, found_sector] =
        std::array::from_fn(|index| u64::from_le_bytes(*head[index * 8..].first_chunk().unwrap()));
    if magic != MAGIC || rest != body(content, found_export, found_sector) {
        return Found::Garbage;
    }
    if (found_export, found_sector) == (u64::from(export.0), sector) {
        Found::Write(content)
    } else {
        Found::Misplaced { content, export: found_export, sector: found_sector }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_known_by_its_stamp_and_only_where_it_belongs() {
        let mut bytes = [0; 4 * SECTOR];
        fill(&mut bytes, 7, ExportId(3), 100);
        let mut sector: [u8; SECTOR] = bytes[2 * SECTOR..3 * SECTOR].try_into().unwrap();
        assert_eq!(identify(&sector, ExportId(3), 102), Found::Write(7));
        let misplaced = Found::Misplaced { content: 7, export: 3, sector: 102 };
        assert_eq!(identify(&sector, ExportId(3), 101), misplaced);
        assert_eq!(identify(&sector, ExportId(4), 102), misplaced);
        sector[400] ^= 1;
        assert_eq!(identify(&sector, ExportId(3), 102), Found::Garbage);
        assert_eq!(identify(&[0; SECTOR], ExportId(3), 102), Found::Write(0));
    }
}
