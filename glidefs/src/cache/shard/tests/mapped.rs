//! READs of mapped segments: the bytes, which READs are left to the other way, and which segments are mapped.

use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

use super::*;
use crate::cache::faulty::Faulty;
use crate::cache::log::life::State;

/// Most memory that mapped segments may take, counted in segments.
const MAPPED: u64 = 2;
/// READs of each frame after which a stretch takes the place of another.
const READS_FOR_A_PLACE: u32 = 2;
/// Frames of a stretch of a segment of [`SEGMENT_BYTES`].
const STRETCH_FRAMES: u32 = 4;

fn open_mapped(directory: &tempfile::TempDir, segments: u64) -> Bed {
    let options = Options { mapped_bytes_max: MAPPED * SEGMENT_BYTES, ..options(segments) };
    open_on(Arc::new(Directory::new(directory.path())), options)
}

impl Bed {
    /// Has the keeper look at the segments.
    fn look(&mut self) {
        // Nobody waits for the keeper then.
        while self.keeper.step() {}
        std::thread::sleep(std::time::Duration::from_millis(110));
        while self.keeper.step() {}
    }

    /// Counts `times` READs of every frame of each stretch that has an appended frame.
    fn count_all(&self, times: u32) {
        for (number, info) in self.cache.shared.table.iter().filter(|(_, info)| info.appended() > 1) {
            for stretch in 0..info.appended().div_ceil(STRETCH_FRAMES) {
                (0..times).for_each(|_| {
                    self.cache.shared.heat.count(number, stretch * STRETCH_FRAMES, STRETCH_FRAMES);
                });
            }
        }
    }

    /// Has the keeper map and lock everything that was appended: all of it counts as read often enough, whatever it replaces.
    fn lock_all(&mut self) {
        self.count_all(READS_FOR_A_PLACE);
        self.look();
    }

    /// The bytes of a READ from mapped segments, if these have all.
    fn read_mapped(&mut self, volume: ExportId, at: u64, sectors: u64) -> Option<Vec<u8>> {
        let volume = self.cache.volume(volume);
        let mut bytes = Vec::new();
        let copied = self.rig.shard.read_mapped(&volume, range(at, sectors), |pieces| {
            bytes.extend(pieces.iter().flat_map(|piece| piece.iter().copied()));
            Ok(())
        });
        copied.then_some(bytes)
    }

    /// The stretches that READs find in memory: the segment's number, and a bit for each stretch.
    fn stretches(&self) -> Vec<(u32, u64)> {
        let segments = self.cache.shared.table.iter();
        segments.filter_map(|(number, info)| Some((number, info.mapping().as_ref()?.locked()))).collect()
    }

    /// Bytes locked of the stretches that READs find.
    fn locked_bytes(&self) -> u64 {
        let stretches: u32 = self.stretches().iter().map(|(_, stretches)| stretches.count_ones()).sum();
        u64::from(stretches * STRETCH_FRAMES) * FRAME_BYTES as u64
    }

    /// Numbers of the segments that READs find in memory.
    fn mapped(&self) -> Vec<u32> {
        let segments = self.cache.shared.table.iter();
        segments.filter(|(_, info)| info.mapping().is_some()).map(|(number, _)| number).collect()
    }

    fn is_nothing_pinned(&self) -> bool {
        self.cache.shared.table.iter().all(|(_, info)| !info.is_pinned())
    }
}

#[test]
fn whatever_is_mapped_is_read_from_memory_as_from_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 8);
    // Pieces of 1 to 9 sectors, over one another, on 64 sectors. The beginning was written whole.
    assert!(bed.write(A, 0, &[255; 64 * 512], false));
    for step in 0..300_u64 {
        let (at, sectors) = (step * 29 % 56, 1 + step * 7 % 8);
        let fill = u8::try_from(step % 251).unwrap();
        assert!(bed.write(A, at, &vec![fill; usize::try_from(sectors * 512).unwrap()], false));
        if step % 3 == 0 {
            bed.settle();
        }
    }
    bed.settle();
    bed.lock_all();
    for at in 0..64 {
        for sectors in [1, 3, 8, 16, 64 - at] {
            let sectors = sectors.min(64 - at);
            let wanted = bed.read(A, at, sectors).unwrap();
            assert!(bed.read_mapped(A, at, sectors) == Some(wanted), "{sectors} sectors from {at}");
        }
    }
    assert!(bed.is_nothing_pinned());
    assert_eq!(bed.stats.reads_mapped.get(), 64 * 5);
}

#[test]
fn a_read_with_content_elsewhere_is_left_to_the_other_way_and_pins_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 8);
    assert!(bed.write(A, 0, &[1; 4096], false));
    bed.zero(A, range(8, 8));
    bed.settle();
    assert_eq!(bed.read_mapped(A, 0, 8), None, "not locked yet");
    bed.lock_all();
    assert_eq!(bed.read_mapped(A, 0, 8), Some(vec![1; 4096]));
    assert_eq!(bed.read_mapped(A, 0, 16), None, "zeroes");
    assert_eq!(bed.read_mapped(A, 16, 8), None, "never written");
    assert_eq!(bed.read_mapped(B, 0, 8), None, "nothing of this export");
    assert!(bed.write(A, 0, &[2; 4096], false));
    bed.settle();
    assert_eq!(bed.read_mapped(A, 0, 8), None, "newer than what is locked");
    bed.lock_all();
    assert_eq!(bed.read_mapped(A, 0, 8), Some(vec![2; 4096]));
    assert!(bed.is_nothing_pinned());
}

#[test]
fn a_read_whose_copy_fails_is_left_to_the_other_way() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 8);
    assert!(bed.write(A, 0, &[1; 4096], false));
    bed.settle();
    bed.lock_all();
    let volume = bed.cache.volume(A);
    let fails = |_: &[IoSlice<'_>]| Err(io::Error::from_raw_os_error(libc::EFAULT));
    assert!(!bed.rig.shard.read_mapped(&volume, range(0, 8), fails));
    assert_eq!(bed.stats.reads_mapped.get(), 0);
    assert!(bed.is_nothing_pinned());
}

#[test]
fn a_wrong_byte_in_memory_reaches_nobody_and_ends_the_mapping() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 8);
    assert!(bed.write(A, 0, &[1; 12_288], false));
    bed.settle();
    bed.lock_all();
    let file =
        std::fs::OpenOptions::new().write(true).open(directory.path().join("segments/00000000.seg")).unwrap();
    file.write_at(&[0], 4 * 4096 + 100).unwrap();
    assert_eq!(bed.read_mapped(A, 0, 8), Some(vec![1; 4096]));
    assert_eq!(bed.read_mapped(A, 0, 24), None);
    assert_eq!(bed.read_mapped(A, 0, 8), None, "nothing is read from the mapping any more");
    bed.look();
    assert_eq!(bed.mapped(), [0_u32; 0], "the page cache can drop the wrong copy");
    assert_eq!(bed.read(A, 8, 8), Err(IoError::Corrupt));
    assert_eq!(bed.read(A, 0, 8), Ok(vec![1; 4096]));
    assert!(bed.is_nothing_pinned());
}

#[test]
fn no_more_is_locked_than_allowed_and_no_free_segment_is_mapped() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 16);
    let blocks = 6 * SEGMENT_BYTES / 16_384;
    for step in 0..3 * blocks {
        let block = step * 37 % blocks;
        assert!(bed.write(A, block * 32, &[u8::try_from(step % 251).unwrap(); 16_384], false));
        bed.settle();
        if step % 32 == 0 {
            bed.lock_all();
        }
        let (mapped, locked) = (bed.mapped(), bed.locked_bytes());
        assert!(locked <= MAPPED * SEGMENT_BYTES, "{mapped:?} are mapped, {locked} bytes are locked");
        let table = &bed.cache.shared.table;
        assert!(mapped.iter().all(|number| table.get(*number).state() != State::Free));
    }
    assert!(!bed.mapped().is_empty());
}

#[test]
fn a_stretch_is_locked_when_as_much_was_read_as_it_has() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 8);
    for block in 0..16 {
        assert!(bed.write(A, block * 8, &[1; 4096], false));
    }
    bed.settle();
    bed.look();
    assert_eq!(bed.stretches(), [], "what nobody reads costs nothing");
    for _ in 0..STRETCH_FRAMES - 1 {
        assert_eq!(bed.read(A, 0, 8), Ok(vec![1; 4096]));
    }
    bed.look();
    assert_eq!(bed.stretches(), []);
    assert_eq!(bed.read(A, 0, 8), Ok(vec![1; 4096]));
    bed.look();
    assert_eq!(bed.read_mapped(A, 0, 8), Some(vec![1; 4096]));
    assert_eq!(bed.read_mapped(A, 0, 128), None, "only what is read takes memory");
    assert_eq!(bed.locked_bytes(), 4 * 4096);
}

#[test]
fn what_is_read_often_is_locked_where_the_file_system_reads_only_with_waiting_too() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Faulty::new(directory.path());
    // As tmpfs, which refuses reads that may not wait.
    disk.faults.cold.store(true, Ordering::SeqCst);
    let options = Options { mapped_bytes_max: MAPPED * SEGMENT_BYTES, ..options(8) };
    let mut bed = open_on(Arc::new(disk), options);
    assert!(bed.write(A, 0, &[1; 16_384], false));
    bed.settle();
    for _ in 0..STRETCH_FRAMES {
        assert_eq!(bed.read(A, 0, 8), Ok(vec![1; 4096]));
    }
    assert_eq!(bed.stats.reads_waited.get(), u64::from(STRETCH_FRAMES));
    bed.look();
    assert_eq!(bed.read_mapped(A, 0, 8), Some(vec![1; 4096]));
}

#[test]
fn a_stretch_takes_the_place_of_another_only_when_read_several_times() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 12);
    for block in 0..4 * SEGMENT_BYTES / 16_384 {
        assert!(bed.write(A, block * 32, &[1; 16_384], false));
        bed.settle();
    }
    bed.count_all(1);
    bed.look();
    let first = bed.stretches();
    assert_eq!(bed.locked_bytes(), MAPPED * SEGMENT_BYTES);
    bed.count_all(READS_FOR_A_PLACE - 2);
    bed.look();
    assert_eq!(bed.stretches(), first);
    bed.count_all(READS_FOR_A_PLACE);
    bed.look();
    assert_ne!(bed.stretches(), first);
    assert_eq!(bed.locked_bytes(), MAPPED * SEGMENT_BYTES);
}

#[test]
fn bytes_that_a_reader_looks_at_stay_when_other_stretches_take_the_place() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 8);
    assert!(bed.write(A, 0, &[7; 4096], false));
    bed.settle();
    bed.lock_all();
    let number = bed.mapped()[0];
    let shared = Arc::clone(&bed.cache.shared);
    let info = shared.table.get(number);
    info.pin();
    let held = info.mapping();
    // SAFETY: the segment is pinned until the end of the test.
    let bytes = unsafe { held.as_ref().unwrap().frames(0, STRETCH_FRAMES) }.unwrap();
    let before = frame_crc(bytes);
    let address = bytes.as_ptr().addr();
    for block in 1..4 * SEGMENT_BYTES / 16_384 {
        assert!(bed.write(A, block * 32, &[1; 16_384], false));
        bed.settle();
    }
    // Everything asks for a place, until the stretch has lost its own.
    for _ in 0..4 {
        bed.count_all(READS_FOR_A_PLACE);
        bed.look();
    }
    assert!(bed.stretches().iter().all(|(other, stretches)| *other != number || stretches & 1 == 0));
    assert!(is_locked(address, directory.path()));
    assert_eq!(frame_crc(bytes), before);
    drop(held);
    bed.look();
    assert!(!is_locked(address, directory.path()));
    info.unpin();
    assert_eq!(bed.read(A, 0, 8), Ok(vec![7; 4096]));
}

#[test]
fn a_stretch_takes_the_place_of_another_one_of_the_same_segment() {
    let directory = tempfile::tempdir().unwrap();
    let stretch_bytes = u64::from(STRETCH_FRAMES) * FRAME_BYTES as u64;
    let options = Options { mapped_bytes_max: stretch_bytes, ..options(8) };
    let mut bed = open_on(Arc::new(Directory::new(directory.path())), options);
    assert!(bed.write(A, 0, &[1; 65_536], false));
    bed.settle();
    for stretch in [1, 3, 2] {
        let heat = &bed.cache.shared.heat;
        (0..READS_FOR_A_PLACE).for_each(|_| heat.count(0, stretch * STRETCH_FRAMES, STRETCH_FRAMES));
        bed.look();
        assert_eq!(bed.stretches(), [(0, 1 << stretch)]);
    }
}

#[test]
fn parts_that_are_used_stay_whatever_else_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let stretch_bytes = u64::from(STRETCH_FRAMES) * FRAME_BYTES as u64;
    let options = Options { mapped_bytes_max: 4 * stretch_bytes, ..options(8) };
    let mut bed = open_on(Arc::new(Directory::new(directory.path())), options);
    for block in 0..16 {
        assert!(bed.write(A, block * 32, &[1; 16_384], false));
        bed.settle();
    }
    bed.cache.shared.heat.count(0, 0, 4 * STRETCH_FRAMES);
    bed.look();
    let first = bed.stretches();
    assert_eq!(first, [(0, 0b1111)]);
    for _ in 0..4 {
        let mapping = Option::clone(&bed.cache.shared.table.get(0).mapping()).unwrap();
        // SAFETY: nothing frees the segment.
        assert!(unsafe { mapping.frames(0, 4 * STRETCH_FRAMES) }.is_some());
        drop(mapping);
        for _ in 0..READS_FOR_A_PLACE {
            bed.cache.shared.heat.count(0, 4 * STRETCH_FRAMES, 12 * STRETCH_FRAMES);
        }
        bed.look();
        assert_eq!(bed.stretches(), first);
    }
    for _ in 0..READS_FOR_A_PLACE {
        bed.cache.shared.heat.count(0, 4 * STRETCH_FRAMES, STRETCH_FRAMES);
    }
    bed.look();
    assert_eq!(bed.stretches(), [(0, 0b1_1110)], "what nobody has used since");
}

#[test]
fn what_was_read_of_a_segment_does_not_count_for_its_next_use() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 8);
    assert!(bed.write(A, 0, &[1; 16_384], false));
    bed.settle();
    let shared = Arc::clone(&bed.cache.shared);
    let id = shared.table.get(0).segment_id();
    shared.heat.count(0, 0, 3);
    for round in 0..1000 {
        if shared.table.get(0).segment_id() != id {
            assert_eq!((0..64).map(|stretch| shared.heat.frames(0, stretch)).sum::<u32>(), 0);
            return;
        }
        assert!(bed.write(A, round % 4 * 32, &[2; 16_384], false));
        bed.settle();
    }
    panic!("the segment is never used again");
}

/// Whether the kernel may not take the page at `address` away, a page of a file in `directory`. Another test may map what it likes at an
/// address that was given back.
fn is_locked(address: usize, directory: &std::path::Path) -> bool {
    let directory = directory.to_str().unwrap();
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_there = false;
    for line in text.lines() {
        if let Some((range, _)) = line.split_once(' ')
            && let Some((start, end)) = range.split_once('-')
            && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            is_there = (start..end).contains(&address) && line.contains(directory);
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && is_there
        {
            return flags.split_whitespace().any(|flag| flag == "lo");
        }
    }
    false
}

#[test]
fn a_segment_that_could_not_be_locked_is_not_tried_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 8);
    assert!(bed.write(A, 0, &[1; 65_536], false));
    bed.settle();
    let path = directory.path().join("segments/00000000.seg");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    // A page behind the end of the file cannot be had, as one that the disk does not read.
    let mut tail = vec![0; 8 * FRAME_BYTES];
    file.read_exact_at(&mut tail, 8 * FRAME_BYTES as u64).unwrap();
    file.set_len(8 * FRAME_BYTES as u64).unwrap();
    bed.lock_all();
    file.set_len(SEGMENT_BYTES).unwrap();
    file.write_all_at(&tail, 8 * FRAME_BYTES as u64).unwrap();
    bed.lock_all();
    assert_eq!(bed.read_mapped(A, 96, 8), None);
    assert_eq!(bed.read(A, 96, 8), Ok(vec![1; 4096]));
    assert_eq!(bed.read_mapped(A, 0, 8), Some(vec![1; 4096]), "locked before");
}

#[test]
fn a_read_of_which_only_some_is_mapped_reads_the_file_for_the_rest() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open_mapped(&directory, 8);
    // No two blocks that are beside each other in the export are so in the log.
    for block in (0..16).map(|step| step * 5 % 16) {
        assert!(bed.write(A, block * 8, &[u8::try_from(block).unwrap(); 4096], false));
    }
    bed.settle();
    // The frames 8 to 11, as most, are of data: the record is one.
    bed.cache.shared.heat.count(0, 8, STRETCH_FRAMES);
    bed.look();
    assert_eq!(bed.stretches(), [(0, 1 << 2)]);
    assert_eq!(bed.read_mapped(A, 0, 128), None);
    let wanted: Vec<u8> = (0..16).flat_map(|block| [block; 4096]).collect();
    assert!(bed.read(A, 0, 128) == Ok(wanted));
    let from_file = (0..64).map(|stretch| bed.cache.shared.heat.frames(0, stretch)).sum::<u32>();
    assert_eq!(from_file, 16 - STRETCH_FRAMES, "what is in memory is not read from the file");
    assert!(bed.is_nothing_pinned());
}
