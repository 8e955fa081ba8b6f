//! A worker with a device whose driver is not the kernel's: requests come as messages into the worker's ring, and the answers go as
//! messages into the client's ring, within the calls by which the worker submits.
//!
//! Owns the cache, the worker and the client's side of the device. The bytes of a request are copied through a file in memory, so that a
//! copy is a system call, as it is with ublk.
#![allow(dead_code, reason = "each user drives a part")]
#![allow(clippy::expect_used, reason = "a bench may end")]

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU8;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use glidefs::testing::cache::{Cache, Directory, Known, MonotonicClock, OnFull, Options};
use glidefs::testing::export::{Export, Operation, Request};
use glidefs::testing::units::{ExportId, SectorRange};
use glidefs::testing::worker::{
    Appends, Cpu, Failure, QueueDriver, TagEvent, Worker, WorkerOptions, allowed, cpu_clock, start,
};
use io_uring::squeue::Flags;
use io_uring::{IoUring, opcode, squeue, types};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::pwritev;
use nix::time::{ClockId, clock_gettime};

const BLOCK_BYTES: usize = 4096;
const BLOCKS: u64 = 4096;
const SEGMENTS: u64 = 16;
const EXPORT: ExportId = ExportId(1);
/// The result of a message which announces a request, and of one which ends the queue.
const REQUEST: i32 = 1;
const END: i32 = 0;

/// The only tag's request: the number of a block, and whether the block is written.
#[derive(Default)]
struct Shared {
    block: AtomicU64,
    is_write: AtomicBool,
}

struct NullQueue {
    export: Arc<Export>,
    shared: Arc<Shared>,
    /// Stands for the memory of the client, which copies go to and come from.
    memory: File,
    client_ring: RawFd,
}

impl QueueDriver for NullQueue {
    fn export(&self) -> &Arc<Export> {
        &self.export
    }

    fn ids(&self) -> (u32, u16) {
        (0, 0)
    }

    fn depth(&self) -> u16 {
        1
    }

    fn char_device(&self) -> RawFd {
        self.memory.as_raw_fd()
    }

    fn arm(&mut self, _tag: u16, _fixed: u32) -> squeue::Entry {
        opcode::Nop::new().build().flags(Flags::SKIP_SUCCESS)
    }

    fn answer(&mut self, tag: u16, _fixed: u32, result: Result<u32, &Failure>) -> squeue::Entry {
        result.expect("the disk works");
        let ring = types::Fd(self.client_ring);
        opcode::MsgRingData::new(ring, REQUEST, tag.into(), None).build().flags(Flags::SKIP_SUCCESS)
    }

    fn event(&self, _tag: u16, result: i32) -> TagEvent {
        if result == REQUEST { TagEvent::Request } else { TagEvent::Gone }
    }

    fn request(&self, _tag: u16) -> Result<Request, Failure> {
        let is_write = self.shared.is_write.load(Ordering::Acquire);
        let operation = if is_write { Operation::Write } else { Operation::Read };
        let sectors = BLOCK_BYTES as u64 / 512;
        let range = SectorRange::new(self.shared.block.load(Ordering::Acquire) * sectors, sectors);
        Ok(Request { operation, range: range.expect("a block of the export"), fua: false })
    }

    fn copy_in(&self, _tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(buffer, start as u64)
    }

    fn copy_out(&self, _tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()> {
        pwritev(&self.memory, parts, 0)?;
        Ok(())
    }

    fn stable_buffer(&self, _tag: u16) -> Option<NonNull<[u8]>> {
        None
    }
}

/// A cache with one worker, and a thread to keep the log.
pub struct Host {
    _directory: tempfile::TempDir,
    cache: Cache,
    worker: Worker,
    /// The ring of the worker, into which clients put requests.
    ring: RawFd,
    stop_keeper: Arc<AtomicBool>,
}

impl Host {
    /// A worker which may poll for so many per cent of a CPU.
    pub fn new(polling_percent: Option<NonZeroU8>) -> Self {
        let directory = tempfile::tempdir_in(super::directory()).expect("the bench directory can be written");
        let options = Options {
            size_bytes: SEGMENTS * (64 << 20),
            segment_bytes: 64 << 20,
            shards: 1,
            on_full: OnFull::Wait,
            checksums_bytes_max: 64 << 20,
            mapped_bytes_max: 0,
            budgets: glidefs::testing::cache::Budgets::default(),
            hands: 1,
        };
        let disk = Arc::new(Directory::new(directory.path()));
        let (cache, _) =
            Cache::open(disk, Arc::new(MonotonicClock::default()), options, Known::local(&[EXPORT]))
                .expect("the cache opens");
        let stop_keeper = Arc::new(AtomicBool::new(false));
        let (mut keeper, stop) = (cache.keeper(), Arc::clone(&stop_keeper));
        std::thread::spawn(move || keeper.run(&stop));
        let before = rings();
        let options = WorkerOptions {
            cpus: vec![cpus().0],
            slots_per_worker: 64,
            queues_max: 64,
            appends: Appends::Pwrite,
            polling_percent,
        };
        let worker = start(&cache, &options).expect("a worker").remove(0);
        let ring = rings().into_iter().find(|ring| !before.contains(ring)).expect("the worker has a ring");
        Self { _directory: directory, cache, worker, ring, stop_keeper }
    }

    /// Attaches a device, and becomes the device's client.
    pub fn client(&self) -> Client {
        let ring = IoUring::builder().build(8).expect("a ring");
        let memory = File::from(memfd_create("client", MFdFlags::empty()).expect("memory"));
        memory.set_len(BLOCK_BYTES as u64).expect("memory");
        let export = Arc::new(Export::new(
            EXPORT,
            "bench".into(),
            BLOCKS * BLOCK_BYTES as u64,
            self.cache.volume(EXPORT),
        ));
        let shared = Arc::new(Shared::default());
        let queue = NullQueue { export, shared: Arc::clone(&shared), memory, client_ring: ring.as_raw_fd() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        drop(runtime.block_on(self.worker.attach(Box::new(queue))).expect("the worker takes the queue"));
        Client { ring, shared, worker: self.worker.clone(), worker_ring: self.ring, number: 0 }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop_keeper.store(true, Ordering::Release);
    }
}

/// The CPUs for worker and client: the last two of this process, or twice the only one.
fn cpus() -> (Cpu, Cpu) {
    let cpus = allowed().expect("the kernel tells the CPUs");
    let last = *cpus.last().expect("at least one");
    (last, cpus.get(cpus.len().saturating_sub(2)).copied().unwrap_or(last))
}

/// The descriptors of all rings of this process.
fn rings() -> Vec<RawFd> {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("the kernel lists descriptors");
    let ring = |entry: io::Result<std::fs::DirEntry>| {
        let entry = entry.ok()?;
        let target = std::fs::read_link(entry.path()).ok()?;
        target.to_str()?.contains("[io_uring]").then(|| entry.file_name().to_str()?.parse().ok())?
    };
    descriptors.filter_map(ring).collect()
}

/// Figures of a round, microseconds a request; `found` is a part of all waits which began with a look at the ring.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    pub request: f64,
    pub worker: f64,
    pub client: f64,
    pub polled: f64,
    pub found: f64,
}

pub struct Client {
    ring: IoUring,
    shared: Arc<Shared>,
    worker: Worker,
    worker_ring: RawFd,
    number: u64,
}

impl Client {
    /// WRITEs and READs of 4 KiB, one at a time, for `length`; `think` passes between an answer and the next request.
    #[allow(clippy::cast_precision_loss, reason = "figures of a bench")]
    pub fn run(&mut self, think: Duration, length: Duration) -> Round {
        let (_, cpu) = cpus();
        glidefs::testing::worker::pin(cpu).expect("the CPU is there");
        let own = cpu_clock().expect("a clock");
        let cpu_time = |clock: ClockId| clock_gettime(clock).map(Duration::from).expect("a clock");
        let stats = Arc::clone(self.worker.stats());
        let polling = || (stats.poll_nanos.get(), stats.polls.get(), stats.polls_with_news.get());
        let (polling_before, begin) = (polling(), Instant::now());
        let (worker_before, own_before) = (self.worker.load().cpu_time(), cpu_time(own));
        let (mut waited, mut thought, mut count) = (Duration::ZERO, Duration::ZERO, 0_u64);
        while begin.elapsed() < length {
            let sent = Instant::now();
            self.request();
            let answered = Instant::now();
            waited += answered - sent;
            count += 1;
            while answered.elapsed() < think {
                std::hint::spin_loop();
            }
            thought += answered.elapsed();
        }
        let micros = |time: Duration| time.as_nanos() as f64 / 1000.0 / count as f64;
        let (nanos, polls, found) = polling();
        let polls = polls - polling_before.1;
        Round {
            request: micros(waited),
            worker: micros(self.worker.load().cpu_time().saturating_sub(worker_before)),
            client: micros(cpu_time(own).saturating_sub(own_before).saturating_sub(thought)),
            polled: micros(Duration::from_nanos(nanos - polling_before.0)),
            found: if polls == 0 { 0.0 } else { (found - polling_before.2) as f64 / polls as f64 },
        }
    }

    fn request(&mut self) {
        self.number += 1;
        self.shared.block.store(self.number * 1237 % BLOCKS, Ordering::Release);
        self.shared.is_write.store(self.number.is_multiple_of(2), Ordering::Release);
        self.send(REQUEST);
        self.ring.submit_and_wait(1).expect("the ring works");
        let answers = self.ring.completion().count();
        assert_eq!(answers, 1, "a request has one answer");
    }

    fn send(&mut self, result: i32) {
        let message = opcode::MsgRingData::new(types::Fd(self.worker_ring), result, 0, None).build();
        // SAFETY: the entry points to no memory.
        unsafe {
            self.ring.submission().push(&message.flags(Flags::SKIP_SUCCESS)).expect("the queue has room");
        };
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.send(END);
        self.ring.submit().expect("the ring works");
    }
}
