//! The keeper at moments that threads seldom meet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{BoxFuture, ready};

use super::{CheckpointPace, Keeper, RESERVE};
use crate::cache::driver::Driver;
use crate::cache::handoff::Way;
use crate::cache::log::scan::{self, Identity};
use crate::cache::{
    Budgets, Cache, CacheCatalog, Directory, Known, MonotonicClock, OnFull, Options, Triggers,
};
use crate::store::volume::Resume;
use crate::units::{ExportId, SectorRange, Seq};

const EXPORT: ExportId = ExportId(1);
const SEGMENT_BYTES: u64 = 1 << 20;

#[derive(Debug)]
struct Paper;

impl CacheCatalog for Paper {
    fn evicted(&self, _: &[(ExportId, Seq)]) -> std::io::Result<()> {
        Ok(())
    }

    fn stored(&self, _: ExportId, _: &Resume, _: Seq) -> BoxFuture<'static, std::io::Result<()>> {
        Box::pin(ready(Ok(())))
    }
}

fn options(segments: u64, shards: usize) -> Options {
    Options {
        size_bytes: segments * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        shards,
        on_full: OnFull::Wait,
        checksums_bytes_max: 1 << 20,
        mapped_bytes_max: 0,
        budgets: Budgets::default(),
        hands: 1,
    }
}

fn open(directory: &tempfile::TempDir) -> Cache {
    open_with(directory, options(8, 1))
}

fn open_with(directory: &tempfile::TempDir, options: Options) -> Cache {
    let known = Known { catalog: Arc::new(Paper), ..Known::local(&[EXPORT]) };
    let disk = Arc::new(Directory::new(directory.path()));
    Cache::open(disk, Arc::new(MonotonicClock::default()), options, known).unwrap().0
}

/// Each killed daemon leaves a segment with one small record. Cleaning must count the unused end of such a segment as gain, or
/// the cache fills up.
#[test]
fn a_daemon_that_is_killed_often_after_few_writes_does_not_fill_the_cache() {
    let directory = tempfile::tempdir().unwrap();
    let block = |number: u64| SectorRange::new(number * 8, 8).unwrap();
    let data = |number: u64| vec![u8::try_from(number).unwrap(); 4096];
    for life in 0..40 {
        let cache = open(&directory);
        let volume = cache.volume(EXPORT);
        let mut driver = Driver::new(cache);
        driver.write(&volume, block(life), Some(&data(life))).unwrap();
        for earlier in 0..=life {
            assert_eq!(driver.read(&volume, block(earlier)).unwrap(), data(earlier));
        }
        drop(volume);
        driver.kill();
    }
}

/// At leisure the gain of cleaning these segments is too small, and the segments are passed over. Nothing in the segments changes
/// until the cache is full: without another judgement, the cache would stay full.
#[test]
fn segments_passed_over_at_leisure_are_cleaned_when_room_runs_out() {
    let directory = tempfile::tempdir().unwrap();
    let mut driver = Driver::new(open_with(&directory, options(40, 1)));
    let volume = driver.cache.volume(EXPORT);
    let data = vec![7; 128 << 10];
    for number in 0.. {
        // A segment takes seven such writes. In the first segments one of seven replaces another.
        let place = if number < 140 && number % 7 == 0 { 0 } else { number };
        driver.write(&volume, SectorRange::new(place * 256, 256).unwrap(), Some(&data)).unwrap();
        driver.keep();
        let stats = driver.cache.stats();
        if stats.segments_cleaned > 0 {
            break;
        }
        assert!(stats.segments_free > RESERVE.into(), "the cache is stuck: {stats:?}");
    }
}

/// While a volume takes note of a cut in the store, content counts as clean before cleaning may forget any of the cut. Segments
/// passed over meanwhile must be judged anew when the writeback has ended.
#[tokio::test]
async fn what_was_passed_over_while_a_cut_was_taken_note_of_is_cleaned_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(&directory);
    let never = std::time::Duration::from_hours(1);
    let triggers = Triggers { size_bytes: u64::MAX, age: never, quiet: never };
    // From here on the cache has a store, and only this test writes back.
    drop(cache.writeback(cache.writeback_queue(tokio::runtime::Handle::current()), triggers));
    let shared = Arc::clone(&cache.shared);
    let volume = cache.volume(EXPORT);
    let mut driver = Driver::new(cache);
    let data = vec![7; 128 << 10];
    for number in 0..36 {
        let range = SectorRange::new(number * 256, 256).unwrap();
        driver.write(&volume, range, Some(&data)).unwrap();
    }
    driver.flush(&volume).unwrap();

    volume.cut_now();
    let extents = volume.cut_extents().len();
    assert!(!volume.thaw_some(&shared.table, extents - 1).0, "the last extent of the cut is left");
    driver.keep();
    assert_eq!(driver.cache.stats().evicted_bytes, 0, "the cut counts only as a whole");
    assert!(volume.thaw_some(&shared.table, 1).0);
    shared.writeback_ended();
    driver.keep();
    assert!(driver.cache.stats().evicted_bytes > 0, "nothing was cleaned: {:?}", driver.cache.stats());
}

/// A FLUSH waits for a file that the keeper holds. The keeper also holds files to prepare and to free segments, without any sync,
/// and the end of such a hold did not wake the FLUSH.
#[test]
fn who_wants_to_sync_a_file_that_the_keeper_holds_is_woken_although_the_keeper_does_not_sync() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(&directory);
    let (shared, mut keeper) = (Arc::clone(&cache.shared), cache.keeper());
    let woken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&woken);
    let hook = move || {
        count.fetch_add(1, Ordering::SeqCst);
    };
    cache.on_progress(0, Arc::new(hook));
    let port = &shared.ports[0];

    port.block_on_sync();
    assert!(keeper.prepare(), "the shard has its first segment");
    assert_eq!(woken.load(Ordering::SeqCst), 1, "a segment was prepared");

    let segment = port.take(Way::Common, &shared.signal).unwrap();
    let number = segment.number;
    port.gave_back(Way::Common);
    shared.close(segment);
    port.block_on_sync();
    assert!(super::release(&shared, number, || true));
    assert_eq!(woken.load(Ordering::SeqCst), 2, "a segment was freed");
}

/// A worker finds a read error when the keeper has chosen the segment already.
#[test]
fn a_failing_file_is_put_out_of_use_only_when_the_checkpoint_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let mut keeper = open_with(&directory, options(8, 1)).keeper();
    let shared = Arc::clone(&keeper.shared);
    assert!(keeper.prepare());
    let segment = shared.ports[0].take(Way::Common, &shared.signal).unwrap();
    let (number, file) = (segment.number, Arc::clone(&segment.file));
    shared.close(segment);
    let identity = || scan::identify(&*file, shared.table.cache_id(), shared.table.segment_frames()).unwrap();
    shared.table.get(number).retire();
    assert!(!super::release(&shared, number, || false));
    assert!(
        !matches!(identity(), Some(Identity::Blank { .. })),
        "the file is erased, and the checkpoint is there"
    );
    assert!(super::release(&shared, number, || true));
    assert!(matches!(identity(), Some(Identity::Blank { .. })));
}

/// Free segments are few, and both shards want all there are.
#[test]
fn shards_get_the_last_free_segments_in_turns() {
    let directory = tempfile::tempdir().unwrap();
    let mut keeper = open_with(&directory, options(8, 2)).keeper();
    let shared = Arc::clone(&keeper.shared);
    while keeper.prepare() {}
    let mut spare = Vec::new();
    while let Some(segment) = keeper.preparer.prepare(&shared, 0, RESERVE, Way::Common) {
        spare.push(segment);
    }
    let mut given = [0; 2];
    for round in 1..=6 {
        for port in &shared.ports {
            while port.take(Way::Common, &shared.signal).is_some() {
                port.gave_back(Way::Common);
            }
        }
        let segment = spare.pop().unwrap();
        let number = segment.number;
        shared.close(segment);
        assert!(super::release(&shared, number, || true));
        assert!(keeper.prepare(), "one segment more than the reserve is free");
        for (port, given) in shared.ports.iter().zip(&mut given) {
            while let Some(segment) = port.take(Way::Common, &shared.signal) {
                spare.push(segment);
                port.gave_back(Way::Common);
                *given += 1;
            }
        }
        assert_eq!(given.iter().sum::<u32>(), round);
    }
    assert_eq!(given, [3, 3]);
}

/// A keeper without work, in a cache without room, with a checkpoint under way.
fn stuck_with_a_checkpoint(directory: &tempfile::TempDir) -> Keeper {
    let mut keeper = open(directory).keeper();
    while keeper.step() {}
    while keeper.preparer.prepare(&keeper.shared, 0, 0, Way::Common).is_some() {}
    keeper.step();
    assert!(keeper.shared.pressure.is_stuck());
    keeper.checkpointer.sealed = 100;
    keeper.pace_checkpoints(CheckpointPace { segments: 1, slices: 1, extents: 1 });
    keeper.step();
    assert!(keeper.makes_checkpoint());
    keeper
}

/// A checkpoint takes long, and writes without room must fail or ask for a writeback meanwhile.
#[test]
fn a_cache_without_room_says_so_while_a_checkpoint_is_under_way() {
    let directory = tempfile::tempdir().unwrap();
    let keeper = stuck_with_a_checkpoint(&directory);
    assert!(keeper.shared.pressure.is_stuck(), "a step of a checkpoint passes for room");
}

#[test]
fn a_checkpoint_under_way_gives_way_to_a_segment_that_the_disk_has_no_room_for() {
    let directory = tempfile::tempdir().unwrap();
    let mut keeper = stuck_with_a_checkpoint(&directory);
    let half = directory.path().join("index.ckpt.new");
    assert!(half.exists());
    keeper.preparer.failing = true;
    keeper.step();
    assert!(!keeper.makes_checkpoint() && !half.exists());
    assert_eq!(keeper.checkpointer.sealed, 100, "the next one is due");
}
