//! READs of sealed segments: checksums come with the data, from memory, from the page cache or from the disk.

use std::sync::atomic::Ordering;

use super::*;
use crate::cache::faulty::Faulty;
use crate::cache::log::format::{Trailer, sums_pages};
use crate::cache::log::life::State;
use crate::cache::log::scan::{offset, read_frame};
use crate::units::{FRAME_SECTORS, SECTOR_BYTES};

const LONG_SEGMENT: u64 = 10 << 20;
const BLOCKS: u64 = 6000;
/// Four pages for the shard, and four for everybody else.
const LEAST_BYTES: u64 = 8 * FRAME_BYTES as u64;

fn content(block: u64) -> Vec<u8> {
    (block + 1).to_le_bytes().repeat(FRAME_BYTES / 8)
}

/// A cache with [`BLOCKS`] blocks of 4 KiB of export [`A`], most in sealed segments, opened again with so much memory for checksums.
fn filled(directory: &tempfile::TempDir, checksums_bytes_max: u64) -> (Bed, Faulty) {
    let disk = Faulty::new(directory.path());
    let mut bed = reopened(&disk, checksums_bytes_max);
    for first in (0..BLOCKS).step_by(20) {
        for block in first..first + 20 {
            assert!(bed.write(A, block * FRAME_SECTORS, &content(block), false));
        }
        bed.settle();
    }
    drop(bed);
    (reopened(&disk, checksums_bytes_max), disk)
}

fn reopened(disk: &Faulty, checksums_bytes_max: u64) -> Bed {
    let options = Options {
        size_bytes: 10 * LONG_SEGMENT,
        segment_bytes: LONG_SEGMENT,
        shards: 1,
        on_full: OnFull::Enospc,
        checksums_bytes_max,
        mapped_bytes_max: 0,
        budgets: Budgets::default(),
        hands: 1,
    };
    open_on(Arc::new(disk.clone()), options)
}

fn bytes_of(sectors: u64) -> usize {
    usize::try_from(sectors * SECTOR_BYTES).unwrap()
}

/// Damages the sums of all sealed segments.
fn lose_sums(bed: &Bed) {
    let table = &bed.cache.shared.table;
    for (_, info) in table.iter().filter(|(_, info)| info.state() == State::Sealed) {
        let first = info.sums_frame().unwrap();
        let frames = table.segment_frames();
        for page in 0..sums_pages(frames).min(frames - 1 - first) {
            let bytes = io::IoSlice::new(&[0x55; FRAME_BYTES]);
            info.file().unwrap().write_at(&[bytes], u64::from(first + page) * FRAME_BYTES as u64).unwrap();
        }
    }
}

impl Bed {
    fn require(&mut self, first: u64, blocks: u64) {
        let expected: Vec<u8> = (first..first + blocks).flat_map(content).collect();
        let found = self.read(A, first * FRAME_SECTORS, blocks * FRAME_SECTORS);
        assert!(found.as_ref() == Ok(&expected), "blocks {first} to {}: {:?}", first + blocks, found.err());
    }

    fn sums_read(&self) -> u64 {
        self.stats.sums_read.get()
    }
}

#[test]
fn checksums_of_sealed_segments_take_no_more_memory_than_allowed() {
    let directory = tempfile::tempdir().unwrap();
    let (mut bed, _) = filled(&directory, 0);
    let table = &bed.cache.shared.table;
    let resident = table.iter().filter(|(_, info)| info.crcs().is_some());
    assert!(resident.map(|(_, info)| info.state()).all(|state| state == State::Open));
    let open_bytes = u64::from(table.segment_frames()) * 4 * u64::from(table.count(State::Open));
    for first in (0..BLOCKS).step_by(32) {
        bed.require(first, 32.min(BLOCKS - first));
        assert!(bed.cache.stats().checksum_bytes <= open_bytes + LEAST_BYTES);
    }
    assert_eq!(bed.sums_read(), 0, "the page cache has the sums");
}

#[test]
fn reads_of_a_cold_disk_bring_their_checksums_in_any_order_with_any_memory() {
    let directory = tempfile::tempdir().unwrap();
    for memory in [0, 1 << 20] {
        let (mut bed, disk) = filled(&directory, memory);
        disk.faults.cold.store(true, Ordering::SeqCst);
        let mut at = 7_u64;
        for _ in 0..400 {
            at = at.wrapping_mul(2_862_933_555_777_941_757_u64).wrapping_add(3_037_000_493) % (BLOCKS - 32);
            bed.require(at, 1 + at % 32);
        }
        // Each page once where memory has room, and a READ never waits for more than one read of sums.
        let pages = 3 * BLOCKS * FRAME_BYTES as u64 / LONG_SEGMENT + 6;
        let most = if memory == 0 { 500 } else { pages };
        assert!((1..=most).contains(&bed.sums_read()), "{} of {most}", bed.sums_read());
        assert_eq!(bed.cache.stats().checksums_restored, 0);
        drop(bed);
    }
}

#[test]
fn reads_that_wait_for_the_keeper_are_answered_when_the_sums_are_lost() {
    let directory = tempfile::tempdir().unwrap();
    let (mut bed, disk) = filled(&directory, 0);
    lose_sums(&bed);
    disk.faults.cold.store(true, Ordering::SeqCst);
    let volume = bed.cache.volume(A);
    for name in 0..40 {
        let at = u64::from(name) * 149 * FRAME_SECTORS;
        bed.rig.shard.read(&volume, range(at, 8), None, MemoryToken::reading(name, FRAME_BYTES));
    }
    let done = bed.settle();
    assert_eq!(done.len(), 40);
    for Completion { token, result } in done {
        assert_eq!(result, Ok(()));
        assert_eq!(token.data(FRAME_BYTES), content(u64::from(token.name) * 149));
    }
    assert!(bed.cache.stats().checksums_restored > 0);
    // The sums were written again.
    drop(bed);
    let mut bed = reopened(&disk, 0);
    for name in 0..40 {
        bed.require(name * 149, 1);
    }
    assert_eq!(bed.cache.stats().checksums_restored, 0);
}

/// Reads which waited for the keeper once kept all places for reads of the disk, also those of exports whose checksums are at hand.
#[test]
fn reads_that_wait_for_the_keeper_leave_places_to_the_reads_of_other_exports() {
    let directory = tempfile::tempdir().unwrap();
    let (mut bed, disk) = filled(&directory, 0);
    assert!(bed.write(B, 0, &content(9), false));
    bed.settle();
    lose_sums(&bed);
    disk.faults.cold.store(true, Ordering::SeqCst);
    let (lost, whole) = (bed.cache.volume(A), bed.cache.volume(B));
    let without_keeper = |bed: &mut Bed| {
        let mut rounds = 0;
        bed.rig.settle(|| {
            rounds += 1;
            rounds < 50
        })
    };
    for name in 1..60 {
        let at = u64::from(name) * 97 * FRAME_SECTORS;
        bed.rig.shard.read(&lost, range(at, 8), None, MemoryToken::reading(name, FRAME_BYTES));
    }
    let mut done = without_keeper(&mut bed);
    let asked = 59 - done.len();
    assert!(asked > 40, "{asked} reads wait for the keeper");
    bed.rig.shard.read(&whole, range(0, 8), None, MemoryToken::reading(0, FRAME_BYTES));
    done.extend(without_keeper(&mut bed));
    assert!(done.iter().any(|completion| completion.token.name == 0), "the read stands behind the others");
    done.extend(bed.settle());
    assert_eq!(done.len(), 60);
    for Completion { token, result } in done {
        assert_eq!(result, Ok(()));
        let block = if token.name == 0 { 9 } else { u64::from(token.name) * 97 };
        assert_eq!(token.data(FRAME_BYTES), content(block));
    }
}

/// A segment filled by a glidefs without sums may have no room for them. Each start once dropped the checksums of such a segment
/// from memory, and the keeper read the footer for nearly each READ.
#[test]
fn checksums_without_room_on_the_disk_stay_in_memory() {
    let directory = tempfile::tempdir().unwrap();
    let (bed, disk) = filled(&directory, 0);
    let table = &bed.cache.shared.table;
    let frames = table.segment_frames();
    for (_, info) in table.iter().filter(|(_, info)| info.state() == State::Sealed) {
        let file = info.file().unwrap();
        let last = read_frame(&**file, frames - 1).unwrap();
        let trailer =
            Trailer::decode(&last[..], &table.key(info.segment_id()), table.segment_bytes()).unwrap();
        let footer_frames = trailer.footer_bytes / u32::try_from(FRAME_BYTES).unwrap();
        let moved = Trailer { footer_frame: frames - 1 - footer_frames, ..trailer };
        for frame in 0..footer_frames {
            let bytes = read_frame(&**file, trailer.footer_frame + frame).unwrap();
            file.write_at(&[io::IoSlice::new(&bytes[..])], offset(moved.footer_frame + frame)).unwrap();
        }
        file.write_at(&[io::IoSlice::new(&moved.encode())], offset(frames - 1)).unwrap();
        assert_eq!(moved.sums_frame(frames), None);
    }
    drop(bed);
    let mut bed = reopened(&disk, 0);
    disk.faults.cold.store(true, Ordering::SeqCst);
    for name in 0..40 {
        bed.require(name * 149, 1);
    }
    assert_eq!(bed.cache.stats().checksums_restored, 0);
}

#[test]
fn a_frame_with_parts_on_both_sides_of_newer_sectors_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = reopened(&Faulty::new(directory.path()), 1 << 20);
    let mut expected = content(0);
    assert!(bed.write(A, 0, &expected, false));
    bed.settle();
    for at in [1, 3, 6] {
        assert!(bed.write(A, at, &[0xee; 512], false));
        bed.settle();
        expected[bytes_of(at)..bytes_of(at + 1)].fill(0xee);
    }
    assert!(bed.read(A, 0, 8) == Ok(expected));
}

#[test]
fn a_damaged_frame_with_several_parts_fails_every_read_of_a_part() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = reopened(&Faulty::new(directory.path()), 1 << 20);
    assert!(bed.write(A, 0, &content(0), false));
    bed.settle();
    assert!(bed.write(A, 3, &[0xee; 512], false));
    bed.settle();
    let file = &bed.rig.shard.log.common.active.as_ref().unwrap().file;
    let old = (0..16).find(|frame| read_frame(&**file, *frame).unwrap()[..] == content(0)[..]);
    file.write_at(&[io::IoSlice::new(&[0; 512])], offset(old.unwrap())).unwrap();
    assert!(bed.read(A, 0, 8) == Err(IoError::Corrupt));
    assert!(bed.read(A, 4, 4) == Err(IoError::Corrupt));
    assert!(bed.read(A, 3, 1) == Ok(vec![0xee; 512]));
}
