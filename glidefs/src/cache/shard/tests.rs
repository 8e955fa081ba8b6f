//! The shard on a real directory: data that is written is read, survives reopening, and is counted.

mod mapped;
mod pieces;
mod sums;
mod through;
mod zeroes;

use std::io;
use std::sync::Arc;

use super::*;
use crate::cache::Budgets;
use crate::cache::driver::rig::{Completion, Duty, MemoryToken, Rig, carry_out};
use crate::cache::facade::Cache;
use crate::cache::handoff::Way;
use crate::cache::keeper::Keeper;
use crate::cache::log::directory::Directory;
use crate::cache::log::disk::{Disk, MonotonicClock, SegmentFile};
use crate::cache::log::format::frame_crc;
use crate::cache::options::{Known, OnFull, Options, Recovered};
use crate::cache::volume::cuts::CutState;
use crate::units::{ExportId, FRAME_BYTES, SectorRange, Seq};

const SEGMENT_BYTES: u64 = 1 << 20;
const A: ExportId = ExportId(1);
const B: ExportId = ExportId(2);

/// Appends under way at most, in tests with deferred appends.
const APPENDS_MAX: usize = 4;
/// Names of requests.
const WRITE: u32 = 0;
const FLUSH: u32 = 8;
const READ: u32 = 9;

/// A cache in a temporary directory with one shard, and a keeper that runs on demand.
struct Bed {
    cache: Cache,
    keeper: Keeper,
    rig: Rig<MemoryToken<u32>>,
    stats: Arc<ShardStats>,
    recovered: Recovered,
}

fn range(start: u64, count: u64) -> SectorRange {
    SectorRange::new(start, count).unwrap()
}

fn open(directory: &tempfile::TempDir, segments: u64) -> Bed {
    open_on(Arc::new(Directory::new(directory.path())), options(segments))
}

fn options(segments: u64) -> Options {
    Options {
        size_bytes: segments * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        shards: 1,
        on_full: OnFull::Enospc,
        checksums_bytes_max: 1 << 20,
        mapped_bytes_max: 0,
        budgets: Budgets::default(),
        hands: 1,
    }
}

fn open_on(disk: Arc<dyn Disk>, options: Options) -> Bed {
    let (cache, recovered) =
        Cache::open(disk, Arc::new(MonotonicClock::default()), options, Known::local(&[A, B])).unwrap();
    let stats = Arc::new(ShardStats::default());
    let rig = Rig::new(cache.shard(0, Arc::clone(&stats)));
    let mut keeper = cache.keeper();
    while keeper.step() {}
    Bed { cache, keeper, rig, stats, recovered }
}

impl Bed {
    fn reserve(&mut self, bytes: usize) -> Option<Reservation> {
        for _ in 0..10_000 {
            match self.rig.shard.admit(bytes) {
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
        let volume = self.cache.volume(volume);
        let token = MemoryToken::writing(WRITE, bytes);
        self.rig.shard.write(&volume, range(at, bytes.len() as u64 / 512), fua, reservation, token);
        true
    }

    fn zero(&mut self, volume: ExportId, range: SectorRange) {
        let reservation = self.reserve(0).unwrap();
        let volume = self.cache.volume(volume);
        self.rig.shard.zero(&volume, range, false, reservation, MemoryToken::without_data(WRITE));
    }

    /// Takes turns and carries out wants until the shard is idle.
    fn settle(&mut self) -> Vec<Completion<MemoryToken<u32>>> {
        let Self { keeper, rig, .. } = self;
        let mut rounds = 0;
        rig.settle(|| {
            keeper.step();
            rounds += 1;
            assert!(rounds < 1000, "requests never came back");
            true
        })
    }

    /// As [`Self::settle`], for the end of the request `name`.
    fn settle_one(&mut self, name: u32) -> Completion<MemoryToken<u32>> {
        self.settle().into_iter().find(|completion| completion.token.name == name).unwrap()
    }

    fn read(&mut self, volume: ExportId, at: u64, sectors: u64) -> Result<Vec<u8>, IoError> {
        let volume = self.cache.volume(volume);
        let bytes = usize::try_from(sectors * 512).unwrap();
        let token = MemoryToken::reading(READ, bytes);
        self.rig.shard.read(&volume, range(at, sectors), None, token);
        let Completion { token, result } = self.settle_one(READ);
        result.map(|()| token.data(bytes).to_vec())
    }

    fn flush(&mut self, volume: ExportId) -> Result<(), IoError> {
        let volume = self.cache.volume(volume);
        self.rig.shard.flush(&volume, MemoryToken::without_data(FLUSH));
        self.settle_one(FLUSH).result
    }
}

#[test]
fn what_is_written_is_read_back_before_and_after_reopening() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    assert!(bed.write(A, 0, &[1; 8192], false));
    assert!(bed.write(A, 3, &[2; 1536], false));
    assert!(bed.write(B, 0, &[3; 512], true));
    bed.zero(A, range(12, 2));
    let done = bed.settle();
    assert_eq!(done.len(), 4);
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    assert_eq!(bed.stats.appends.get(), 1, "requests of one turn share a record");
    let mut expected = vec![1; 8192];
    expected[1536..3072].fill(2);
    expected[6144..7168].fill(0);
    expected.extend([0; 512]);
    for reopened in [false, true] {
        if reopened {
            drop(bed);
            bed = open(&directory, 8);
            assert_eq!((bed.recovered.scans, bed.recovered.entries), (1, 4));
        }
        assert_eq!(bed.read(A, 0, 17), Ok(expected.clone()), "reopened: {reopened}");
        assert_eq!(bed.read(A, 5, 2), Ok(expected[2560..3584].to_vec()));
        assert_eq!(bed.read(B, 0, 2).unwrap()[..512], [3; 512]);
        assert_eq!(bed.read(B, 0, 2).unwrap()[512..], [0; 512]);
    }
    drop(bed);
    let bed = open(&directory, 8);
    let recovered = bed.recovered;
    assert_eq!(
        (recovered.scans, recovered.footers + recovered.covered),
        (0, 1),
        "recovery sealed what it scanned"
    );
}

/// A catalog of a version that believed every manifest may have the number 2^64 - 1, at which the next one overflows.
#[test]
fn an_export_without_sequence_numbers_fails_its_writes_and_no_other_request() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 16);
    let volume = bed.cache.begin(A, Seq(u64::MAX));
    for round in 0..3 {
        // A FUA WRITE goes another way.
        assert!(bed.write(A, 0, &[1; 4096], round == 1));
        // Of zeroes that must be stable a record is made, though the sectors are zero.
        let reservation = bed.reserve(0).unwrap();
        bed.rig.shard.zero(&volume, range(0, 8), true, reservation, MemoryToken::without_data(WRITE));
        let done = bed.settle();
        assert_eq!(done.len(), 2);
        assert!(done.iter().all(|completion| completion.result == Err(IoError::NoSequenceNumber)));
        assert_eq!(bed.read(A, 0, 8).unwrap(), [0; 4096]);
        bed.flush(A).unwrap();
        assert!(bed.write(B, 0, &[2; 4096], false));
        assert!(bed.settle().iter().all(|completion| completion.result.is_ok()));
        assert_eq!(bed.read(B, 0, 8).unwrap(), [2; 4096]);
    }
    assert_eq!(volume.figures().last_seq, Seq(u64::MAX));
}

#[test]
fn flush_syncs_only_what_its_volume_has_unsynced() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    assert_eq!(bed.flush(A), Ok(()));
    assert_eq!(bed.stats.syncs.get(), 0);
    bed.write(A, 0, &[1; 4096], false);
    bed.settle();
    assert_eq!(bed.flush(B), Ok(()));
    assert_eq!(bed.stats.syncs.get(), 0, "nothing of B was written");
    assert_eq!(bed.flush(A), Ok(()));
    assert_eq!(bed.flush(A), Ok(()));
    assert_eq!((bed.stats.syncs.get(), bed.stats.empty_flushes.get()), (1, 3));
}

#[test]
fn flushes_of_many_volumes_share_one_sync() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    bed.write(A, 0, &[1; 4096], false);
    bed.write(B, 0, &[1; 4096], true);
    bed.rig.shard.turn();
    for volume in [A, B] {
        let volume = bed.cache.volume(volume);
        bed.rig.shard.flush(&volume, MemoryToken::without_data(FLUSH));
    }
    assert_eq!(bed.settle().len(), 4);
    assert_eq!(bed.stats.syncs.get(), 1);
}

#[test]
fn overwriting_many_times_the_size_of_the_cache_never_fails() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    // Half of the cache's size, written over and over in a new order each time.
    let blocks = 4 * SEGMENT_BYTES / 16_384;
    for round in 0..12_u64 {
        for step in 0..blocks {
            let block = (step * 37 + round * 11) % blocks;
            let fill = u8::try_from((round + block) % 251).unwrap();
            assert!(bed.write(A, block * 32, &[fill; 16_384], false), "round {round}, step {step}");
            bed.settle();
        }
    }
    for block in 0..blocks {
        let fill = u8::try_from((11 + block) % 251).unwrap();
        assert_eq!(bed.read(A, block * 32, 32), Ok(vec![fill; 16_384]), "block {block}");
    }
    let stats = bed.cache.stats();
    assert_eq!(stats.dirty_bytes, 4 * SEGMENT_BYTES);
    drop(bed);
    let mut bed = open(&directory, 8);
    for block in 0..blocks {
        let fill = u8::try_from((11 + block) % 251).unwrap();
        assert_eq!(bed.read(A, block * 32, 32), Ok(vec![fill; 16_384]), "block {block}");
    }
}

#[test]
fn a_cache_full_of_needed_data_says_so_and_recovers_when_an_export_goes() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 6);
    let mut written = 0;
    while bed.write(A, written * 256, &vec![7; 131_072], false) {
        bed.settle();
        written += 1;
        assert!(written < 60, "more fits than there is room");
    }
    assert!(written >= 12, "only {written} writes fitted");
    assert_eq!(bed.read(A, 0, 8), Ok(vec![7; 4096]));
    bed.cache.remove(A);
    while bed.keeper.step() {}
    assert!(bed.write(B, 0, &[8; 4096], false));
    bed.settle();
    assert_eq!(bed.read(B, 0, 8), Ok(vec![8; 4096]));
}

#[test]
fn a_damaged_frame_fails_exactly_the_reads_that_need_it() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    bed.write(A, 0, &[1; 12_288], true);
    bed.settle();
    let file =
        std::fs::OpenOptions::new().write(true).open(directory.path().join("segments/00000000.seg")).unwrap();
    // Frame 0 is the segment's header, frame 1 the announcement, frame 2 the record's header, frame 4 the second of the data.
    file.write_at(&[0], 4 * 4096 + 100).unwrap();
    assert_eq!(bed.read(A, 0, 8), Ok(vec![1; 4096]));
    assert_eq!(bed.read(A, 8, 1), Err(IoError::Corrupt));
    assert_eq!(bed.read(A, 0, 24), Err(IoError::Corrupt));
    assert_eq!(bed.read(A, 16, 8), Ok(vec![1; 4096]));
    assert_eq!(bed.cache.stats().corrupt_frames, 2);
    bed.write(A, 8, &[2; 4096], false);
    bed.settle();
    assert_eq!(bed.read(A, 8, 8), Ok(vec![2; 4096]), "writing the frame again heals the frame");
}

#[test]
fn a_second_daemon_is_kept_out_and_a_missing_directory_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let _rig = open(&directory, 8);
    let options = Options {
        size_bytes: 8 << 20,
        segment_bytes: 1 << 20,
        shards: 1,
        on_full: OnFull::Wait,
        checksums_bytes_max: 1 << 20,
        mapped_bytes_max: 0,
        budgets: Budgets::default(),
        hands: 1,
    };
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
    let fill = |bed: &mut Bed, writes: u64| {
        for at in 0..writes {
            assert!(bed.write(A, at * 256, &vec![5; 131_072], false));
            bed.settle();
        }
    };
    let mut bed = open(&directory, 6);
    fill(&mut bed, 8);
    drop(bed);
    let mut bed = open(&directory, 12);
    fill(&mut bed, 40);
    drop(bed);
    let options = Options {
        size_bytes: 5 << 20,
        segment_bytes: 1 << 20,
        shards: 1,
        on_full: OnFull::Wait,
        checksums_bytes_max: 1 << 20,
        mapped_bytes_max: 0,
        budgets: Budgets::default(),
        hands: 1,
    };
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

/// An append handed out by the shard.
struct Handed {
    op: u32,
    file: Arc<dyn SegmentFile>,
    offset: u64,
    parts: Vec<Vec<u8>>,
}

impl Bed {
    /// Writes one frame of `byte` to sector `at` of A, in a record of its own, and returns the append.
    fn hand_out(&mut self, at: u64, byte: u8) -> Handed {
        assert!(self.write(A, at, &[byte; FRAME_BYTES], false));
        self.rig.turn();
        assert_eq!(self.rig.duties().len(), 1, "{:?}", self.rig.duties());
        match self.rig.take(0) {
            Duty::Wanted(Want::Append { op, file, offset, parts }) => Handed { op, file, offset, parts },
            other => panic!("{other:?}"),
        }
    }

    fn land(&mut self, Handed { op, file, offset, parts }: Handed) {
        carry_out(Want::Append { op, file, offset, parts }).report(&mut self.rig.shard);
    }

    fn fail(&mut self, Handed { op, parts, .. }: Handed) {
        self.rig.shard.append_done(op, Err(io::ErrorKind::StorageFull.into()), parts);
    }

    fn completed(&mut self) -> Vec<Result<(), IoError>> {
        self.rig.completed().map(|completion| completion.result).collect()
    }
}

#[test]
fn a_deferred_record_is_acknowledged_and_seen_only_when_those_before_it_are_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    bed.rig.defer_appends(APPENDS_MAX);
    let (first, second) = (bed.hand_out(0, 1), bed.hand_out(8, 2));
    assert!(first.offset < second.offset);
    bed.land(second);
    assert_eq!(bed.completed(), []);
    assert_eq!(bed.cache.stats().extents, 0);
    bed.land(first);
    assert_eq!(bed.completed(), [Ok(()), Ok(())]);
    assert_eq!(bed.read(A, 0, 16).unwrap(), [[1; FRAME_BYTES], [2; FRAME_BYTES]].concat());
}

#[test]
fn a_deferred_record_that_fails_takes_those_behind_it_along_and_none_before() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    bed.rig.defer_appends(APPENDS_MAX);
    let (first, second, third) = (bed.hand_out(0, 1), bed.hand_out(8, 2), bed.hand_out(16, 3));
    bed.land(third);
    bed.fail(second);
    assert_eq!(bed.completed(), []);
    bed.land(first);
    assert_eq!(bed.completed(), [Ok(()), Err(IoError::Write), Err(IoError::Write)]);
    let next = bed.hand_out(24, 4);
    bed.land(next);
    assert_eq!(bed.completed(), [Ok(())]);
    assert!(bed.settle().is_empty());
    bed.flush(A).unwrap();
    while bed.keeper.step() {}
    drop(bed);
    let mut bed = open(&directory, 8);
    let expected = [[1; FRAME_BYTES], [0; FRAME_BYTES], [0; FRAME_BYTES], [4; FRAME_BYTES]].concat();
    assert_eq!(bed.read(A, 0, 32).unwrap(), expected);
}

#[test]
fn requests_gather_while_as_many_records_as_may_be_are_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    bed.rig.defer_appends(1);
    let first = bed.hand_out(0, 1);
    for at in [8, 16] {
        assert!(bed.write(A, at, &[2; FRAME_BYTES], false));
        bed.rig.shard.turn();
    }
    assert_eq!(bed.rig.duties().len(), 0);
    bed.land(first);
    assert_eq!(bed.settle().len(), 3);
    assert_eq!(bed.stats.appends.get(), 2);
    assert_eq!(bed.read(A, 8, 16).unwrap(), [2; 2 * FRAME_BYTES]);
}

#[test]
fn a_segment_is_let_go_of_only_when_its_last_record_has_landed() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    bed.rig.defer_appends(APPENDS_MAX);
    let held = bed.hand_out(0, 1);
    let file_of = |handed: &Handed| handed.file.fd().map(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd));
    let mut at = 0;
    let last = loop {
        at += 8;
        let next = bed.hand_out(at, 2);
        if file_of(&next) != file_of(&held) {
            break next;
        }
        bed.land(next);
    };
    while bed.keeper.step() {}
    assert_eq!(bed.cache.stats().segments_sealed, 0);
    bed.land(last);
    assert_eq!(bed.completed(), []);
    bed.land(held);
    assert_eq!(bed.completed().len() as u64, at / 8 + 1);
    while bed.keeper.step() {}
    assert_eq!(bed.cache.stats().segments_sealed, 1);
    assert_eq!(bed.read(A, 0, 8).unwrap(), [1; FRAME_BYTES]);
}

/// Writes without a segment once kept their sequence numbers. The cut that would have made room waited for these numbers, and the
/// writes waited for the room.
#[test]
fn writes_that_wait_for_a_segment_keep_no_cut_waiting_and_are_written_when_there_is_one() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = open(&directory, 8);
    bed.write(A, 0, &[1; 4096], false);
    bed.settle();
    for (volume, at) in [(A, 8), (B, 0), (A, 16)] {
        assert!(bed.write(volume, at, &[2; 4096], false));
    }
    let (a, b) = (bed.cache.volume(A), bed.cache.volume(B));
    let shared = Arc::clone(&bed.cache.shared);
    // The segment for these writes fails, and the keeper has no other one.
    let spare: Vec<_> = std::iter::from_fn(|| shared.ports[0].take(Way::Common, &shared.signal)).collect();
    shared.table.get(bed.rig.shard.log.common.active.as_ref().unwrap().number).poison();
    a.cut_now();
    assert_eq!(a.cut_state(), CutState::Landing);
    bed.rig.shard.turn();
    assert!(matches!(a.cut_state(), CutState::Complete(_)), "{:?}", a.cut_state());
    let numbers = a.figures().last_seq;
    bed.rig.shard.turn();
    assert_eq!(a.figures().last_seq, numbers, "no numbers are given out while they wait");
    let made = frame_crc(&[2; FRAME_BYTES]);
    let waiting = &bed.rig.shard.log.backlog;
    assert!(
        waiting.len() == 3
            && waiting.iter().all(|pending| pending.crcs.as_ref().is_some_and(|crcs| crcs[0] == made))
    );
    assert_eq!(bed.completed(), []);

    b.end_waits();
    bed.rig.shard.end_waits();
    assert_eq!(bed.completed(), [Err(IoError::Detached)], "the device of B is being removed");

    for segment in spare {
        shared.ports[0].offer(Way::Common, segment);
    }
    let done = bed.settle();
    assert_eq!(done.len(), 2);
    assert!(done.iter().all(|completion| completion.result.is_ok()));
    assert_eq!(bed.read(A, 0, 24), Ok([vec![1; 4096], vec![2; 8192]].concat()));
    assert_eq!(bed.read(B, 0, 8), Ok(vec![0; 4096]));
}
