//! Rot, and frames which the disk does not read: one test for each structure on the disk. A READ of stable data
//! returns the data or fails; a READ never returns anything else.
//!
//! Owns the computers to damage, and what makes a start refuse a directory. The rest is in `headers`, `frames` and `sums`.

mod frames;
mod headers;
mod sums;

use std::sync::Arc;

use glidefs::testing::cache::format::frame_crc;
use glidefs::testing::cache::{
    Budgets, Cache, CacheError, Directory, IoError, Known, MonotonicClock, OnFull, Options,
};

use super::calm::{CalmComputer, EXPORTS, Found, Opened, SEGMENT, Written};
use super::disk::machine;

const FRAME: u64 = 4096;

/// A computer with sealed segments in the cache, stopped, and the writes in the cache.
fn stopped() -> (CalmComputer, Vec<Written>) {
    let mut computer = CalmComputer::new();
    let mut opened = computer.open().unwrap();
    let all = computer.fill_segments(&mut opened);
    computer.kill(opened);
    (computer, all)
}

/// A computer killed while a segment was filled, the writes in the cache, and the segment. All of the segment is
/// stable, and the last record says so of the others.
fn killed() -> (CalmComputer, Vec<Written>, Found) {
    let mut computer = CalmComputer::new();
    let mut opened = computer.open().unwrap();
    let mut all = Vec::new();
    for number in 0..5 {
        all.push(computer.write(&mut opened, EXPORTS[0], number * 100, 20));
        opened.flush(EXPORTS[0]);
    }
    computer.kill(opened);
    let mut found = computer.survey();
    assert_eq!(found.len(), 1);
    let found = found.remove(0);
    assert!(found.trailer.is_none() && found.records.len() == 5);
    assert_eq!(found.records[4].record.stable_frames, found.records[4].frame);
    (computer, all, found)
}

fn open_ends_in(computer: &CalmComputer) -> CacheError {
    let before = computer.image();
    let Err(error) = computer.open() else { panic!("the cache opened") };
    assert_eq!(computer.image(), before, "a refused cache was changed");
    error
}

fn open_has_all(computer: &CalmComputer, all: &[Written]) -> Opened {
    let mut opened = computer.open().unwrap();
    opened.require_all(all);
    assert_eq!(opened.cache.stats().corrupt_frames, 0);
    opened
}

/// Corrects the CRC at the end of the frame at `at`.
fn mend_crc(computer: &CalmComputer, number: u32, at: u64) {
    let at = usize::try_from(at).unwrap();
    machine(&computer.shared).rot(number, |bytes| {
        let frame = &mut bytes[at..at + 4096];
        let crc = frame_crc(&frame[..4092]).to_le_bytes();
        frame[4092..].copy_from_slice(&crc);
    });
}

/// Requires of each write in `all`: all of the write can be read, or none; and the same again after a restart. Counts
/// the writes which can be read.
fn each_is_there_or_fails(computer: &CalmComputer, all: &[Written]) -> usize {
    let mut there = Vec::new();
    for life in 0..2 {
        let mut opened = computer.open().unwrap_or_else(|error| panic!("life {life}: {error}"));
        opened.keep();
        there.push(
            all.iter()
                .filter(|written| {
                    match opened.reads_back(written, written.range.start(), written.range.count()) {
                        Ok(right) => {
                            assert!(right, "life {life}: {written:?} reads as something else");
                            true
                        }
                        Err(IoError::Damaged) => false,
                        Err(error) => panic!("life {life}: {error} at {written:?}"),
                    }
                })
                .count(),
        );
        computer.kill(opened);
    }
    assert_eq!(there[0], there[1], "a restart changed what is there");
    there[0]
}

#[test]
fn a_damaged_superblock_is_refused_and_named_and_nothing_is_changed() {
    let (computer, all) = stopped();
    let generation = machine(&computer.shared).generation();
    let intact = machine(&computer.shared).superblock(generation).unwrap().unwrap();
    for at in 0..intact.len() {
        let mut bytes = intact.clone();
        bytes[at] ^= 0x10;
        machine(&computer.shared).set_superblock(bytes);
        let error = open_ends_in(&computer);
        assert!(
            matches!(&error, CacheError::Damaged { file, .. } if file.ends_with("cache.meta")),
            "{at}: {error:?}"
        );
    }
    machine(&computer.shared).set_superblock(intact[..intact.len() / 2].to_vec());
    assert!(matches!(open_ends_in(&computer), CacheError::Damaged { .. }));
    machine(&computer.shared).set_superblock(intact);
    open_has_all(&computer, &all);
}

#[test]
fn a_cache_of_a_newer_format_is_refused_and_nothing_is_changed() {
    let (computer, all) = stopped();
    let generation = machine(&computer.shared).generation();
    let intact = machine(&computer.shared).superblock(generation).unwrap().unwrap();
    let mut bytes = intact.clone();
    bytes[8] = 3;
    let crc_at = bytes.len() - 4;
    let crc = frame_crc(&bytes[..crc_at]).to_le_bytes();
    bytes[crc_at..].copy_from_slice(&crc);
    machine(&computer.shared).set_superblock(bytes);
    assert!(matches!(open_ends_in(&computer), CacheError::TooNew { found: 3, known: 2, .. }));
    machine(&computer.shared).set_superblock(intact);
    open_has_all(&computer, &all);
}

#[test]
fn a_segment_of_a_newer_format_is_refused_and_nothing_is_changed() {
    let (computer, all) = stopped();
    let number = computer.sealed().number;
    let set_version = |version| {
        machine(&computer.shared).rot(number, |bytes| bytes[8] = version);
        mend_crc(&computer, number, 0);
    };
    set_version(2);
    assert!(matches!(open_ends_in(&computer), CacheError::TooNew { found: 2, .. }));
    set_version(1);
    open_has_all(&computer, &all);
}

#[test]
fn a_record_of_a_newer_format_is_refused_and_nothing_is_changed() {
    let (computer, all, found) = killed();
    let at = u64::from(found.records[2].frame) * FRAME;
    let set_version = |version| {
        machine(&computer.shared)
            .rot(found.number, |bytes| bytes[usize::try_from(at).unwrap() + 8] = version);
        mend_crc(&computer, found.number, at);
    };
    set_version(3);
    assert!(matches!(open_ends_in(&computer), CacheError::TooNew { found: 3, .. }));
    set_version(2);
    open_has_all(&computer, &all);
}

#[test]
fn a_disk_that_reads_no_segment_at_all_is_refused() {
    let (computer, all) = stopped();
    let broken = computer.copy();
    for number in 0..16 {
        if machine(&broken.shared).bytes_of(number).is_some() {
            (0..u32::try_from(SEGMENT / FRAME).unwrap())
                .for_each(|frame| machine(&broken.shared).lose_frame(number, frame));
        }
    }
    assert!(matches!(open_ends_in(&broken), CacheError::Disk { .. }));
    open_has_all(&computer, &all);
}

#[test]
fn a_directory_in_use_is_refused_until_the_other_daemon_is_gone() {
    let (computer, all) = stopped();
    let opened = computer.open().unwrap();
    assert!(matches!(computer.open(), Err(CacheError::InUse { .. })));
    drop(opened);
    let opened = open_has_all(&computer, &all);
    computer.kill(opened);
    open_has_all(&computer, &all);
}

#[test]
fn a_real_directory_in_use_or_missing_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &std::path::Path| {
        let options = Options {
            size_bytes: 16 * SEGMENT,
            segment_bytes: SEGMENT,
            shards: 1,
            on_full: OnFull::Wait,
            checksums_bytes_max: 0,
            mapped_bytes_max: 0,
            budgets: Budgets::default(),
            hands: 1,
        };
        Cache::open(
            Arc::new(Directory::new(path)),
            Arc::new(MonotonicClock::default()),
            options,
            Known::local(&EXPORTS),
        )
    };
    let opened = open(directory.path()).unwrap();
    assert!(matches!(open(directory.path()), Err(CacheError::InUse { .. })));
    drop(opened);
    open(directory.path()).unwrap();
    let missing = directory.path().join("missing");
    let Err(error) = open(&missing) else { panic!("a missing directory was opened") };
    assert!(matches!(error, CacheError::DirectoryMissing { .. }));
    assert!(error.to_string().contains("missing"));
}
