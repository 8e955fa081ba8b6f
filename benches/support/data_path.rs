//! A shard of a cache on a real directory with a pool of buffers, driven as a worker's loop drives a shard, without a device.
//!
//! Owns the way of a request: bounds → log space → slot → cache → turn → counters → slot back. Left out are the ring, the kernel's
//! commands, and the copy to and from the client, but for READs where a file is the client. Invariant: a warm data path does not
//! allocate, so a counting allocator sees only allocations of the measured code.
#![allow(dead_code, reason = "each user drives a part")]
#![allow(clippy::expect_used, reason = "a data path that fails measures nothing")]

#[path = "../../tests/support/rig.rs"]
pub mod rig;

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use glidefs::testing::buffer::{Pool, Slot};
use glidefs::testing::cache::{
    Admission, Budgets, Cache, Directory, IoError, Known, MonotonicClock, OnFull, Options, Recovered,
    Reservation, ShardStats, Token,
};
use glidefs::testing::export::{Export, Operation, Request};
use glidefs::testing::observe::io::{QueueStats, WorkerStats};
use glidefs::testing::units::{ExportId, SECTOR_BYTES, SectorRange};

use self::rig::{Completion, Rig};

/// Bytes of a segment, as in the daemon.
pub const SEGMENT_BYTES: u64 = 64 << 20;
pub const EXPORT_BYTES: u64 = 1 << 40;
const SLOTS: usize = 256;
const EXPORT: ExportId = ExportId(1);

/// A request under way, of the same shape as the worker's.
pub struct PathRequest {
    queue: u32,
    tag: u16,
    request: Request,
    started: Instant,
    buffer: Option<Slot>,
}

impl Token for PathRequest {
    type Part = Slot;

    fn buffer(&mut self) -> &mut [u8] {
        self.buffer.as_deref_mut().unwrap_or_default()
    }

    fn is_lendable(&self) -> bool {
        self.buffer.is_some()
    }

    fn lend(&mut self, bytes: usize) -> Option<Slot> {
        let mut slot = self.buffer.take()?;
        slot.shorten(bytes);
        Some(slot)
    }

    fn give_back(&mut self) {
        self.buffer = None;
    }
}

/// The parts of a worker, without a ring.
pub struct DataPath {
    rig: Rig<PathRequest>,
    pool: Pool,
    export: Export,
    stats: Arc<QueueStats>,
    worker: Arc<WorkerStats>,
    shard: Arc<ShardStats>,
    /// Ranges of READs that need the store.
    remote: Vec<SectorRange>,
    now: Instant,
    /// Takes the bytes of READs, as the character device of a queue does.
    client: Option<File>,
    cache: Cache,
    keeper: Option<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

/// Opens the cache in `directory`.
pub fn open(directory: &Path, segments: u64, segment_bytes: u64) -> (Cache, Recovered) {
    open_with(directory, segments, segment_bytes, 1)
}

/// As [`open`], with `hands` threads that read the log.
pub fn open_with(directory: &Path, segments: u64, segment_bytes: u64, hands: usize) -> (Cache, Recovered) {
    let (disk, clock) = (Arc::new(Directory::new(directory)), Arc::new(MonotonicClock::default()));
    let options = options(segments, segment_bytes, hands);
    Cache::open(disk, clock, options, Known::local(&[EXPORT])).expect("the cache opens")
}

fn options(segments: u64, segment_bytes: u64, hands: usize) -> Options {
    Options {
        size_bytes: segments * segment_bytes,
        segment_bytes,
        shards: 1,
        on_full: OnFull::Wait,
        checksums_bytes_max: 64 << 20,
        mapped_bytes_max: 256 << 20,
        budgets: Budgets::default(),
        hands,
    }
}

impl DataPath {
    /// A data path over a cache of `segments` segments in `directory`. Makes the cache if there is none.
    pub fn new(directory: &Path, segments: u64) -> Self {
        let (cache, _) = open(directory, segments, SEGMENT_BYTES);
        Self::over(cache)
    }

    /// A data path over an open cache.
    pub fn over(cache: Cache) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let keeper = {
            let (mut keeper, stop) = (cache.keeper(), Arc::clone(&stop));
            thread::Builder::new().name("keeper".into()).spawn(move || keeper.run(&stop)).expect("a thread")
        };
        let me = thread::current();
        cache.on_progress(0, Arc::new(move || me.unpark()));
        let (worker, shard) = (Arc::<WorkerStats>::default(), Arc::<ShardStats>::default());
        let export = Export::new(EXPORT, "bench".into(), EXPORT_BYTES, cache.volume(EXPORT));
        Self {
            rig: Rig::new(cache.shard(0, Arc::clone(&shard))),
            pool: Pool::new(SLOTS, Arc::clone(&worker)).expect("memory for a pool"),
            worker,
            shard,
            stats: export.queue_stats(0),
            export,
            remote: Vec::new(),
            now: Instant::now(),
            client: None,
            cache,
            keeper: Some(keeper),
            stop,
        }
    }

    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The counters of the worker and of the shard.
    pub fn worker_stats(&self) -> (Arc<WorkerStats>, Arc<ShardStats>) {
        (Arc::clone(&self.worker), Arc::clone(&self.shard))
    }

    /// The counters of the only queue.
    pub fn stats(&self) -> &QueueStats {
        &self.stats
    }

    /// Begins a WRITE of `bytes` bytes at byte `offset`. The next turn appends the record.
    #[inline]
    pub fn write(&mut self, offset: u64, bytes: usize) {
        let token = self.fetched(Operation::Write, offset, bytes);
        let reservation = self.admit(bytes);
        let token = self.buffered(token, bytes);
        let range = token.request.range;
        self.rig.shard.write(self.export.volume(), range, false, reservation, token);
    }

    /// Begins a WRITE of `data` at byte `offset`.
    pub fn write_data(&mut self, offset: u64, data: &[u8]) {
        let mut token = self.fetched(Operation::Write, offset, data.len());
        let reservation = self.admit(data.len());
        token = self.buffered(token, data.len());
        token.buffer()[..data.len()].copy_from_slice(data);
        let range = token.request.range;
        self.rig.shard.write(self.export.volume(), range, false, reservation, token);
    }

    /// Begins a WRITE_ZEROES of `bytes` bytes at byte `offset`.
    pub fn zero(&mut self, offset: u64, bytes: usize) {
        let token = self.fetched(Operation::WriteZeroes, offset, bytes);
        let reservation = self.admit(0);
        let range = token.request.range;
        self.rig.shard.zero(self.export.volume(), range, false, reservation, token);
    }

    /// Carries out a READ of `bytes` bytes at byte `offset`, from the log, the block cache or the store.
    pub fn read_through(&mut self, offset: u64, bytes: usize) {
        self.read(offset, bytes);
        self.settle();
        while let Some(range) = self.remote.pop() {
            let fetch = self.export.volume().fetch(range).expect("nobody writes meanwhile");
            let fill = fetch.blocking_recv().expect("the control threads live").expect("the store answers");
            let token = self.fetched(Operation::Read, offset, bytes);
            let token = self.buffered(token, bytes);
            self.rig.shard.read(self.export.volume(), range, Some(&fill), token);
            self.settle();
        }
    }

    /// Begins a READ of `bytes` bytes at byte `offset`.
    #[inline]
    pub fn read(&mut self, offset: u64, bytes: usize) {
        let token = self.fetched(Operation::Read, offset, bytes);
        let token = self.buffered(token, bytes);
        let range = token.request.range;
        self.rig.shard.read(self.export.volume(), range, None, token);
    }

    /// From now on the bytes of READs are copied to `client`.
    pub fn copy_reads_to(&mut self, client: File) {
        self.client = Some(client);
    }

    /// Carries out a READ of `bytes` bytes at byte `offset` from mapped segments, with the copy to the client; `false` where these do not
    /// have all of the content.
    #[inline]
    pub fn read_mapped(&mut self, offset: u64, bytes: usize) -> bool {
        let PathRequest { request, .. } = self.fetched(Operation::Read, offset, bytes);
        let client = self.client.as_ref().expect("a client");
        let copy = |parts: &[IoSlice<'_>]| match nix::sys::uio::pwritev(client, parts, 0)? {
            moved if moved == bytes => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        };
        let copied = self.rig.shard.read_mapped(self.export.volume(), request.range, copy);
        let nanos = u64::try_from(self.now.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.stats.in_flight.sub(1);
        self.stats.read_size.record(bytes as u64);
        self.stats.read_latency.record(nanos);
        copied
    }

    #[inline]
    pub fn flush(&mut self) {
        let token = self.fetched(Operation::Flush, 0, 0);
        self.rig.shard.flush(self.export.volume(), token);
    }

    /// Ends a turn, and returns the number of finished requests.
    #[inline]
    pub fn turn(&mut self) -> usize {
        self.rig.work();
        let mut finished = 0;
        let nanos = u64::try_from(self.now.elapsed().as_nanos()).unwrap_or(u64::MAX);
        for Completion { token, result } in self.rig.completed() {
            if result == Err(IoError::Remote) {
                self.remote.push(token.request.range);
                self.stats.in_flight.sub(1);
                finished += 1;
                continue;
            }
            result.expect("the disk works");
            let bytes = token.request.range.bytes().unwrap_or(0);
            match token.request.operation {
                Operation::Read => {
                    if let (Some(client), Some(buffer)) = (&self.client, &token.buffer) {
                        client
                            .write_all_at(&buffer[..usize::try_from(bytes).expect("a small range")], 0)
                            .expect("memory");
                    }
                    self.stats.read_size.record(bytes);
                    self.stats.read_latency.record(nanos);
                }
                Operation::Write => {
                    self.stats.write_size.record(bytes);
                    self.stats.write_latency.record(nanos);
                }
                _ => self.stats.flushes.add(1),
            }
            self.stats.in_flight.sub(1);
            finished += 1;
        }
        self.now = Instant::now();
        finished
    }

    /// Takes turns until every request is finished.
    pub fn settle(&mut self) {
        while !self.rig.shard.idle() {
            if self.turn() == 0 {
                thread::park_timeout(Duration::from_millis(1));
            }
        }
    }

    #[inline]
    fn fetched(&self, operation: Operation, offset: u64, bytes: usize) -> PathRequest {
        self.stats.in_flight.add(1);
        let range =
            SectorRange::new(offset / SECTOR_BYTES, bytes as u64 / SECTOR_BYTES).expect("a small range");
        let request = Request { operation, range, fua: false };
        self.export.check(&request).expect("inside the export");
        PathRequest { queue: 0, tag: 0, request, started: self.now, buffer: None }
    }

    #[inline]
    fn buffered(&mut self, token: PathRequest, bytes: usize) -> PathRequest {
        let buffer = self.pool.try_acquire(bytes).expect("batches are smaller than the pool");
        PathRequest { buffer: Some(buffer), ..token }
    }

    #[inline]
    fn admit(&mut self, bytes: usize) -> Reservation {
        loop {
            match self.rig.shard.admit(bytes) {
                Admission::Accept(reservation) => return reservation,
                refused => self.wait(&refused),
            }
        }
    }

    #[cold]
    fn wait(&mut self, refused: &Admission) {
        self.turn();
        match refused {
            Admission::Delay(pause) => thread::park_timeout(*pause),
            _ => thread::park_timeout(Duration::from_millis(1)),
        }
    }
}

impl Drop for DataPath {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(keeper) = self.keeper.take() {
            // A panic of the keeper was reported already.
            let _ = keeper.join();
        }
    }
}
