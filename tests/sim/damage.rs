//! Rot, and frames which the disk does not read: one test for each structure on the disk. A READ of stable data
//! returns the data or fails; a READ never returns anything else.

use glidefs::cache::format::{EntryKind, frame_crc};
use glidefs::cache::{Cache, CacheError, Directory, IoError, Known, MonotonicClock, OnFull, Options};
use glidefs::units::FRAME_SECTORS;

use std::sync::Arc;

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
fn mend_crc(rig: &Rig, slot: u32, at: u64) {
    let at = usize::try_from(at).unwrap();
    machine(&rig.shared).rot(slot, |bytes| {
        let frame = &mut bytes[at..at + 4096];
        let crc = frame_crc(&frame[..4092]).to_le_bytes();
        frame[4092..].copy_from_slice(&crc);
    });
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
    let slot = rig.sealed().slot;
    let set_version = |version| {
        machine(&rig.shared).rot(slot, |bytes| bytes[8] = version);
        mend_crc(&rig, slot, 0);
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
        machine(&rig.shared).rot(found.slot, |bytes| bytes[usize::try_from(at).unwrap() + 8] = version);
        mend_crc(&rig, found.slot, at);
    };
    set_version(3);
    assert!(matches!(open_ends_in(&rig), CacheError::TooNew { found: 3, .. }));
    set_version(2);
    open_has_all(&rig, &all);
}

#[test]
fn damage_to_a_segment_header_loses_nothing() {
    let (rig, all) = stopped();
    let slot = rig.sealed().slot;
    for at in [0, 8, 12, 16, 32, 40, 100, 4095] {
        rig.flip(slot, at);
        let opened = open_has_all(&rig, &all);
        rig.kill(opened);
        rig.flip(slot, at);
    }
}

#[test]
fn damage_to_segment_header_and_trailer_loses_nothing() {
    let (rig, all) = stopped();
    let slot = rig.sealed().slot;
    rig.flip(slot, 20);
    rig.flip(slot, SEGMENT - FRAME + 20);
    let opened = open_has_all(&rig, &all);
    rig.kill(opened);
    open_has_all(&rig, &all);
}

#[test]
fn damage_to_a_record_header_of_a_sealed_segment_loses_nothing() {
    let (rig, all) = stopped();
    let found = rig.sealed();
    for (frame, _) in &found.records {
        rig.flip(found.slot, u64::from(*frame) * FRAME + u64::from(*frame) * 7 % FRAME);
    }
    open_has_all(&rig, &all);
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
fn a_record_header_of_an_unsealed_segment_is_made_up_for_by_the_next_one() {
    for record in 0..4 {
        for byte in [0, 8, 12, 44, 60, 4095] {
            let (rig, all, found) = killed();
            rig.flip(found.slot, u64::from(found.records[record].0) * FRAME + byte);
            let opened = open_has_all(&rig, &all);
            assert_eq!((opened.recovered.holes, opened.recovered.bad_footers), (0, 1));
            rig.kill(opened);
            open_has_all(&rig, &all);
        }
    }
}

/// As [`killed`], with `records` records, and with data of another export in sealed segments only.
fn killed_beside_another(records: usize) -> (Rig, Vec<Written>, Written, Found) {
    let mut rig = Rig::new();
    let mut opened = rig.open().unwrap();
    let other = rig.write(&mut opened, EXPORTS[1], 0, 50);
    opened.flush(EXPORTS[1]);
    rig.kill(opened);
    let mut opened = rig.open().unwrap();
    let mut all = Vec::new();
    for number in 0..records {
        all.push(rig.write(&mut opened, EXPORTS[0], number as u64 * 100, 20));
        opened.flush(EXPORTS[0]);
    }
    rig.kill(opened);
    let found = rig.survey().into_iter().find(|found| found.trailer.is_none()).unwrap();
    assert_eq!(found.records.len(), records);
    (rig, all, other, found)
}

#[test]
fn a_record_header_that_cannot_be_read_costs_an_export_without_data_there_nothing() {
    for record in 0..5 {
        let (mut rig, all, other, found) = killed_beside_another(5);
        machine(&rig.shared).lose_frame(found.slot, found.records[record].0);
        for life in 0..3 {
            let mut opened = rig.open().unwrap();
            opened.require_all([&other]);
            assert_eq!(opened.recovered.doubted, u64::from(record == 4 && life == 0));
            if record < 4 {
                opened.require_all(&all);
            }
            rig.kill(opened);
        }
        // The content of the last header is not known, and writing heals the sectors.
        let mut opened = rig.open().unwrap();
        let again = rig.write(&mut opened, EXPORTS[0], all[0].range.start(), all[0].range.count());
        opened.flush(EXPORTS[0]);
        rig.kill(opened);
        let mut opened = rig.open().unwrap();
        opened.require_all([&again, &other]);
        if record == 4 {
            assert_eq!(opened.reads_back(&all[4], all[4].range.start(), 8), Err(IoError::Damaged));
        }
    }
}

#[test]
fn an_announcement_that_cannot_be_read_costs_nothing_and_with_the_header_behind_it_it_may_be_anyones() {
    for (records, frames, doubted) in [(1, 1, 0), (2, 2, 0), (1, 2, 2)] {
        let (rig, all, other, found) = killed_beside_another(records);
        let first = found.records[0].0;
        (first - 1..first - 1 + frames).for_each(|frame| machine(&rig.shared).lose_frame(found.slot, frame));
        let mut opened = rig.open().unwrap();
        assert_eq!(opened.recovered.doubted, doubted);
        if doubted == 0 {
            opened.require_all(&all);
            opened.require_all([&other]);
        } else {
            assert_eq!(opened.reads_back(&other, 0, 50), Err(IoError::Damaged));
        }
    }
}

#[test]
fn a_segment_of_the_version_before_is_read_and_a_header_lost_in_it_may_be_anyones() {
    for record in [None, Some(2)] {
        let (rig, all, other, found) = killed_beside_another(5);
        machine(&rig.shared).rot(found.slot, |bytes| {
            for (position, record) in &found.records {
                let at = usize::try_from(u64::from(*position) * FRAME).unwrap();
                let frame = &mut bytes[at..at + 4096];
                let crcs_at = 4092 - 4 * record.crcs.len();
                frame[8] = 1;
                frame[14..16].fill(0);
                frame[48 + 28 * record.entries.len()..crcs_at].fill(0);
            }
            // Announcements came with the version.
            let at = usize::try_from(u64::from(found.records[0].0) * FRAME).unwrap();
            bytes.copy_within(at.., at - 4096);
        });
        for (position, _) in &found.records {
            let at = u64::from(position - 1) * FRAME;
            machine(&rig.shared).rot(found.slot, |bytes| {
                let at = usize::try_from(at).unwrap();
                bytes[at + 40] -= 1;
                bytes[at + 44] = bytes[at + 44].saturating_sub(1);
            });
            mend_crc(&rig, found.slot, at);
        }
        if let Some(record) = record {
            machine(&rig.shared).lose_frame(found.slot, found.records[record].0 - 1);
        }
        let mut opened = rig.open().unwrap();
        assert_eq!(opened.recovered.doubted, record.map_or(0, |_| 2));
        match record {
            None => {
                opened.require_all(&all);
                opened.require_all([&other]);
            }
            Some(record) => {
                opened.require_all(&all[record + 1..]);
                assert_eq!(opened.reads_back(&other, 0, 50), Err(IoError::Damaged));
            }
        }
    }
}

#[test]
fn a_damaged_footer_is_made_up_for_by_a_scan_and_counted() {
    let (rig, all) = stopped();
    let found = rig.sealed();
    let at = found.trailer.unwrap().footer_offset_bytes();
    // The head of the frame, the first record's entries, and the padding.
    for byte in (0..120).chain([FRAME - 1]) {
        rig.flip(found.slot, at + byte);
        let opened = open_has_all(&rig, &all);
        assert_eq!((opened.recovered.bad_footers, opened.cache.stats().bad_footers), (1, 1));
        rig.kill(opened);
        rig.flip(found.slot, at + byte);
    }
}

#[test]
fn a_damaged_trailer_is_made_up_for_by_a_scan() {
    for byte in [0, 8, 12, 16, 32, 40, 44, 200, 4095] {
        let (rig, all) = stopped();
        let found = rig.sealed();
        rig.flip(found.slot, SEGMENT - FRAME + byte);
        let opened = open_has_all(&rig, &all);
        assert!(opened.recovered.scans >= 1);
        rig.kill(opened);
        // The scan has mended the segment for the next start.
        open_has_all(&rig, &all);
    }
}

#[test]
fn damage_to_a_footer_and_a_record_header_is_made_up_for_by_the_next_record() {
    let (rig, all) = stopped();
    let found = rig.sealed();
    let (position, _) = &found.records[found.records.len() / 2];
    rig.flip(found.slot, found.trailer.unwrap().footer_offset_bytes() + 50);
    rig.flip(found.slot, u64::from(*position) * FRAME + 50);
    let opened = open_has_all(&rig, &all);
    assert_eq!(opened.recovered.bad_footers, 2);
}

#[test]
fn damage_to_a_footer_and_the_last_record_header_fails_what_may_be_older_and_nothing_newer() {
    let (rig, all) = stopped();
    let found = rig.sealed();
    let (position, record) = found.records.last().unwrap();
    rig.flip(found.slot, found.trailer.unwrap().footer_offset_bytes() + 50);
    rig.flip(found.slot, u64::from(*position) * FRAME + 50);
    let lost = all.iter().position(|written| {
        record.entries.iter().any(|entry| (entry.export, entry.range) == (written.export, written.range))
    });
    let there = each_is_there_or_fails(&rig, &all);
    assert!(there > 0 && there < all.len(), "{there} of {}", all.len());
    let mut opened = rig.open().unwrap();
    opened.require_all(&all[lost.unwrap() + 1..]);
}

#[test]
fn a_frame_that_cannot_be_read_costs_what_is_on_it_and_no_other_frame() {
    let (rig, all) = stopped();
    let found = rig.sealed();
    let last = u32::try_from(SEGMENT / FRAME).unwrap() - 1;
    let data_of = |frame: u32| {
        found.records.iter().find(|(position, record)| {
            (position + 1..=position + u32::try_from(record.crcs.len()).unwrap()).contains(&frame)
        })
    };
    for frame in 0..=last {
        let rig = rig.copy();
        machine(&rig.shared).lose_frame(found.slot, frame);
        let mut opened = rig.open().unwrap_or_else(|error| panic!("frame {frame}: {error}"));
        assert_eq!(opened.recovered.doubted, 0, "frame {frame}");
        let failing = all
            .iter()
            .filter(|written| {
                match opened.reads_back(written, written.range.start(), written.range.count()) {
                    Ok(right) => {
                        assert!(right, "frame {frame}: {written:?}");
                        false
                    }
                    Err(error) => {
                        assert_eq!(error, IoError::Read, "frame {frame}");
                        true
                    }
                }
            })
            .count();
        assert_eq!(failing, usize::from(data_of(frame).is_some()), "frame {frame}");
    }
}

#[test]
fn a_frame_of_an_unsealed_segment_that_cannot_be_read_never_brings_back_older_data() {
    let (rig, all, found) = killed();
    for frame in 0..u32::try_from(SEGMENT / FRAME).unwrap() {
        let rig = rig.copy();
        machine(&rig.shared).lose_frame(found.slot, frame);
        for life in 0..3 {
            let mut opened = rig.open().unwrap_or_else(|error| panic!("frame {frame}, life {life}: {error}"));
            opened.keep();
            for written in &all {
                match opened.reads_back(written, written.range.start(), written.range.count()) {
                    Ok(right) => assert!(right, "frame {frame}, life {life}: {written:?}"),
                    Err(error) => assert!(matches!(error, IoError::Damaged | IoError::Read)),
                }
            }
            rig.kill(opened);
        }
    }
}

#[test]
fn a_segment_file_that_holds_nothing_and_cannot_be_read_is_not_used() {
    let rig = Rig::new();
    let mut opened = rig.open().unwrap();
    opened.keep();
    let files = opened.cache.stats();
    rig.kill(opened);
    assert_eq!(files.segments_quarantined, 0);
    // A prepared segment: the header is on the disk twice.
    machine(&rig.shared).lose_frame(0, 0);
    let opened = rig.open().unwrap();
    assert_eq!(opened.cache.stats().segments_quarantined, 0);
    rig.kill(opened);
    // A file without any use so far.
    machine(&rig.shared).rot(0, |bytes| bytes.fill(0));
    machine(&rig.shared).lose_frame(0, 0);
    let mut opened = rig.open().unwrap();
    assert_eq!(opened.cache.stats().segments_quarantined, 1);
    let mut rig = rig;
    let all = rig.fill_segments(&mut opened);
    opened.require_all(&all);
    assert_eq!(opened.cache.stats().segments_quarantined, 1);
}

#[test]
fn a_disk_that_reads_no_segment_at_all_is_refused() {
    let (rig, all) = stopped();
    let broken = rig.copy();
    for slot in 0..16 {
        if machine(&broken.shared).bytes_of(slot).is_some() {
            (0..u32::try_from(SEGMENT / FRAME).unwrap())
                .for_each(|frame| machine(&broken.shared).lose_frame(slot, frame));
        }
    }
    assert!(matches!(open_ends_in(&broken), CacheError::Disk { .. }));
    open_has_all(&rig, &all);
}

/// The first data frame of an entry of `found`, with the place on the disk, and the write of the entry.
fn data_frame(found: &Found, all: &[Written], record: usize) -> (u64, Written) {
    let (position, record) = &found.records[record];
    let entry = record.entries[0];
    let EntryKind::Data { first_frame } = entry.kind else { panic!("{entry:?}") };
    let written = all.iter().find(|written| written.export == entry.export && written.range == entry.range);
    (u64::from(position + 1 + first_frame) * FRAME, *written.unwrap())
}

/// Damages the second data frame of a write and requires exactly the reads of that frame to fail.
fn damaged_data_fails_its_reads_and_no_others(rig: &mut Rig, all: &[Written], found: &Found, record: usize) {
    let (at, hit) = data_frame(found, all, record);
    rig.flip(found.slot, at + FRAME + 1234);
    let mut opened = rig.open().unwrap();
    opened.require_all(all.iter().filter(|written| **written != hit));
    assert_eq!(opened.cache.stats().corrupt_frames, 0);
    let (start, end) = (hit.range.start(), hit.range.end());
    let bad = start + FRAME_SECTORS..start + 2 * FRAME_SECTORS;
    for sector in start..end {
        let expected = if bad.contains(&sector) { Err(IoError::Corrupt) } else { Ok(true) };
        assert_eq!(opened.reads_back(&hit, sector, 1), expected, "sector {sector} of {hit:?}");
    }
    let frames = opened.cache.stats().corrupt_frames;
    assert!(frames >= 1, "damage was found and not counted");
    assert_eq!(opened.reads_back(&hit, start, end - start), Err(IoError::Corrupt));
    assert_eq!(opened.reads_back(&hit, bad.start - 1, 2), Err(IoError::Corrupt));
    assert!(opened.cache.stats().corrupt_frames > frames);
    // Writing heals the sectors, one by one.
    let half = rig.write(&mut opened, hit.export, bad.start, FRAME_SECTORS / 2);
    opened.require_all([&half]);
    assert_eq!(opened.reads_back(&hit, bad.end - 1, 1), Err(IoError::Corrupt));
    let rest = rig.write(&mut opened, hit.export, bad.start + FRAME_SECTORS / 2, FRAME_SECTORS / 2);
    opened.require_all([&half, &rest]);
    opened.require_all(all.iter().filter(|written| **written != hit));
}

#[test]
fn damaged_data_of_a_sealed_segment_fails_exactly_the_reads_that_need_it() {
    let (mut rig, all) = stopped();
    let found = rig.sealed();
    damaged_data_fails_its_reads_and_no_others(&mut rig, &all, &found, 3);
}

#[test]
fn damaged_stable_data_of_an_unsealed_segment_fails_exactly_the_reads_that_need_it() {
    let (mut rig, all, found) = killed();
    damaged_data_fails_its_reads_and_no_others(&mut rig, &all, &found, 1);
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
