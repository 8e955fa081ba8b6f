//! The time of opening a cache with a GiB of log, beside reading the same bytes: with a checkpoint, sealed, where footers list the
//! entries, and unsealed, where every record is scanned and made stable again; each with one thread that reads the log, and with two.
//! From the page cache, and from the disk (cold).
//!
//! `GLIDEFS_BENCH_LOG_MIB` sets the size of the log. `GLIDEFS_BENCH_WIDE_GIB` has a log of this size opened from a checkpoint as well:
//! sealed segments of writes of 16 KiB, and then of 128 KiB, in files with holes in the place of the data and the footers.
#![allow(clippy::expect_used, reason = "a bench may end")]

mod support;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use glidefs::testing::cache::format::{
    CoveredSegment, ExtentRows, Head, Kept, KeptExtent, PageChain, PageKind, SegmentHeader, SegmentKey,
    Trailer, encode_end, encode_rows,
};
use glidefs::testing::units::{ExportId, SECTOR_BYTES, SectorRange, Seq};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use support::Ratios;
use support::data_path::{DataPath, open, open_with};

const LOG_MIB: u64 = 1024;
const BATCH: u64 = 8;
const BLOCK_BYTES: usize = 16 << 10;
/// Sizes of the writes of which a wide log is full.
const WIDE_WRITE_BYTES: [u64; 2] = [16 << 10, 128 << 10];
const ROUNDS: usize = 3;
/// Threads that read the log.
const HANDS: [usize; 2] = [1, 2];

/// Fills a cache in `directory` with `bytes` of records: distinct blocks, in batches of 8 writes of 16 KiB.
fn fill(directory: &Path, bytes: u64, segment_bytes: u64) {
    let (cache, _) = open(directory, bytes / segment_bytes + 8, segment_bytes);
    let mut path = DataPath::over(cache);
    let mut offset = 0;
    while written_bytes(&path) < bytes {
        for _ in 0..BATCH {
            path.write(offset, BLOCK_BYTES);
            offset += BLOCK_BYTES as u64;
        }
        path.turn();
    }
    path.flush();
    path.settle();
}

fn written_bytes(path: &DataPath) -> u64 {
    path.stats().write_size.snapshot().sum
}

/// Time to read all segment files, whole.
fn read_all(directory: &Path) -> Duration {
    let mut buffer = vec![0; 1 << 20];
    let start = Instant::now();
    for entry in std::fs::read_dir(directory.join("segments")).expect("the cache is there") {
        let file = File::open(entry.expect("the cache is there").path()).expect("a segment");
        let mut offset = 0;
        while let Ok(bytes @ 1..) = file.read_at(&mut buffer, offset) {
            offset += bytes as u64;
        }
    }
    start.elapsed()
}

/// Removes the trailers, so that the segments look as after a crash.
fn unseal(directory: &Path, segment_bytes: u64) {
    for entry in std::fs::read_dir(directory.join("segments")).expect("the cache is there") {
        let path = entry.expect("the cache is there").path();
        let file = File::options().read(true).write(true).open(path).expect("a segment");
        // An open segment has a copy of the first frame in the last frame.
        let mut header = [0; 4096];
        file.read_exact_at(&mut header, 0).expect("a header");
        file.write_all_at(&header, segment_bytes - 4096).expect("a copy of the header");
    }
}

/// Takes the segment files out of the page cache, as after a reboot.
fn evict(directory: &Path) {
    for entry in std::fs::read_dir(directory.join("segments")).expect("the cache is there") {
        let path = entry.expect("the cache is there").path();
        let file = File::open(path).expect("a segment");
        // Only clean pages leave.
        file.sync_all().expect("the disk works");
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).expect("the kernel takes advice");
    }
}

/// Footer and sums of a segment of the wide log: of the right length, and never read.
const FOOTER_FRAME: u32 = 16_000;
const FOOTER_BYTES: u32 = 64 * 4096;

/// Makes a cache in `directory` with `segments` sealed segments full of writes of `write_bytes` in ascending order, and a checkpoint.
fn widen(directory: &Path, segments: u32, segment_bytes: u64, write_bytes: u64) {
    drop(open(directory, u64::from(segments) + 8, segment_bytes));
    let meta = std::fs::read(directory.join("cache.meta")).expect("the cache is there");
    let cache_id: [u8; 16] = meta[16..32].try_into().expect("a superblock");
    let mut file = File::create(directory.join("index.ckpt")).expect("a checkpoint");
    let mut chain = PageChain::new(cache_id);
    let mut append = |kind, body: &[u8]| {
        let page = chain.seal(kind, body).expect("the page fits");
        file.write_all(&page).expect("room for the checkpoint");
    };
    append(PageKind::Head, &Head { segment_bytes, start: 0 }.encode());
    let mut rows = Vec::new();
    for number in 0..segments {
        let key = SegmentKey { cache_id, segment_id: u64::from(number) + 1 };
        let header = SegmentHeader { cache_id, segment_id: key.segment_id, shard: 0, segment_bytes };
        let (footer_frame, footer_bytes, footer_crc) = (FOOTER_FRAME, FOOTER_BYTES, number);
        let trailer = Trailer { key, footer_frame, footer_bytes, footer_crc, vital: false };
        let path = directory.join(format!("segments/{number:08}.seg"));
        let file = File::create(path).expect("a segment");
        file.set_len(segment_bytes).expect("a sparse file");
        file.write_all_at(&header.encode(), 0).expect("a header");
        file.write_all_at(&trailer.encode(), segment_bytes - 4096).expect("a trailer");
        rows.push(CoveredSegment {
            number,
            segment_id: key.segment_id,
            footer_frame,
            footer_bytes,
            footer_crc,
        });
    }
    encode_rows(&rows).for_each(|body| append(PageKind::Covered, &body));
    let sectors = write_bytes / SECTOR_BYTES;
    let last = Seq(u64::MAX / 2);
    let (mut page, mut extents) = (ExtentRows::new(ExportId(1), last), 0_u64);
    // Records of 8 writes and a header, as of `fill`.
    for number in 0..segments {
        let records =
            u32::try_from(u64::from(FOOTER_FRAME - 1) * 8 / (8 * sectors + 8)).expect("few records");
        for write in 0..records * 8 {
            let place = 16 + (write / 8) * 8 + write * u32::try_from(sectors).expect("few sectors");
            let range = SectorRange::new(extents * sectors, sectors).expect("a range");
            extents += 1;
            let extent = KeptExtent { range, seq: Seq(extents), number, content: Kept::Data(place) };
            if !page.push(&extent) {
                append(PageKind::Extents, page.body());
                page = ExtentRows::new(ExportId(1), last);
                assert!(page.push(&extent), "a page has room");
            }
        }
    }
    append(PageKind::Extents, page.body());
    append(PageKind::End, &encode_end(extents));
}

/// Opens a log of `gib` GiB, full of writes of `write_bytes`, from a checkpoint.
#[expect(clippy::cast_precision_loss, reason = "bytes of a file are few")]
fn wide(gib: u64, segment_bytes: u64, write_bytes: u64) {
    let segments = u32::try_from((gib << 30) / segment_bytes).expect("few segments");
    for _ in 0..ROUNDS {
        // A start takes the checkpoint away.
        let directory =
            tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
        widen(directory.path(), segments, segment_bytes, write_bytes);
        let bytes = std::fs::metadata(directory.path().join("index.ckpt")).expect("a checkpoint").len();
        let (cache, found) = open(directory.path(), u64::from(segments) + 8, segment_bytes);
        assert_eq!((found.covered, found.checkpoints_refused), (u64::from(segments), 0));
        println!(
            "wide: {:.3} s for {gib} GiB of writes of {} KiB ({} segments, {} extents, {:.1} bytes of checkpoint each)",
            found.seconds,
            write_bytes >> 10,
            found.covered,
            found.checkpoint_extents,
            bytes as f64 / found.checkpoint_extents as f64
        );
        drop(cache);
    }
}

#[expect(clippy::cast_precision_loss, reason = "mebibytes are few")]
fn main() {
    let mib: u64 = std::env::var("GLIDEFS_BENCH_LOG_MIB")
        .map_or(LOG_MIB, |text| text.parse().expect("GLIDEFS_BENCH_LOG_MIB is a number"));
    let segment_bytes = 64 << 20;
    let mut ratios = Ratios::new("recovery");
    let directory = tempfile::tempdir_in(support::directory()).expect("the bench directory can be written");
    fill(directory.path(), mib << 20, segment_bytes);
    // The next opening seals the last segments, and the orderly stop covers all.
    drop(DataPath::over(open(directory.path(), (mib << 20) / segment_bytes + 8, segment_bytes).0));
    let gib = mib as f64 / 1024.0;
    let path = directory.path().join("index.ckpt");
    let checkpoint = std::fs::read(&path).expect("an orderly stop leaves a checkpoint");
    let cases =
        [("checkpoint", false), ("sealed", false), ("unsealed", false), ("sealed", true), ("unsealed", true)];
    for (name, is_cold) in cases {
        let cold = if is_cold { ", cold" } else { "" };
        let mut samples = HANDS.map(|hands| (hands, Vec::new()));
        for _ in 0..ROUNDS {
            // The machine may be busy with other work, more or less: runs with one thread and with several take turns.
            for (hands, samples) in &mut samples {
                // A start takes the checkpoint away.
                if name == "checkpoint" {
                    std::fs::write(&path, &checkpoint).expect("room for the checkpoint");
                } else {
                    let _ = std::fs::remove_file(&path);
                }
                if name == "unsealed" {
                    unseal(directory.path(), segment_bytes);
                }
                if is_cold {
                    evict(directory.path());
                }
                let floor = read_all(directory.path());
                if is_cold {
                    evict(directory.path());
                }
                let segments = (mib << 20) / segment_bytes + 8;
                let (cache, found) = open_with(directory.path(), segments, segment_bytes, *hands);
                drop(cache);
                println!(
                    "{name}{cold}, {hands} threads: {:.4} s a GiB ({} segments, {} covered, {} by their footer, {} entries, {} extents)",
                    found.seconds / gib,
                    found.segments,
                    found.covered,
                    found.footers,
                    found.entries,
                    found.checkpoint_extents
                );
                samples.push((found.seconds * 1e9 / gib, floor.as_secs_f64() * 1e9 / gib));
            }
        }
        for (hands, samples) in samples {
            let threads = if hands == 1 { String::new() } else { format!("/{hands} threads") };
            ratios.add(&format!("recovery/{name}{cold}/GiB{threads}"), "read of the same bytes", samples);
        }
    }
    ratios.save();
    if let Ok(gib) = std::env::var("GLIDEFS_BENCH_WIDE_GIB") {
        let gib = gib.parse().expect("GLIDEFS_BENCH_WIDE_GIB is a number");
        for write_bytes in WIDE_WRITE_BYTES {
            wide(gib, segment_bytes, write_bytes);
        }
    }
}
