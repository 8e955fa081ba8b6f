//! A cache with a log of any size, and a checkpoint of all of it, in files with holes in the place of the data and the footers.
//!
//! Owns the making of the files. The footers are of the right length, and never read.

use std::fmt::{self, Display};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use glidefs::testing::cache::format::{
    CoveredSegment, ExtentRows, Head, Kept, KeptExtent, PageChain, PageKind, SegmentHeader, SegmentKey,
    Trailer, encode_end, encode_rows,
};
use glidefs::testing::units::{ExportId, FRAME_SECTORS, SECTOR_BYTES, SectorRange, Seq};

use super::data_path::open;

const FOOTER_FRAME: u32 = 16_000;
const FOOTER_BYTES: u32 = 64 * 4096;
const BATCH: u64 = 8;

/// The writes of which the log is full: one for each place of an export, in records of 8 writes and a header.
#[derive(Clone, Copy)]
pub struct Writes {
    pub bytes: u64,
    /// In a scattered order, and not in the order of the places.
    pub are_scattered: bool,
}

impl Display for Writes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = if self.are_scattered { "scattered" } else { "ascending" };
        write!(out, "{order} writes of {} KiB", self.bytes >> 10)
    }
}

impl Writes {
    /// Makes a cache in `directory` with `segments` sealed segments full of these writes, and a checkpoint.
    pub fn fill(self, directory: &Path, segments: u32, segment_bytes: u64) {
        drop(open(directory, u64::from(segments) + 8, segment_bytes));
        self.fill_present(directory, segments, segment_bytes);
    }

    /// Makes the cache in `directory`, which nobody has open, one as of [`Self::fill`]. Content that the cache had is gone.
    pub fn fill_present(self, directory: &Path, segments: u32, segment_bytes: u64) {
        for entry in std::fs::read_dir(directory.join("segments")).expect("the cache is there") {
            std::fs::remove_file(entry.expect("the cache is there").path()).expect("a segment");
        }
        let meta = std::fs::read(directory.join("cache.meta")).expect("the cache is there");
        let cache_id: [u8; 16] = meta[16..32].try_into().expect("a superblock");
        let start = u32::from_le_bytes(meta[40..44].try_into().expect("a superblock"));
        let mut pages = Pages {
            file: BufWriter::new(File::create(directory.join("index.ckpt")).expect("a checkpoint")),
            chain: PageChain::new(cache_id),
        };
        pages.append(PageKind::Head, &Head { segment_bytes, start, proves_losses: true }.encode());
        let rows: Vec<_> =
            (0..segments).map(|number| segment(directory, cache_id, number, segment_bytes)).collect();
        encode_rows(&rows).for_each(|body| pages.append(PageKind::Covered, &body));
        let extents = self.each_page(segments, |page| pages.add(page));
        pages.append(PageKind::End, &encode_end(extents));
        pages.file.flush().expect("room for the checkpoint");
    }

    /// Calls `add` with each page of extents, by ascending sector. Returns the number of extents.
    fn each_page(self, segments: u32, mut add: impl FnMut(&ExtentRows)) -> u64 {
        let sectors = self.bytes / SECTOR_BYTES;
        let record_sectors = FRAME_SECTORS + BATCH * sectors;
        let of_segment = u64::from(FOOTER_FRAME - 1) * FRAME_SECTORS / record_sectors * BATCH;
        let count = of_segment * u64::from(segments);
        let mut page = ExtentRows::new(ExportId(1), Seq(u64::MAX / 2));
        for place in 0..count {
            let write = if self.are_scattered { scattered(place, count) } else { place };
            let (number, at) = (write / of_segment, write % of_segment);
            let sector = 2 * FRAME_SECTORS + at / BATCH * FRAME_SECTORS + at * sectors;
            let extent = KeptExtent {
                range: SectorRange::new(place * sectors, sectors).expect("a range"),
                seq: Seq(write + 1),
                number: u32::try_from(number).expect("few segments"),
                content: Kept::Data(u32::try_from(sector).expect("few sectors")),
            };
            if !page.push(&extent) {
                add(&page);
                page = ExtentRows::new(ExportId(1), Seq(u64::MAX / 2));
                assert!(page.push(&extent), "a page has room");
            }
        }
        add(&page);
        count
    }
}

struct Pages {
    file: BufWriter<File>,
    chain: PageChain,
}

impl Pages {
    fn append(&mut self, kind: PageKind, body: &[u8]) {
        let page = self.chain.seal(kind, body).expect("the page fits");
        self.file.write_all(&page).expect("room for the checkpoint");
    }

    fn add(&mut self, rows: &ExtentRows) {
        self.append(PageKind::Extents, rows.body());
    }
}

/// Makes segment `number`, and the segment's row of the checkpoint.
fn segment(directory: &Path, cache_id: [u8; 16], number: u32, segment_bytes: u64) -> CoveredSegment {
    let key = SegmentKey { cache_id, segment_id: u64::from(number) + 1 };
    let header = SegmentHeader { cache_id, segment_id: key.segment_id, shard: 0, segment_bytes };
    let (footer_frame, footer_bytes, footer_crc) = (FOOTER_FRAME, FOOTER_BYTES, number);
    let trailer = Trailer { key, footer_frame, footer_bytes, footer_crc, vital: false };
    let path = directory.join(format!("segments/{number:08}.seg"));
    let file = File::create(path).expect("a segment");
    file.set_len(segment_bytes).expect("a sparse file");
    file.write_all_at(&header.encode(), 0).expect("a header");
    file.write_all_at(&trailer.encode(), segment_bytes - 4096).expect("a trailer");
    CoveredSegment { number, segment_id: key.segment_id, footer_frame, footer_bytes, footer_crc }
}

/// The number below `count` for `number`, each for one `number` below `count`, in no order that is easy to guess: rounds which mix the
/// halves of the number, until the result is below `count`.
fn scattered(number: u64, count: u64) -> u64 {
    let half_bits = (u64::BITS - count.leading_zeros()).div_ceil(2);
    let half = (1 << half_bits) - 1;
    let mut mixed = number;
    loop {
        let (mut left, mut right) = (mixed >> half_bits, mixed & half);
        for round in 1..=4_u64 {
            let mix = (right + round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (left, right) = (right, left ^ ((mix >> 29) & half));
        }
        mixed = left << half_bits | right;
        if mixed < count {
            return mixed;
        }
    }
}
