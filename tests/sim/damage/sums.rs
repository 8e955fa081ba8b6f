//! Damage to the sums of sealed segments. The footer and the record headers have the same checksums, so damage to the sums alone costs
//! nothing; data without a checksum fails, and is never served.

use glidefs::testing::cache::IoError;

use super::super::calm::{CalmComputer, Found, FoundRecord, SEGMENT, Written};
use super::super::disk::machine;
use super::{FRAME, open_has_all, stopped};

/// The byte at which the sums of `found` begin. The segments of these tests have one page each.
fn sums_at(found: &Found) -> u64 {
    let frames = u32::try_from(SEGMENT / FRAME).unwrap();
    u64::from(found.trailer.unwrap().sums_frame(frames).unwrap()) * FRAME
}

fn damage(computer: &CalmComputer, number: u32, at: u64, len: u64, change: impl Fn(&mut [u8])) {
    let place = usize::try_from(at).unwrap()..usize::try_from(at + len).unwrap();
    machine(&computer.shared).rot(number, |bytes| change(&mut bytes[place.clone()]));
}

/// The writes in `all` with all of their data in the segment `found`.
fn inside<'a>(found: &Found, all: &'a [Written]) -> Vec<&'a Written> {
    let entries = || found.records.iter().flat_map(|FoundRecord { record, .. }| &record.entries);
    let is_inside = |written: &&Written| {
        entries().any(|entry| entry.export == written.export && entry.range == written.range)
    };
    all.iter().filter(is_inside).collect()
}

#[test]
fn whole_sums_are_used() {
    let (computer, all) = stopped();
    let opened = open_has_all(&computer, &all);
    assert_eq!(opened.cache.stats().checksums_restored, 0);
}

#[test]
fn damaged_sums_cost_nothing_and_are_mended() {
    let (computer, all) = stopped();
    let found = computer.sealed();
    for byte in [0, 8, 12, 16, 32, 40, 44, 50, 60, 64, 70, 300, 4091, 4095] {
        computer.flip(found.number, sums_at(&found) + byte);
        let opened = open_has_all(&computer, &all);
        assert!(opened.cache.stats().checksums_restored > 0, "byte {byte}");
        computer.kill(opened);
        let opened = open_has_all(&computer, &all);
        assert_eq!(opened.cache.stats().checksums_restored, 0, "byte {byte}");
        computer.kill(opened);
    }
}

#[test]
fn a_segment_sealed_without_sums_is_read_as_before_and_gets_sums() {
    let (computer, all) = stopped();
    let sealed: Vec<Found> = computer.survey().into_iter().filter(|found| found.trailer.is_some()).collect();
    for found in &sealed {
        damage(&computer, found.number, sums_at(found), FRAME, |page| page.fill(0x77));
    }
    let opened = open_has_all(&computer, &all);
    assert!(opened.cache.stats().checksums_restored >= sealed.len() as u64);
    computer.kill(opened);
    let opened = open_has_all(&computer, &all);
    assert_eq!(opened.cache.stats().checksums_restored, 0);
}

#[test]
fn sums_of_an_earlier_use_or_another_place_are_not_believed() {
    let (computer, all) = stopped();
    let found = computer.sealed();
    let others: Vec<Found> =
        computer.survey().into_iter().filter(|other| other.number != found.number).collect();
    let other = others.iter().find(|other| other.trailer.is_some()).unwrap();
    let from = usize::try_from(sums_at(other)).unwrap();
    let page = machine(&computer.shared).bytes_of(other.number).unwrap()[from..from + 4096].to_vec();
    damage(&computer, found.number, sums_at(&found), FRAME, |bytes| bytes.copy_from_slice(&page));
    let opened = open_has_all(&computer, &all);
    assert!(opened.cache.stats().checksums_restored > 0);
}

#[test]
fn without_sums_and_footer_the_record_headers_serve() {
    let (computer, all) = stopped();
    let found = computer.sealed();
    // The damage comes after the start: a start would mend the footer.
    let mut opened = computer.open().unwrap();
    damage(&computer, found.number, sums_at(&found), FRAME, |page| page.fill(0));
    computer.flip(found.number, found.trailer.unwrap().footer_offset_bytes() + 50);
    opened.require_all(&all);
    let stats = opened.cache.stats();
    assert!(stats.checksums_restored > 0 && stats.corrupt_frames == 0);
}

#[test]
fn data_without_any_checksum_fails_and_nothing_else_does() {
    let (computer, all) = stopped();
    let found = computer.sealed();
    let mut opened = computer.open().unwrap();
    damage(&computer, found.number, sums_at(&found), FRAME, |page| page.fill(0));
    computer.flip(found.number, found.trailer.unwrap().footer_offset_bytes() + 50);
    // Two headers in a row: the second one would repeat the first.
    let inside = inside(&found, &all);
    let hit = &found.records[3..5];
    for FoundRecord { frame, .. } in hit {
        computer.flip(found.number, u64::from(*frame) * FRAME + 50);
    }
    let is_hit = |written: &Written| {
        let mut entries = hit.iter().flat_map(|FoundRecord { record, .. }| &record.entries);
        entries.any(|entry| entry.export == written.export && entry.range == written.range)
    };
    let mut failed = 0;
    for written in inside {
        match opened.reads_back(written, written.range.start(), written.range.count()) {
            Ok(right) => assert!(right, "{written:?}"),
            Err(error) => {
                assert!(error == IoError::Read && is_hit(written), "{written:?}: {error}");
                failed += 1;
            }
        }
    }
    assert!(failed > 0, "data was served without a checksum");
    assert_eq!(opened.cache.stats().corrupt_frames, 0);
}
