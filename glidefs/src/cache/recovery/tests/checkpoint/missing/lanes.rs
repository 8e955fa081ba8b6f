//! The shard fills two segments at a time, and either is lost.

use super::*;
use crate::cache::log::format::THROUGH;

/// Segments of the cache: enough for both lanes.
const SEGMENTS: u64 = 40;
/// Places that are written in each round, and rounds.
const PLACES: u64 = 30;
const ROUNDS: u8 = 5;

/// The number of the writer in the header of segment `number`; `None` without a header.
fn writer_of(disk: &Faulty, number: u32) -> Option<u32> {
    let front = disk.frames(number).next().filter(|frame| is_magic(frame, b"GLIDESEG"))?;
    Some(u32::from_le_bytes(front[12..16].try_into().unwrap()))
}

fn id_of(disk: &Faulty, number: u32) -> Option<u64> {
    let front = disk.frames(number).next().filter(|frame| is_magic(frame, b"GLIDESEG"))?;
    Some(u64::from_le_bytes(front[32..40].try_into().unwrap()))
}

fn numbers() -> impl Iterator<Item = u32> {
    0..u32::try_from(SEGMENTS).unwrap()
}

fn has_records(disk: &Faulty, number: u32) -> bool {
    disk.frames(number).any(|frame| is_magic(&frame, b"GLIDEREC"))
}

/// A driver with both lanes.
fn with_lanes(disk: &Faulty) -> Driver {
    disk.faults.stable_appends.store(true, Ordering::SeqCst);
    let (cache, _) = disk.open_with(SEGMENTS, Known::local(&[A, B])).unwrap();
    let mut driver = Driver::new(cache);
    driver.write_through();
    driver
}

/// Writes all places, with content `round`: every other one goes through, and in the next round the others do.
fn write_round(driver: &mut Driver, round: u8) {
    let volume = driver.cache.volume(A);
    for place in 0..PLACES {
        let goes_through = place % 2 == u64::from(round) % 2;
        driver.write_as(&volume, range(place * 64, 64), Some(&[round; 32 << 10]), goes_through).unwrap();
        driver.keep();
    }
    driver.flush(&volume).unwrap();
}

/// Each segment with a header is lost, one at a time, in a copy of the directory at `path`. Returns how many losses of segments with records
/// in each lane put the exports in doubt, cost sectors only, and had the start refused.
fn lose_each(path: &Path, is_spared: impl Fn(&Faulty, u32) -> bool) -> [[u32; 3]; 2] {
    let mut counts = [[0; 3]; 2];
    let whole = Faulty::new(path);
    for number in numbers() {
        let Some(writer) = writer_of(&whole, number).filter(|_| !is_spared(&whole, number)) else { continue };
        let other = tempfile::tempdir().unwrap();
        copy(path, other.path(), true);
        let disk = Faulty::new(other.path());
        let of_lane = &mut counts[usize::from(writer & THROUGH != 0)];
        let had_records = u32::from(has_records(&disk, number));
        lose(&disk, number, Loss::File);
        let (cache, found) = match disk.open_with(SEGMENTS, Known::local(&[A, B])) {
            Ok(opened) => opened,
            Err(error) => {
                assert!(error.to_string().contains("index.ckpt"), "{error}");
                of_lane[2] += had_records;
                continue;
            }
        };
        of_lane[usize::from(found.doubted == 0)] += had_records;
        let mut driver = Driver::new(cache);
        let volume = driver.cache.volume(A);
        for place in 0..PLACES {
            match driver.read(&volume, range(place * 64, 64)) {
                Ok(data) => assert!(
                    data == [ROUNDS; 32 << 10],
                    "without segment {number} place {place} has content {}: {found:?}",
                    data[0]
                ),
                Err(error) => assert_eq!(error, IoError::Damaged),
            }
        }
        drop(volume);
        driver.kill();
    }
    counts
}

#[test]
fn a_lost_segment_of_either_lane_is_missed_after_an_orderly_stop() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = with_lanes(&disk);
    (1..=ROUNDS).for_each(|round| write_round(&mut driver, round));
    driver.rest();
    driver.kill();
    let counts = lose_each(directory.path(), |_, _| false);
    for [in_doubt, known, refused] in counts {
        assert!(known > 0 && in_doubt + refused > 0, "{counts:?}");
    }
}

/// The last rounds come after the checkpoint. Only the newest segment, and those which the checkpoint does not list, can be lost unnoticed.
#[test]
fn a_lost_segment_of_either_lane_is_missed_after_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    let mut driver = with_lanes(&disk);
    (1..ROUNDS - 1).for_each(|round| write_round(&mut driver, round));
    driver.rest();
    driver.without_checkpoints();
    let ids: Vec<Option<u64>> = numbers().map(|number| id_of(&disk, number)).collect();
    (ROUNDS - 1..=ROUNDS).for_each(|round| write_round(&mut driver, round));
    driver.kill();
    let newest =
        numbers().filter(|number| has_records(&disk, *number)).max_by_key(|number| id_of(&disk, *number));
    let is_spared =
        |disk: &Faulty, number: u32| ids[number as usize] != id_of(disk, number) || Some(number) == newest;
    let counts = lose_each(directory.path(), is_spared);
    for [in_doubt, ..] in counts {
        assert!(in_doubt > 0, "{counts:?}");
    }
}
