//! The sums of a sealed segment: the CRC of every frame, behind the footer, in pages of one frame each. The place of a frame's CRC
//! can be computed, so a READ needs one page of the sums, and no footer.
//!
//! Does not own where the sums begin: [`Trailer::sums_frame`](super::Trailer::sums_frame) does. Invariant: a page proves by itself
//! the segment, the place and the frames that the page is about. The sums repeat the footer: without a whole page, the footer or
//! the record headers have the same CRCs.

use super::{
    BODY_AT, CRC_AT, FORMAT_VERSION, FormatError, Frame, SegmentKey, check_frame, check_key, check_unused,
    field, put, put_crc, put_preamble,
};
use crate::units::FRAME_BYTES;

pub(super) const MAGIC: [u8; 8] = *b"GLIDESUM";

/// Frames of a segment whose CRCs are in one page.
pub const PAGE_SUMS: u32 = 1008;

// Page n of the sums, one frame. CRC i is that of frame PAGE_SUMS × n + i of the segment; zero where the frame is not a data frame
// of a record. Integers are little-endian; `..` are zero.
//
//    0     8    10   16         32           40         44     48   60                    4092
//   ┌─────┬─────┬────┬──────────┬────────────┬──────────┬──────┬────┬─────────────────────┬─────┐
//   │magic│vers.│ .. │ cache id │ segment id │ position │ page │ .. │ PAGE_SUMS × 4 bytes │ CRC │
//   └─────┴─────┴────┴──────────┴────────────┴──────────┴──────┴────┴─────────────────────┴─────┘
const RESERVED_AT: usize = 10;
const POSITION_AT: usize = BODY_AT;
const PAGE_AT: usize = POSITION_AT + 4;
const PAGE_END: usize = PAGE_AT + 4;
const SUM_BYTES: usize = 4;
const SUMS_AT: usize = CRC_AT - PAGE_SUMS as usize * SUM_BYTES;

const _: () = assert!(PAGE_END <= SUMS_AT && CRC_AT < FRAME_BYTES);

/// Number of pages with the CRCs of the first `frames` frames of a segment.
pub fn sums_pages(frames: u32) -> u32 {
    frames.div_ceil(PAGE_SUMS)
}

/// Page number `page` of the sums of segment `key`, for frame `position`; `crcs` are those of the page's frames, as far as the
/// segment has such frames.
pub fn encode_sums(key: &SegmentKey, position: u32, page: u32, crcs: &[u32]) -> Frame {
    let mut frame = [0; FRAME_BYTES];
    put_preamble(&mut frame, MAGIC, key);
    put(&mut frame, POSITION_AT, &position.to_le_bytes());
    put(&mut frame, PAGE_AT, &page.to_le_bytes());
    let (cells, _) = frame[SUMS_AT..CRC_AT].as_chunks_mut::<SUM_BYTES>();
    for (cell, crc) in cells.iter_mut().zip(crcs) {
        *cell = crc.to_le_bytes();
    }
    put_crc(&mut frame);
    frame
}

/// Checks that `frame`, read from frame `position` of segment `key`, is page number `page` of the segment's sums.
pub fn check_sums(frame: &[u8], key: &SegmentKey, position: u32, page: u32) -> Result<(), FormatError> {
    let (frame, found) = check_frame(frame, MAGIC, FORMAT_VERSION)?;
    check_key(&found, key)?;
    check_unused(&frame[RESERVED_AT..super::CACHE_ID_AT])?;
    check_unused(&frame[PAGE_END..SUMS_AT])?;
    let found = u32::from_le_bytes(field(frame, POSITION_AT));
    if found != position {
        return Err(FormatError::Position { found, expected: position });
    }
    if u32::from_le_bytes(field(frame, PAGE_AT)) != page {
        return Err(FormatError::Malformed("another page of the sums"));
    }
    Ok(())
}

/// The segment that `frame`, read from frame `position` of a file, is a page of the sums of, if the frame is such a page.
pub fn sums_key(frame: &[u8], position: u32) -> Option<SegmentKey> {
    let (frame, key) = check_frame(frame, MAGIC, FORMAT_VERSION).ok()?;
    (u32::from_le_bytes(field(frame, POSITION_AT)) == position).then_some(key)
}

/// The CRC of frame `frame` of the segment, in a checked page with CRCs of that part of the segment.
pub fn sum_in(page: &Frame, frame: u32) -> u32 {
    let at = SUMS_AT + (frame % PAGE_SUMS) as usize * SUM_BYTES;
    u32::from_le_bytes(field(page, at))
}

#[cfg(test)]
mod tests {
    use super::super::Trailer;
    use super::*;

    const KEY: SegmentKey = SegmentKey { cache_id: [3; 16], segment_id: 5 };

    #[test]
    fn every_frame_has_one_place_in_one_page() {
        let crcs: Vec<u32> = (0..3000).collect();
        let pages: Vec<Frame> = (0u32..)
            .zip(crcs.chunks(PAGE_SUMS as usize))
            .map(|(page, crcs)| encode_sums(&KEY, 70 + page, page, crcs))
            .collect();
        assert_eq!(pages.len(), sums_pages(3000) as usize);
        for frame in 0..3000 {
            let page = frame / PAGE_SUMS;
            let bytes = &pages[page as usize];
            assert_eq!(check_sums(bytes, &KEY, 70 + page, page), Ok(()));
            assert_eq!(sum_in(bytes, frame), frame);
        }
    }

    #[test]
    fn a_page_of_another_segment_cache_place_or_part_is_refused() {
        let page = encode_sums(&KEY, 70, 2, &[1, 2, 3]);
        let check = |key: &SegmentKey, position, number| check_sums(&page, key, position, number);
        for key in [SegmentKey { cache_id: [4; 16], ..KEY }, SegmentKey { segment_id: 6, ..KEY }] {
            assert_eq!(check(&key, 70, 2), Err(FormatError::OtherSegment { found: 5 }));
        }
        assert_eq!(check(&KEY, 71, 2), Err(FormatError::Position { found: 70, expected: 71 }));
        assert_eq!([70, 71].map(|position| sums_key(&page, position)), [Some(KEY), None]);
        assert!(matches!(check(&KEY, 70, 1), Err(FormatError::Malformed(_))));
        assert_eq!(check(&KEY, 70, 2), Ok(()));
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_page_is_noticed() {
        let mut page = encode_sums(&KEY, 70, 2, &[1, 2, 3]);
        for bit in 0..FRAME_BYTES * 8 {
            page[bit / 8] ^= 1 << (bit % 8);
            assert!(check_sums(&page, &KEY, 70, 2).is_err() && sums_key(&page, 70).is_none(), "bit {bit}");
            page[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn sums_lie_between_footer_and_trailer_or_nowhere() {
        let trailer =
            Trailer { key: KEY, footer_frame: 1009, footer_bytes: 8192, footer_crc: 0, vital: false };
        assert_eq!(trailer.sums_frame(1014), Some(1011));
        assert_eq!(trailer.sums_frame(1013), None);
        assert_eq!(Trailer { footer_frame: u32::MAX, ..trailer }.sums_frame(u32::MAX), None);
    }
}
