//! Rot, and frames which the disk does not read: one test for each structure on the disk. A READ of stable data
//! returns the data or fails; a READ never returns anything else.
//!
//! Owns the computers to damage, and what makes a start refuse a directory. The rest is in `headers` and `frames`.

mod frames;
mod headers;

use std::sync::Arc;

use glidefs::testing::cache::format::frame_crc;
use glidefs::testing::cache::{
    Cache, CacheError, Directory, IoError, Known, MonotonicClock, OnFull, Options,
};

use super::disk::machine;
use super::rig::{EXPORTS, Found, Opened, Rig, SEGMENT, Written};

const FRAME: u64 = 4096;

/// A computer with sealed segments in the cache, stopped, and the writes in the cache.
fn stopped() -> (Rig, Vec<Written>) {
    let mut rig = Rig::new();
    let mut opened = rig.open().unwrap();
    let all = rig.fill_segments(&mut opened);
    rig.kill(opened);
    (rig, all)
}

/// A computer killed while a segment was filled, the writes in the cache, and the segment. All of the segment is
/// stable, and the last record says so of the others.
fn killed() -> (Rig, Vec<Written>, Found) {
    let mut rig = Rig::new();
    let mut opened = rig.open().unwrap();
    let mut all = Vec::new();
    for number in 0..5 {
        all.push(rig.write(&mut opened, EXPORTS[0], number * 100, 20));
        opened.flush(EXPORTS[0]);
    }
    rig.kill(opened);
    let mut found = rig.survey();
    assert_eq!(found.len(), 1);
    let found = found.remove(0);
    assert!(found.trailer.is_none() && found.records.len() == 5);
    assert_eq!(found.records[4].1.stable_frames, found.records[4].0);
    (rig, all, found)
}

fn open_ends_in(rig: &Rig) -> CacheError {
    let before = rig.image();
    let Err(error) = rig.open() else { panic!("the cache opened") };
    assert_eq!(rig.image(), before, "a refused cache was changed");
    error
}

fn open_has_all(rig: &Rig, all: &[Written]) -> Opened {
    let mut opened = rig.open().unwrap();
    opened.require_all(all);
    assert_eq!(opened.cache.stats().corrupt_frames, 0);
    opened
}

/// Corrects the CRC at the end of the frame at `at`.
fn mend_crc(rig: &Rig, number: u32, at: u64) {
    let at = usize::try_from(at).unwrap();
    machine(&rig.shared).rot(number, |bytes| {
        let frame = &mut bytes[at..at + 4096];
        let crc = frame_crc(&frame[..4092]).to_le_bytes();
        frame[4092..].copy_from_slice(&crc);
    });
}

/// Requires of each write in `all`: all of the write can be read, or none; and the same again after a restart. Counts
/// the writes which can be read.
fn each_is_there_or_fails(rig: &Rig, all: &[Written]) -> usize {
    let mut there = Vec::new();
    for life in 0..2 {
        let mut opened = rig.open().unwrap_or_else(|error| panic!("life {life}: {error}"));
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
        rig.kill(opened);
    }
    assert_eq!(there[0], there[1], "a restart changed what is there");
    there[0]
}

#[test]
fn a_damaged_superblock_is_refused_and_named_and_nothing_is_changed() {
    let (rig, all) = stopped();
    let generation = machine(&rig.shared).generation();
    let intact = machine(&rig.shared).superblock(generation).unwrap().unwrap();
    for at in 0..intact.len() {
        let mut bytes = intact.clone();
        bytes[at] ^= 0x10;
        machine(&rig.shared).set_superblock(bytes);
        let error = open_ends_in(&rig);
        assert!(
            matches!(&error, CacheError::Damaged { file, .. } if file.ends_with("cache.meta")),
            "{at}: {error:?}"
        );
    }
    machine(&rig.shared).set_superblock(intact[..intact.len() / 2].to_vec());
    assert!(matches!(open_ends_in(&rig), CacheError::Damaged { .. }));
    machine(&rig.shared).set_superblock(intact);
    open_has_all(&rig, &all);
}

#[test]
fn a_cache_of_a_newer_format_is_refused_and_nothing_is_changed() {
    let (rig, all) = stopped();
    let generation = machine(&rig.shared).generation();
    let intact = machine(&rig.shared).superblock(generation).unwrap().unwrap();
    let mut bytes = intact.clone();
    bytes[8] = 3;
    let crc_at = bytes.len() - 4;
    let crc = frame_crc(&bytes[..crc_at]).to_le_bytes();
    bytes[crc_at..].copy_from_slice(&crc);
    machine(&rig.shared).set_superblock(bytes);
    assert!(matches!(open_ends_in(&rig), CacheError::TooNew { found: 3, known: 2, .. }));
    machine(&rig.shared).set_superblock(intact);
    open_has_all(&rig, &all);
}

#[test]
fn a_segment_of_a_newer_format_is_refused_and_nothing_is_changed() {
    let (rig, all) = stopped();
    let number = rig.sealed().number;
    let set_version = |version| {
        machine(&rig.shared).rot(number, |bytes| bytes[8] = version);
        mend_crc(&rig, number, 0);
    };
    set_version(2);
    assert!(matches!(open_ends_in(&rig), CacheError::TooNew { found: 2, .. }));
    set_version(1);
    open_has_all(&rig, &all);
}

#[test]
fn a_record_of_a_newer_format_is_refused_and_nothing_is_changed() {
    let (rig, all, found) = killed();
    let at = u64::from(found.records[2].0) * FRAME;
    let set_version = |version| {
        machine(&rig.shared).rot(found.number, |bytes| bytes[usize::try_from(at).unwrap() + 8] = version);
        mend_crc(&rig, found.number, at);
    };
    set_version(3);
    assert!(matches!(open_ends_in(&rig), CacheError::TooNew { found: 3, .. }));
    set_version(2);
    open_has_all(&rig, &all);
}

#[test]
fn a_disk_that_reads_no_segment_at_all_is_refused() {
    let (rig, all) = stopped();
    let broken = rig.copy();
    for number in 0..16 {
        if machine(&broken.shared).bytes_of(number).is_some() {
            (0..u32::try_from(SEGMENT / FRAME).unwrap())
                .for_each(|frame| machine(&broken.shared).lose_frame(number, frame));
        }
    }
    assert!(matches!(open_ends_in(&broken), CacheError::Disk { .. }));
    open_has_all(&rig, &all);
}

#[test]
fn a_directory_in_use_is_refused_until_the_other_daemon_is_gone() {
    let (rig, all) = stopped();
    let opened = rig.open().unwrap();
    assert!(matches!(rig.open(), Err(CacheError::InUse { .. })));
    drop(opened);
    let opened = open_has_all(&rig, &all);
    rig.kill(opened);
    open_has_all(&rig, &all);
}

#[test]
fn a_real_directory_in_use_or_missing_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let open = |path: &std::path::Path| {
        let options =
            Options { size_bytes: 16 * SEGMENT, segment_bytes: SEGMENT, shards: 1, on_full: OnFull::Wait };
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
