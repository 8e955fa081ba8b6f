//! Damage to data, and frames which the disk does not read.

use glidefs::testing::cache::IoError;
use glidefs::testing::cache::format::EntryKind;
use glidefs::testing::units::FRAME_SECTORS;

use super::super::calm::{CalmComputer, Found, FoundRecord, SEGMENT, Written};
use super::super::disk::machine;
use super::{FRAME, killed, stopped};

#[test]
fn a_frame_that_cannot_be_read_costs_what_is_on_it_and_no_other_frame() {
    let (computer, all) = stopped();
    let found = computer.sealed();
    let last = u32::try_from(SEGMENT / FRAME).unwrap() - 1;
    let data_of = |frame: u32| {
        found.records.iter().find(|FoundRecord { frame: position, record }| {
            (position + 1..=position + u32::try_from(record.crcs.len()).unwrap()).contains(&frame)
        })
    };
    for frame in 0..=last {
        let computer = computer.copy();
        machine(&computer.shared).lose_frame(found.number, frame);
        let mut opened = computer.open().unwrap_or_else(|error| panic!("frame {frame}: {error}"));
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
    let (computer, all, found) = killed();
    for frame in 0..u32::try_from(SEGMENT / FRAME).unwrap() {
        let computer = computer.copy();
        machine(&computer.shared).lose_frame(found.number, frame);
        for life in 0..3 {
            let mut opened =
                computer.open().unwrap_or_else(|error| panic!("frame {frame}, life {life}: {error}"));
            opened.keep();
            for written in &all {
                match opened.reads_back(written, written.range.start(), written.range.count()) {
                    Ok(right) => assert!(right, "frame {frame}, life {life}: {written:?}"),
                    Err(error) => assert!(matches!(error, IoError::Damaged | IoError::Read)),
                }
            }
            computer.kill(opened);
        }
    }
}

#[test]
fn a_segment_file_that_holds_nothing_and_cannot_be_read_is_not_used() {
    let computer = CalmComputer::new();
    let mut opened = computer.open().unwrap();
    opened.keep();
    let files = opened.cache.stats();
    computer.kill(opened);
    assert_eq!(files.segments_quarantined, 0);
    // A prepared segment: the header is on the disk twice.
    machine(&computer.shared).lose_frame(0, 0);
    let opened = computer.open().unwrap();
    assert_eq!(opened.cache.stats().segments_quarantined, 0);
    computer.kill(opened);
    // A file without any use so far.
    machine(&computer.shared).rot(0, |bytes| bytes.fill(0));
    machine(&computer.shared).lose_frame(0, 0);
    let mut opened = computer.open().unwrap();
    assert_eq!(opened.cache.stats().segments_quarantined, 1);
    let mut computer = computer;
    let all = computer.fill_segments(&mut opened);
    opened.require_all(&all);
    assert_eq!(opened.cache.stats().segments_quarantined, 1);
}

#[test]
fn a_prepared_segment_with_a_frame_that_cannot_be_read_is_not_used() {
    let mut computer = CalmComputer::new();
    let mut opened = computer.open().unwrap();
    opened.keep();
    computer.kill(opened);
    machine(&computer.shared).lose_frame(0, 40);
    let mut opened = computer.open().unwrap();
    assert_eq!(opened.cache.stats().segments_quarantined, 1);
    let before = machine(&computer.shared).bytes_of(0).map(<[u8]>::to_vec);
    let all = computer.fill_segments(&mut opened);
    opened.require_all(&all);
    assert_eq!(opened.cache.stats().segments_quarantined, 1);
    assert_eq!(machine(&computer.shared).bytes_of(0).map(<[u8]>::to_vec), before);
}

/// The first data frame of an entry of `found`, with the place on the disk, and the write of the entry.
fn data_frame(found: &Found, all: &[Written], record: usize) -> (u64, Written) {
    let FoundRecord { frame: position, record } = &found.records[record];
    let entry = record.entries[0];
    let EntryKind::Data { first_frame } = entry.kind else { panic!("{entry:?}") };
    let written = all.iter().find(|written| written.export == entry.export && written.range == entry.range);
    (u64::from(position + 1 + first_frame) * FRAME, *written.unwrap())
}

/// Damages the second data frame of a write and requires exactly the reads of that frame to fail.
fn damaged_data_fails_its_reads_and_no_others(
    computer: &mut CalmComputer,
    all: &[Written],
    found: &Found,
    record: usize,
) {
    let (at, hit) = data_frame(found, all, record);
    computer.flip(found.number, at + FRAME + 1234);
    let mut opened = computer.open().unwrap();
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
    let half = computer.write(&mut opened, hit.export, bad.start, FRAME_SECTORS / 2);
    opened.require_all([&half]);
    assert_eq!(opened.reads_back(&hit, bad.end - 1, 1), Err(IoError::Corrupt));
    let rest = computer.write(&mut opened, hit.export, bad.start + FRAME_SECTORS / 2, FRAME_SECTORS / 2);
    opened.require_all([&half, &rest]);
    opened.require_all(all.iter().filter(|written| **written != hit));
}

#[test]
fn damaged_data_of_a_sealed_segment_fails_exactly_the_reads_that_need_it() {
    let (mut computer, all) = stopped();
    let found = computer.sealed();
    damaged_data_fails_its_reads_and_no_others(&mut computer, &all, &found, 3);
}

#[test]
fn damaged_stable_data_of_an_unsealed_segment_fails_exactly_the_reads_that_need_it() {
    let (mut computer, all, found) = killed();
    damaged_data_fails_its_reads_and_no_others(&mut computer, &all, &found, 1);
}
