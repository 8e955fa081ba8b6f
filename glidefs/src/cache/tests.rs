//! Two workers, one keeper, real threads and a real directory: behaviour invisible to the simulation, which has one thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::driver::rig::{Completion, MemoryToken, Rig};
use super::*;
use crate::units::{ExportId, FRAME_BYTES, SectorRange};

const SEGMENT_BYTES: u64 = 256 * 1024;
const BLOCK_SECTORS: u64 = 8;
const BLOCKS: u64 = 300;
const VOLUME: ExportId = ExportId(1);
const RUN_MIN: Duration = Duration::from_millis(1500);
/// Enough for a busy machine.
const RUN_MAX: Duration = Duration::from_secs(20);

/// Records that a worker has under way at most, where appends are deferred.
const APPENDS_MAX: usize = 3;

/// The name of a request.
#[derive(Debug)]
struct Block {
    number: u64,
    /// The version that a READ must return; `None` for other requests.
    expected: Option<u64>,
}

fn content(block: u64, version: u64) -> Vec<u8> {
    let word = if version == 0 { 0 } else { block << 32 | version };
    word.to_le_bytes().repeat(FRAME_BYTES / 8)
}

fn open(directory: &tempfile::TempDir) -> Cache {
    let options = Options {
        size_bytes: 20 * SEGMENT_BYTES,
        segment_bytes: SEGMENT_BYTES,
        shards: 2,
        on_full: OnFull::Wait,
        checksums_bytes_max: 1 << 20,
        mapped_bytes_max: 0,
        budgets: Budgets::default(),
        hands: 1,
    };
    let disk = Arc::new(Directory::new(directory.path()));
    Cache::open(disk, Arc::new(MonotonicClock::default()), options, Known::local(&[VOLUME])).unwrap().0
}

/// A worker with every second block of the volume, and the version in each.
struct Worker {
    rig: Rig<MemoryToken<Block>>,
    volume: Arc<Volume>,
    versions: Vec<u64>,
    parity: u64,
    state: u64,
    requests: u64,
}

impl Worker {
    /// Worker `index`. Every second one defers its appends, and the others write large records in pieces.
    fn new(cache: &Cache, index: usize) -> Self {
        let mut rig = Rig::new(cache.shard(index, Arc::default()));
        let parity = index as u64;
        if parity == 1 {
            rig.defer_appends(APPENDS_MAX);
            rig.shuffle(parity);
        }
        rig.shard.write_in_pieces(true);
        let volume = cache.volume(VOLUME);
        let versions = vec![0; BLOCKS as usize];
        Self { rig, volume, versions, parity, state: 0x9e37_79b9 + parity, requests: 0 }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % below
    }

    /// Issues some requests, takes turns until all have come back, and checks the bytes of READs.
    fn round(&mut self) {
        let blocks: Vec<u64> =
            (0..=self.random(12)).map(|_| self.random(BLOCKS / 2) * 2 + self.parity).collect();
        let mut in_flight = 0;
        let (mut written, kind) = (Vec::new(), self.random(8));
        for number in blocks {
            let range = SectorRange::new(number * BLOCK_SECTORS, BLOCK_SECTORS).unwrap();
            let version = self.versions[number as usize];
            if kind < 5 && !written.contains(&number) {
                let next = if kind == 0 { 0 } else { self.requests + 1 };
                let bytes = if next == 0 { Vec::new() } else { content(number, next) };
                let reservation = self.admit(bytes.len());
                let name = Block { number, expected: None };
                if next == 0 {
                    let token = MemoryToken::without_data(name);
                    self.rig.shard.zero(&self.volume, range, false, reservation, token);
                } else {
                    let token = MemoryToken::writing(name, &bytes);
                    self.rig.shard.write(&self.volume, range, kind == 1, reservation, token);
                }
                self.versions[number as usize] = next;
                written.push(number);
            } else if kind < 7 && !written.contains(&number) {
                let token = MemoryToken::reading(Block { number, expected: Some(version) }, FRAME_BYTES);
                self.rig.shard.read(&self.volume, range, None, token);
            } else {
                let token = MemoryToken::without_data(Block { number, expected: None });
                self.rig.shard.flush(&self.volume, token);
            }
            // Several records of a round are under way at once where appends are deferred.
            if self.random(3) == 0 {
                self.rig.turn();
            }
            in_flight += 1;
            self.requests += 1;
        }
        while in_flight > 0 {
            self.rig.work();
            in_flight -= self.collect();
            if in_flight > 0 && self.rig.duties().is_empty() {
                thread::park_timeout(Duration::from_millis(20));
            }
        }
    }

    /// Checks and counts the completed requests.
    fn collect(&mut self) -> usize {
        let mut count = 0;
        for Completion { token, result } in self.rig.completed() {
            assert_eq!(result, Ok(()), "block {}", token.name.number);
            if let Some(version) = token.name.expected {
                let expected = content(token.name.number, version);
                assert!(token.data(FRAME_BYTES) == expected, "block {}", token.name.number);
            }
            count += 1;
        }
        count
    }

    fn admit(&mut self, bytes: usize) -> Reservation {
        loop {
            match self.rig.shard.admit(bytes) {
                Admission::Accept(reservation) => return reservation,
                Admission::Delay(pause) => thread::park_timeout(pause),
                Admission::Wait => {
                    self.rig.work();
                    thread::park_timeout(Duration::from_millis(20));
                }
                Admission::Full => panic!("the cache was told to wait"),
            }
        }
    }
}

/// Ends the keeper's thread when dropped.
struct StopsKeeper<'a> {
    stop: &'a AtomicBool,
}

impl Drop for StopsKeeper<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
    }
}

#[test]
fn workers_on_threads_read_what_they_wrote_while_the_keeper_cleans_beside_them() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(&directory);
    let (stop, mut keeper) = (AtomicBool::new(false), cache.keeper());
    let mut versions = vec![0; BLOCKS as usize];
    thread::scope(|scope| {
        // A worker that fails must not leave the test waiting for the keeper.
        let _stops = StopsKeeper { stop: &stop };
        scope.spawn(|| keeper.run(&stop));
        let workers: Vec<_> = (0..2_u64)
            .map(|parity| {
                let cache = cache.clone();
                scope.spawn(move || {
                    let me = thread::current();
                    let index = usize::try_from(parity).unwrap();
                    cache.on_progress(index, Arc::new(move || me.unpark()));
                    let mut worker = Worker::new(&cache, index);
                    let start = Instant::now();
                    let enough = || start.elapsed() > RUN_MIN && cache.stats().segments_cleaned > 0;
                    while !enough() && start.elapsed() < RUN_MAX {
                        worker.round();
                    }
                    assert!(worker.rig.shard.idle());
                    worker.versions
                })
            })
            .collect();
        for (parity, worker) in workers.into_iter().enumerate() {
            let owned = worker.join().unwrap();
            for (block, version) in owned.into_iter().enumerate().filter(|(block, _)| block % 2 == parity) {
                versions[block] = version;
            }
        }
    });
    assert!(cache.stats().segments_cleaned > 0, "{:?}", cache.stats());
    drop((keeper, cache));
    let cache = open(&directory);
    let mut worker = Worker::new(&cache, 0);
    for (number, version) in (0..).zip(versions) {
        let range = SectorRange::new(number * BLOCK_SECTORS, BLOCK_SECTORS).unwrap();
        let token = MemoryToken::reading(Block { number, expected: Some(version) }, FRAME_BYTES);
        worker.rig.shard.read(&worker.volume, range, None, token);
        while worker.collect() == 0 {
            worker.rig.work();
        }
    }
}

#[test]
fn the_tag_of_a_cache_can_be_read_beside_the_process_that_has_the_cache_open() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Directory::new(directory.path());
    assert_eq!(Cache::tag_on(&disk), None);
    let cache = open(&directory);
    assert_eq!(Cache::tag_on(&disk), Some(cache.tag()));
}
