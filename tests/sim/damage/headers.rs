//! Damage to headers, footers and trailers: the structures which say where data is.

use glidefs::testing::cache::IoError;

use super::super::calm::{CalmComputer, EXPORTS, Found, FoundRecord, SEGMENT, Written};
use super::super::disk::machine;
use super::{FRAME, each_is_there_or_fails, killed, mend_crc, open_has_all, stopped};

#[test]
fn damage_to_a_segment_header_loses_nothing() {
    let (computer, all) = stopped();
    let number = computer.sealed().number;
    for at in [0, 8, 12, 16, 32, 40, 100, 4095] {
        computer.flip(number, at);
        let opened = open_has_all(&computer, &all);
        computer.kill(opened);
        computer.flip(number, at);
    }
}

#[test]
fn damage_to_segment_header_and_trailer_loses_nothing() {
    let (computer, all) = stopped();
    let number = computer.sealed().number;
    computer.flip(number, 20);
    computer.flip(number, SEGMENT - FRAME + 20);
    let opened = open_has_all(&computer, &all);
    computer.kill(opened);
    open_has_all(&computer, &all);
}

#[test]
fn damage_to_a_record_header_of_a_sealed_segment_loses_nothing() {
    let (computer, all) = stopped();
    let found = computer.sealed();
    for FoundRecord { frame, .. } in &found.records {
        computer.flip(found.number, u64::from(*frame) * FRAME + u64::from(*frame) * 7 % FRAME);
    }
    open_has_all(&computer, &all);
}

#[test]
fn a_record_header_of_an_unsealed_segment_is_made_up_for_by_the_next_one() {
    for record in 0..4 {
        for byte in [0, 8, 12, 44, 60, 4095] {
            let (computer, all, found) = killed();
            computer.flip(found.number, u64::from(found.records[record].frame) * FRAME + byte);
            let opened = open_has_all(&computer, &all);
            assert_eq!((opened.recovered.holes, opened.recovered.bad_footers), (0, 1));
            computer.kill(opened);
            open_has_all(&computer, &all);
        }
    }
}

/// As [`killed`], with `records` records, and with data of another export in sealed segments only.
fn killed_beside_another(records: usize) -> (CalmComputer, Vec<Written>, Written, Found) {
    let mut computer = CalmComputer::new();
    let mut opened = computer.open().unwrap();
    let other = computer.write(&mut opened, EXPORTS[1], 0, 50);
    opened.flush(EXPORTS[1]);
    computer.kill(opened);
    let mut opened = computer.open().unwrap();
    let mut all = Vec::new();
    for number in 0..records {
        all.push(computer.write(&mut opened, EXPORTS[0], number as u64 * 100, 20));
        opened.flush(EXPORTS[0]);
    }
    computer.kill(opened);
    let found = computer.survey().into_iter().find(|found| found.trailer.is_none()).unwrap();
    assert_eq!(found.records.len(), records);
    (computer, all, other, found)
}

#[test]
fn a_record_header_that_cannot_be_read_costs_an_export_without_data_there_nothing() {
    for record in 0..5 {
        let (mut computer, all, other, found) = killed_beside_another(5);
        machine(&computer.shared).lose_frame(found.number, found.records[record].frame);
        for life in 0..3 {
            let mut opened = computer.open().unwrap();
            opened.require_all([&other]);
            assert_eq!(opened.recovered.doubted, u64::from(record == 4 && life == 0));
            if record < 4 {
                opened.require_all(&all);
            }
            computer.kill(opened);
        }
        // The content of the last header is not known, and writing heals the sectors.
        let mut opened = computer.open().unwrap();
        let again = computer.write(&mut opened, EXPORTS[0], all[0].range.start(), all[0].range.count());
        opened.flush(EXPORTS[0]);
        computer.kill(opened);
        let mut opened = computer.open().unwrap();
        opened.require_all([&again, &other]);
        if record == 4 {
            assert_eq!(opened.reads_back(&all[4], all[4].range.start(), 8), Err(IoError::Damaged));
        }
    }
}

#[test]
fn an_announcement_that_cannot_be_read_costs_nothing_and_with_the_header_behind_it_it_may_be_anyones() {
    for (records, frames, doubted) in [(1, 1, 0), (2, 2, 0), (1, 2, 2)] {
        let (computer, all, other, found) = killed_beside_another(records);
        let first = found.records[0].frame;
        (first - 1..first - 1 + frames)
            .for_each(|frame| machine(&computer.shared).lose_frame(found.number, frame));
        let mut opened = computer.open().unwrap();
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
        let (computer, all, other, found) = killed_beside_another(5);
        machine(&computer.shared).rot(found.number, |bytes| {
            for FoundRecord { frame: position, record } in &found.records {
                let at = usize::try_from(u64::from(*position) * FRAME).unwrap();
                let frame = &mut bytes[at..at + 4096];
                let crcs_at = 4092 - 4 * record.crcs.len();
                frame[8] = 1;
                frame[14..16].fill(0);
                frame[48 + 28 * record.entries.len()..crcs_at].fill(0);
            }
            // Announcements came with the version.
            let at = usize::try_from(u64::from(found.records[0].frame) * FRAME).unwrap();
            bytes.copy_within(at.., at - 4096);
        });
        for FoundRecord { frame: position, .. } in &found.records {
            let at = u64::from(position - 1) * FRAME;
            machine(&computer.shared).rot(found.number, |bytes| {
                let at = usize::try_from(at).unwrap();
                bytes[at + 40] -= 1;
                bytes[at + 44] = bytes[at + 44].saturating_sub(1);
            });
            mend_crc(&computer, found.number, at);
        }
        if let Some(record) = record {
            machine(&computer.shared).lose_frame(found.number, found.records[record].frame - 1);
        }
        let mut opened = computer.open().unwrap();
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
    let (computer, all) = stopped();
    let found = computer.sealed();
    let at = found.trailer.unwrap().footer_offset_bytes();
    // The head of the frame, the first record's entries, and the padding.
    for byte in (0..120).chain([FRAME - 1]) {
        computer.flip(found.number, at + byte);
        computer.forget_checkpoint();
        let opened = open_has_all(&computer, &all);
        assert_eq!((opened.recovered.bad_footers, opened.cache.stats().bad_footers), (1, 1));
        computer.kill(opened);
        computer.flip(found.number, at + byte);
    }
}

#[test]
fn a_damaged_footer_of_a_segment_in_the_checkpoint_costs_a_start_nothing() {
    let (computer, all) = stopped();
    let found = computer.sealed();
    computer.flip(found.number, found.trailer.unwrap().footer_offset_bytes() + 50);
    let opened = open_has_all(&computer, &all);
    assert!(opened.recovered.covered > 0 && opened.recovered.bad_footers == 0, "{:?}", opened.recovered);
    computer.kill(opened);
    // The start has used the checkpoint up.
    assert_eq!(open_has_all(&computer, &all).recovered.bad_footers, 1);
}

#[test]
fn a_damaged_trailer_is_made_up_for_by_a_scan() {
    for byte in [0, 8, 12, 16, 32, 40, 44, 200, 4095] {
        let (computer, all) = stopped();
        let found = computer.sealed();
        computer.flip(found.number, SEGMENT - FRAME + byte);
        let opened = open_has_all(&computer, &all);
        assert!(opened.recovered.scans >= 1);
        computer.kill(opened);
        // The scan has mended the segment for the next start.
        open_has_all(&computer, &all);
    }
}

#[test]
fn damage_to_a_footer_and_a_record_header_is_made_up_for_by_the_next_record() {
    let (computer, all) = stopped();
    computer.forget_checkpoint();
    let found = computer.sealed();
    let FoundRecord { frame: position, .. } = &found.records[found.records.len() / 2];
    computer.flip(found.number, found.trailer.unwrap().footer_offset_bytes() + 50);
    computer.flip(found.number, u64::from(*position) * FRAME + 50);
    let opened = open_has_all(&computer, &all);
    assert_eq!(opened.recovered.bad_footers, 2);
}

#[test]
fn damage_to_a_footer_and_the_last_record_header_fails_what_may_be_older_and_nothing_newer() {
    let (computer, all) = stopped();
    computer.forget_checkpoint();
    let found = computer.sealed();
    let FoundRecord { frame: position, record } = found.records.last().unwrap();
    computer.flip(found.number, found.trailer.unwrap().footer_offset_bytes() + 50);
    computer.flip(found.number, u64::from(*position) * FRAME + 50);
    let lost = all.iter().position(|written| {
        record.entries.iter().any(|entry| (entry.export, entry.range) == (written.export, written.range))
    });
    let there = each_is_there_or_fails(&computer, &all);
    assert!(there > 0 && there < all.len(), "{there} of {}", all.len());
    let mut opened = computer.open().unwrap();
    opened.require_all(&all[lost.unwrap() + 1..]);
}
