//! The shard on a real directory: what is written is read, survives reopening, and is counted.

use std::sync::Arc;

use super::*;
use crate::cache::facade::Cache;
use crate::cache::keeper::Keeper;
use crate::cache::log::directory::Directory;
use crate::cache::log::disk::{MonotonicClock, SegmentFile};
use crate::cache::options::{Known, OnFull, Options, Recovered};
use crate::cache::volume::cuts::CutState;
use crate::units::{ExportId, FRAME_BYTES};

const SEGMENT_BYTES: u64 = 1 << 20;
const A: ExportId = ExportId(1);
const B: ExportId = ExportId(2);

#[derive(Debug)]
struct Request {
    name: u32,
    buffer: Vec<u8>,
}

impl Token for Request {
    type Part = Vec<u8>;

    fn buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    fn lend(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut part = std::mem::take(&mut self.buffer);
        part.truncate(bytes);
        Some(part)
    }
}

/// A cache in a temporary directory with one shard and a keeper that runs when asked.
struct Rig {
    cache: Cache,
    keeper: Keeper,
    shard: Shard<Request>,
    stats: Arc<ShardStats>,
    recovered: Recovered,
}

fn write(file: &dyn SegmentFile, offset: u64, parts: &[Vec<u8>]) -> io::Result<()> {
    let pieces: Vec<_> = parts.iter().map(|part| io::IoSlice::new(part)).collect();
    file.write_at(&pieces, offset)
}

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

fn open(directory: &tempfile::TempDir, segments: u64) -> Rig {
    let options = Options {
        size_bytes: segments * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        shards: 1,
        on_full: OnFull::Enospc,
    };
    let disk = Arc::new(Directory::new(directory.path()));
    let (cache, recovered) =
        Cache::open(disk, Arc::new(MonotonicClock::default()), options, Known::local(&[A, B])).unwrap();
    let stats = Arc::new(ShardStats::default());
    let shard = cache.shard(0, Arc::clone(&stats));
    let mut keeper = cache.keeper();
    while keeper.step() {}
    Rig { cache, keeper, shard, stats, recovered }
}

impl Rig {
    fn reserve(&mut self, bytes: usize) -> Option<Reservation> {
        for _ in 0..10_000 {
            match self.shard.admit(bytes) {
                Admission::Accept(reservation) => return Some(reservation),
                Admission::Full => return None,
                Admission::Delay(_) | Admission::Wait => {
                    self.keeper.step();
                }
            }
        }
        panic!("neither room nor an error");
    }

    fn write(&mut self, volume: ExportId, at: u64, bytes: &[u8], fua: bool) -> bool {
        let Some(reservation) = self.reserve(bytes.len()) else { return false };
        let mut buffer = bytes.to_vec();
        buffer.resize(bytes.len().next_multiple_of(FRAME_BYTES), 0xEE);
        let volume = self.cache.volume(volume);
        let token = Request { name: 0, buffer };
        self.shard.write(&volume, range(at, bytes.len() as u64 / 512), fua, reservation, token);
        true
    }

    fn zero(&mut self, volume: ExportId, range: SectorRange) {
        let reservation = self.reserve(0).unwrap();
        let volume = self.cache.volume(volume);
        self.shard.zero(&volume, range, false, reservation, Request { name: 0, buffer: Vec::new() });
    }

    /// Takes turns and does what is wanted until nothing is.
    fn settle(&mut self) -> Vec<(Request, Result<(), IoError>)> {
        let mut completed = Vec::new();
        for _ in 0..1000 {
            self.shard.turn();
            let wants: Vec<_> = self.shard.wants().collect();
            for want in wants {
                match want {
                    Want::Append { op, file, offset, parts } => {
                        let result = write(&*file, offset, &parts);
                        self.shard.append_done(op, result, parts);
                    }
                    Want::Sync { op, file } => self.shard.sync_done(op, file.sync()),
                    Want::Read { op, file, offset, mut buffer } => {
                        let result = file.read_at(&mut buffer, offset);
                        self.shard.read_done(op, result, buffer);
                    }
                }
            }
            completed.extend(self.shard.completed());
            if self.shard.idle() {
                return completed;
            }
            self.keeper.step();
        }
        panic!("requests never came back: {:?}", self.shard);
    }

    fn read(&mut self, volume: ExportId, at: u64, sectors: u64) -> Result<Vec<u8>, IoError> {
        let volume = self.cache.volume(volume);
        let bytes = usize::try_from(sectors * 512).unwrap();
        let token = Request { name: 9, buffer: vec![0xDD; bytes.next_multiple_of(FRAME_BYTES)] };
        self.shard.read(&volume, range(at, sectors), None, token);
        let (mut token, result) = self.settle().into_iter().find(|(token, _)| token.name == 9).unwrap();
        token.buffer.truncate(bytes);
        result.map(|()| token.buffer)
    }

    fn flush(&mut self, volume: ExportId) -> Result<(), IoError> {
        let volume = self.cache.volume(volume);
        self.shard.flush(&volume, Request { name: 8, buffer: Vec::new() });
        self.settle().into_iter().find(|(token, _)| token.name == 8).unwrap().1
    }
}

#[test]
fn what_is_written_is_read_back_before_and_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 8);
    assert!(rig.write(A, 0, &[1; 8192], false));
    assert!(rig.write(A, 3, &[2; 1536], false));
    assert!(rig.write(B, 0, &[3; 512], true));
    rig.zero(A, range(12, 2));
    let done = rig.settle();
    assert_eq!(done.len(), 4);
    assert!(done.iter().all(|(_, result)| result.is_ok()));
    assert_eq!(rig.stats.appends.get(), 1, "requests of one turn share a record");
    let mut expected = vec![1; 8192];
    expected[1536..3072].fill(2);
    expected[6144..7168].fill(0);
    expected.extend([0; 512]);
    for reopened in [false, true] {
        if reopened {
            drop(rig);
            rig = open(&directory, 8);
            assert_eq!((rig.recovered.scans, rig.recovered.entries), (1, 4));
        }
        assert_eq!(rig.read(A, 0, 17), Ok(expected.clone()), "reopened: {reopened}");
        assert_eq!(rig.read(A, 5, 2), Ok(expected[2560..3584].to_vec()));
        assert_eq!(rig.read(B, 0, 2).unwrap()[..512], [3; 512]);
        assert_eq!(rig.read(B, 0, 2).unwrap()[512..], [0; 512]);
    }
    drop(rig);
    let rig = open(&directory, 8);
    assert_eq!((rig.recovered.scans, rig.recovered.footers), (0, 1), "recovery sealed what it scanned");
}

#[test]
fn flush_syncs_only_what_its_volume_has_unsynced() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 8);
    assert_eq!(rig.flush(A), Ok(()));
    assert_eq!(rig.stats.syncs.get(), 0);
    rig.write(A, 0, &[1; 4096], false);
    rig.settle();
    assert_eq!(rig.flush(B), Ok(()));
    assert_eq!(rig.stats.syncs.get(), 0, "nothing of B was written");
    assert_eq!(rig.flush(A), Ok(()));
    assert_eq!(rig.flush(A), Ok(()));
    assert_eq!((rig.stats.syncs.get(), rig.stats.empty_flushes.get()), (1, 3));
}

#[test]
fn flushes_of_many_volumes_share_one_sync() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 8);
    rig.write(A, 0, &[1; 4096], false);
    rig.write(B, 0, &[1; 4096], true);
    rig.shard.turn();
    for volume in [A, B] {
        let volume = rig.cache.volume(volume);
        rig.shard.flush(&volume, Request { name: 8, buffer: Vec::new() });
    }
    assert_eq!(rig.settle().len(), 4);
    assert_eq!(rig.stats.syncs.get(), 1);
}

#[test]
fn overwriting_many_times_the_size_of_the_cache_never_fails() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 8);
    // Half of what the cache holds, written over and over in another order each time.
    let blocks = 4 * SEGMENT_BYTES / 16_384;
    for round in 0..12_u64 {
        for step in 0..blocks {
            let block = (step * 37 + round * 11) % blocks;
            let fill = u8::try_from((round + block) % 251).unwrap();
            assert!(rig.write(A, block * 32, &[fill; 16_384], false), "round {round}, step {step}");
            rig.settle();
        }
    }
    for block in 0..blocks {
        let fill = u8::try_from((11 + block) % 251).unwrap();
        assert_eq!(rig.read(A, block * 32, 32), Ok(vec![fill; 16_384]), "block {block}");
    }
    let stats = rig.cache.stats();
    assert_eq!(stats.dirty_bytes, 4 * SEGMENT_BYTES);
    drop(rig);
    let mut rig = open(&directory, 8);
    for block in 0..blocks {
        let fill = u8::try_from((11 + block) % 251).unwrap();
        assert_eq!(rig.read(A, block * 32, 32), Ok(vec![fill; 16_384]), "block {block}");
    }
}

#[test]
fn a_cache_full_of_needed_data_says_so_and_recovers_when_an_export_goes() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 6);
    let mut written = 0;
    while rig.write(A, written * 256, &vec![7; 131_072], false) {
        rig.settle();
        written += 1;
        assert!(written < 60, "more fits than there is room");
    }
    assert!(written >= 12, "only {written} writes fitted");
    assert_eq!(rig.read(A, 0, 8), Ok(vec![7; 4096]));
    rig.cache.remove(A);
    while rig.keeper.step() {}
    assert!(rig.write(B, 0, &[8; 4096], false));
    rig.settle();
    assert_eq!(rig.read(B, 0, 8), Ok(vec![8; 4096]));
}

#[test]
fn a_damaged_frame_fails_exactly_the_reads_that_need_it() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 8);
    rig.write(A, 0, &[1; 12_288], true);
    rig.settle();
    let file =
        std::fs::OpenOptions::new().write(true).open(directory.path().join("segments/00000000.seg")).unwrap();
    // Frame 0 is the segment's header, frame 1 the announcement, frame 2 the record's header, frame 4 the second of the data.
    file.write_at(&[0], 4 * 4096 + 100).unwrap();
    assert_eq!(rig.read(A, 0, 8), Ok(vec![1; 4096]));
    assert_eq!(rig.read(A, 8, 1), Err(IoError::Corrupt));
    assert_eq!(rig.read(A, 0, 24), Err(IoError::Corrupt));
    assert_eq!(rig.read(A, 16, 8), Ok(vec![1; 4096]));
    assert_eq!(rig.cache.stats().corrupt_frames, 2);
    rig.write(A, 8, &[2; 4096], false);
    rig.settle();
    assert_eq!(rig.read(A, 8, 8), Ok(vec![2; 4096]), "writing it again heals it");
}

#[test]
fn a_second_daemon_is_kept_out_and_a_missing_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let _rig = open(&directory, 8);
    let options = Options { size_bytes: 8 << 20, segment_bytes: 1 << 20, shards: 1, on_full: OnFull::Wait };
    let open = |path: &std::path::Path| {
        Cache::open(
            Arc::new(Directory::new(path)),
            Arc::new(MonotonicClock::default()),
            options,
            Known::local(&[]),
        )
        .unwrap_err()
    };
    assert!(matches!(open(directory.path()), crate::cache::CacheError::InUse { .. }));
    assert!(matches!(
        open(&directory.path().join("none")),
        crate::cache::CacheError::DirectoryMissing { .. }
    ));
}

#[test]
fn a_cache_grows_and_shrinks_but_not_below_its_data() {
    let directory = tempfile::tempdir().unwrap();
    let fill = |rig: &mut Rig, writes: u64| {
        for at in 0..writes {
            assert!(rig.write(A, at * 256, &vec![5; 131_072], false));
            rig.settle();
        }
    };
    let mut rig = open(&directory, 6);
    fill(&mut rig, 8);
    drop(rig);
    let mut rig = open(&directory, 12);
    fill(&mut rig, 40);
    drop(rig);
    let options = Options { size_bytes: 5 << 20, segment_bytes: 1 << 20, shards: 1, on_full: OnFull::Wait };
    let shrink = |exports: &[ExportId]| {
        let disk = Arc::new(Directory::new(directory.path()));
        Cache::open(disk, Arc::new(MonotonicClock::default()), options, Known::local(exports))
    };
    let refused = shrink(&[A]).unwrap_err();
    assert!(matches!(refused, crate::cache::CacheError::CannotShrink { segments: 5, .. }), "{refused}");
    shrink(&[]).unwrap();
    let files = std::fs::read_dir(directory.path().join("segments")).unwrap().count();
    assert!(files <= 5, "{files} files");
}

/// Memory for the headers of `count` records.
fn headers(count: usize) -> Vec<Vec<u8>> {
    (0..2 * count).map(|_| vec![0; FRAME_BYTES]).collect()
}

/// An append that was handed out.
type Handed = (u32, Arc<dyn SegmentFile>, u64, Vec<Vec<u8>>);

impl Rig {
    /// Writes one frame of `byte` to sector `at` of A, in a record of its own that is handed out.
    fn hand_out(&mut self, at: u64, byte: u8) -> Handed {
        assert!(self.write(A, at, &[byte; FRAME_BYTES], false));
        self.shard.turn();
        let mut wants: Vec<_> = self.shard.wants().collect();
        match wants.pop() {
            Some(Want::Append { op, file, offset, parts }) if wants.is_empty() => (op, file, offset, parts),
            other => panic!("{other:?} and {wants:?}"),
        }
    }

    fn land(&mut self, (op, file, offset, parts): Handed) {
        let result = write(&*file, offset, &parts);
        self.shard.append_done(op, result, parts);
    }

    fn fail(&mut self, (op, _, _, parts): Handed) {
        self.shard.append_done(op, Err(io::ErrorKind::StorageFull.into()), parts);
    }

    fn completed(&mut self) -> Vec<Result<(), IoError>> {
        self.shard.completed().map(|(_, result)| result).collect()
    }
}

#[test]
fn a_deferred_record_is_acknowledged_and_seen_only_when_those_before_it_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 8);
    rig.shard.defer_appends(headers(4));
    let (first, second) = (rig.hand_out(0, 1), rig.hand_out(8, 2));
    assert!(first.2 < second.2);
    rig.land(second);
    assert_eq!(rig.completed(), []);
    assert_eq!(rig.cache.stats().extents, 0);
    rig.land(first);
    assert_eq!(rig.completed(), [Ok(()), Ok(())]);
    assert_eq!(rig.read(A, 0, 16).unwrap(), [[1; FRAME_BYTES], [2; FRAME_BYTES]].concat());
}

#[test]
fn a_deferred_record_that_fails_takes_those_behind_it_along_and_none_before() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 8);
    rig.shard.defer_appends(headers(4));
    let (first, second, third) = (rig.hand_out(0, 1), rig.hand_out(8, 2), rig.hand_out(16, 3));
    rig.land(third);
    rig.fail(second);
    assert_eq!(rig.completed(), []);
    rig.land(first);
    assert_eq!(rig.completed(), [Ok(()), Err(IoError::Write), Err(IoError::Write)]);
    let next = rig.hand_out(24, 4);
    rig.land(next);
    assert_eq!(rig.completed(), [Ok(())]);
    assert!(rig.settle().is_empty());
    rig.flush(A).unwrap();
    while rig.keeper.step() {}
    drop(rig);
    let mut rig = open(&directory, 8);
    let expected = [[1; FRAME_BYTES], [0; FRAME_BYTES], [0; FRAME_BYTES], [4; FRAME_BYTES]].concat();
    assert_eq!(rig.read(A, 0, 32).unwrap(), expected);
}

#[test]
fn requests_gather_while_as_many_records_as_may_be_are_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 8);
    rig.shard.defer_appends(headers(1));
    let first = rig.hand_out(0, 1);
    for at in [8, 16] {
        assert!(rig.write(A, at, &[2; FRAME_BYTES], false));
        rig.shard.turn();
    }
    assert_eq!(rig.shard.wants().count(), 0);
    rig.land(first);
    assert_eq!(rig.settle().len(), 3);
    assert_eq!(rig.stats.appends.get(), 2);
    assert_eq!(rig.read(A, 8, 16).unwrap(), [2; 2 * FRAME_BYTES]);
}

#[test]
fn a_segment_is_let_go_of_only_when_its_last_record_has_landed() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 8);
    rig.shard.defer_appends(headers(4));
    let held = rig.hand_out(0, 1);
    let slot_of = |handed: &Handed| handed.1.fd().map(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd));
    let mut at = 0;
    let last = loop {
        at += 8;
        let next = rig.hand_out(at, 2);
        if slot_of(&next) != slot_of(&held) {
            break next;
        }
        rig.land(next);
    };
    while rig.keeper.step() {}
    assert_eq!(rig.cache.stats().segments_sealed, 0);
    rig.land(last);
    assert_eq!(rig.completed(), []);
    rig.land(held);
    assert_eq!(rig.completed().len() as u64, at / 8 + 1);
    while rig.keeper.step() {}
    assert_eq!(rig.cache.stats().segments_sealed, 1);
    assert_eq!(rig.read(A, 0, 8).unwrap(), [1; FRAME_BYTES]);
}

#[test]
fn writes_that_wait_for_a_segment_keep_no_cut_waiting_and_are_written_when_there_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut rig = open(&directory, 8);
    rig.write(A, 0, &[1; 4096], false);
    rig.settle();
    for (volume, at) in [(A, 8), (B, 0), (A, 16)] {
        assert!(rig.write(volume, at, &[2; 4096], false));
    }
    let (a, b) = (rig.cache.volume(A), rig.cache.volume(B));
    let shared = Arc::clone(&rig.cache.shared);
    // The segment that they were to be appended to fails, and the keeper has no other.
    let spare: Vec<_> = std::iter::from_fn(|| shared.ports[0].take()).collect();
    shared.table.get(rig.shard.log.active.as_ref().unwrap().number).poison();
    a.cut_now();
    assert_eq!(a.cut_state(), CutState::Landing);
    rig.shard.turn();
    assert!(matches!(a.cut_state(), CutState::Complete(_)), "{:?}", a.cut_state());
    let numbers = a.figures().last_seq;
    rig.shard.turn();
    assert_eq!(a.figures().last_seq, numbers, "no numbers are given out while they wait");
    assert_eq!(rig.shard.completed().len(), 0);

    b.end_waits();
    rig.shard.end_waits();
    let ended: Vec<_> = rig.shard.completed().map(|(_, result)| result).collect();
    assert_eq!(ended, [Err(IoError::Detached)], "the device behind it is being removed");

    for segment in spare {
        shared.ports[0].offer(segment);
    }
    let done = rig.settle();
    assert_eq!(done.len(), 2);
    assert!(done.iter().all(|(_, result)| result.is_ok()));
    assert_eq!(rig.read(A, 0, 24), Ok([vec![1; 4096], vec![2; 8192]].concat()));
    assert_eq!(rig.read(B, 0, 8), Ok(vec![0; 4096]));
}
