//! Two workers, one keeper, real threads and a real directory: behaviour invisible to the simulation, which has one thread.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::*;
use crate::units::{ExportId, FRAME_BYTES, SectorRange};

const SEGMENT_BYTES: u64 = 256 * 1024;
const BLOCK_SECTORS: u64 = 8;
const BLOCKS: u64 = 300;
const VOLUME: ExportId = ExportId(1);
const RUN_MIN: Duration = Duration::from_millis(1500);
/// Enough for a busy machine.
const RUN_MAX: Duration = Duration::from_secs(20);

#[derive(Debug)]
struct Block {
    number: u64,
    /// The version that a READ must return; `None` for other requests.
    expected: Option<u64>,
    bytes: Vec<u8>,
}

impl Token for Block {
    type Part = Vec<u8>;

    fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn lend(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let mut part = std::mem::take(&mut self.bytes);
        part.truncate(bytes);
        Some(part)
    }
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
    };
    let disk = Arc::new(Directory::new(directory.path()));
    Cache::open(disk, Arc::new(MonotonicClock::default()), options, Known::local(&[VOLUME])).unwrap().0
}

/// A worker with every second block of the volume, and the version in each.
struct Worker {
    shard: Shard<Block>,
    volume: Arc<Volume>,
    versions: Vec<u64>,
    parity: u64,
    state: u64,
    requests: u64,
}

impl Worker {
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
                let token = Block { number, expected: None, bytes };
                if next == 0 {
                    self.shard.zero(&self.volume, range, false, reservation, token);
                } else {
                    self.shard.write(&self.volume, range, kind == 1, reservation, token);
                }
                self.versions[number as usize] = next;
                written.push(number);
            } else if kind < 7 && !written.contains(&number) {
                let token = Block { number, expected: Some(version), bytes: vec![1; FRAME_BYTES] };
                self.shard.read(&self.volume, range, None, token);
            } else {
                self.shard.flush(&self.volume, Block { number, expected: None, bytes: Vec::new() });
            }
            in_flight += 1;
            self.requests += 1;
        }
        while in_flight > 0 {
            self.work();
            in_flight -= self.collect();
            if in_flight > 0 {
                thread::park_timeout(Duration::from_millis(20));
            }
        }
    }

    /// Checks and counts the completed requests.
    fn collect(&mut self) -> usize {
        let mut count = 0;
        for (token, result) in self.shard.completed() {
            assert_eq!(result, Ok(()), "block {}", token.number);
            if let Some(version) = token.expected {
                assert!(token.bytes == content(token.number, version), "block {}", token.number);
            }
            count += 1;
        }
        count
    }

    fn work(&mut self) {
        self.shard.turn();
        let wants: Vec<_> = self.shard.wants().collect();
        for want in wants {
            match want {
                Want::Append { op, file, offset, parts } => {
                    let pieces: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
                    let result = file.write_at(&pieces, offset);
                    self.shard.append_done(op, result, parts);
                }
                Want::Sync { op, file } => self.shard.sync_done(op, file.sync()),
                Want::Read { op, file, offset, mut buffer } => {
                    let result = file.read_at(&mut buffer, offset);
                    self.shard.read_done(op, result, buffer);
                }
            }
        }
    }

    fn admit(&mut self, bytes: usize) -> Reservation {
        loop {
            match self.shard.admit(bytes) {
                Admission::Accept(reservation) => return reservation,
                Admission::Delay(pause) => thread::sleep(pause),
                Admission::Wait => {
                    self.work();
                    thread::park_timeout(Duration::from_millis(20));
                }
                Admission::Full => panic!("the cache was told to wait"),
            }
        }
    }
}

#[test]
fn workers_on_threads_read_what_they_wrote_while_the_keeper_cleans_beside_them() {
    let directory = tempfile::tempdir().unwrap();
    let cache = open(&directory);
    let (stop, mut keeper) = (AtomicBool::new(false), cache.keeper());
    let mut versions = vec![0; BLOCKS as usize];
    thread::scope(|scope| {
        let keeping = scope.spawn(|| keeper.run(&stop));
        let workers: Vec<_> = (0..2_u64)
            .map(|parity| {
                let cache = cache.clone();
                scope.spawn(move || {
                    let me = thread::current();
                    let index = usize::try_from(parity).unwrap();
                    cache.on_progress(index, Arc::new(move || me.unpark()));
                    let mut worker = Worker {
                        shard: cache.shard(index, Arc::default()),
                        volume: cache.volume(VOLUME),
                        versions: vec![0; BLOCKS as usize],
                        parity,
                        state: 0x9e37_79b9 + parity,
                        requests: 0,
                    };
                    let start = Instant::now();
                    let enough = || start.elapsed() > RUN_MIN && cache.stats().segments_cleaned > 0;
                    while !enough() && start.elapsed() < RUN_MAX {
                        worker.round();
                    }
                    assert!(worker.shard.idle());
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
        stop.store(true, Ordering::Release);
        keeping.join().unwrap();
    });
    assert!(cache.stats().segments_cleaned > 0, "{:?}", cache.stats());
    drop((keeper, cache));
    let cache = open(&directory);
    let mut worker = Worker {
        shard: cache.shard(0, Arc::default()),
        volume: cache.volume(VOLUME),
        versions: Vec::new(),
        parity: 0,
        state: 1,
        requests: 0,
    };
    for (number, version) in (0..).zip(versions) {
        let range = SectorRange::new(number * BLOCK_SECTORS, BLOCK_SECTORS).unwrap();
        let token = Block { number, expected: Some(version), bytes: vec![1; FRAME_BYTES] };
        worker.shard.read(&worker.volume, range, None, token);
        while worker.collect() == 0 {
            worker.work();
        }
    }
}
