//! A worker with a device whose driver is not the kernel's: requests come as messages into the worker's ring, and the answers go as
//! messages into the client's ring, within the calls by which the worker submits.
//!
//! Owns the worker and the client's side of the device. The bytes of a request are copied through a file in memory, so that a copy is a
//! system call, as it is with ublk. Does not own the cache, nor which requests the client sends.
#![allow(dead_code, reason = "each user drives a part")]
#![allow(clippy::expect_used, reason = "a bench may end")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "tokens have the width of a tag, and content is any bytes"
)]

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use glidefs::testing::cache::Cache;
use glidefs::testing::export::{Export, Operation, Request};
use glidefs::testing::units::{ExportId, SECTOR_BYTES, SectorRange};
use glidefs::testing::worker::{
    Engine, Failure, QueueDriver, TagEvent, Worker, WorkerOptions, allowed, pin, start,
};
use io_uring::squeue::Flags;
use io_uring::{IoUring, opcode, squeue, types};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::uio::pwritev;

/// Bytes of the longest request.
pub const BYTES_MAX: usize = 128 << 10;
/// Entries of a client's ring.
const ENTRIES: u32 = 256;
/// The result of a message which announces a request, and of one which ends a tag.
const REQUEST: i32 = 1;
const END: i32 = 0;

/// A tag of a device: the queue index in the worker, and the number of the tag.
pub type Tag = (u32, u16);

/// The request of a tag.
#[derive(Default)]
struct TagRequest {
    offset: AtomicU64,
    bytes: AtomicU64,
    is_write: AtomicBool,
}

struct NullQueue {
    export: Arc<Export>,
    index: u32,
    requests: Arc<[TagRequest]>,
    /// Stands for the memory of the client, which copies go to and come from: a piece for each number of a tag.
    memory: Arc<File>,
    client_ring: RawFd,
}

/// The token of a tag in the worker's ring, as `worker/tag.rs` has it.
fn token((index, tag): Tag) -> u64 {
    u64::from(index) << 16 | u64::from(tag)
}

/// Where the piece of `tag` begins in the memory of the client.
fn piece_of(tag: u16) -> usize {
    usize::from(tag) * BYTES_MAX
}

impl QueueDriver for NullQueue {
    fn export(&self) -> &Arc<Export> {
        &self.export
    }

    fn ids(&self) -> (u32, u16) {
        (self.index, 0)
    }

    fn depth(&self) -> u16 {
        u16::try_from(self.requests.len()).expect("few tags")
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
        opcode::MsgRingData::new(ring, REQUEST, token((self.index, tag)), None)
            .build()
            .flags(Flags::SKIP_SUCCESS)
    }

    fn event(&self, _tag: u16, result: i32) -> TagEvent {
        if result == REQUEST { TagEvent::Request } else { TagEvent::Gone }
    }

    fn request(&self, tag: u16) -> Result<Request, Failure> {
        let request = &self.requests[usize::from(tag)];
        let is_write = request.is_write.load(Ordering::Acquire);
        let operation = if is_write { Operation::Write } else { Operation::Read };
        let sectors = |bytes: &AtomicU64| bytes.load(Ordering::Acquire) / SECTOR_BYTES;
        let range = SectorRange::new(sectors(&request.offset), sectors(&request.bytes));
        Ok(Request { operation, range: range.expect("a range of the export"), fua: false })
    }

    fn copy_in(&self, tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(buffer, (piece_of(tag) + start) as u64)
    }

    fn copy_out(&self, tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let moved = pwritev(&self.memory, parts, i64::try_from(piece_of(tag)).expect("a small place"))?;
        if moved == bytes { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    fn stable_buffer(&self, _tag: u16) -> Option<NonNull<[u8]>> {
        None
    }
}

/// A worker, and a thread to keep the log.
pub struct Host {
    cache: Cache,
    worker: Worker,
    /// The ring of the worker, into which clients put requests.
    ring: RawFd,
    queues: u32,
    stop_keeper: Arc<AtomicBool>,
}

impl Host {
    /// A worker over `cache`, for at most `queues_max` devices. The worker's thread lives as long as the process.
    pub fn new(cache: Cache, queues_max: u32) -> Self {
        let stop_keeper = Arc::new(AtomicBool::new(false));
        let (mut keeper, stop) = (cache.keeper(), Arc::clone(&stop_keeper));
        std::thread::Builder::new().name("keeper".into()).spawn(move || keeper.run(&stop)).expect("a thread");
        let before = rings();
        let options = WorkerOptions {
            cpus: vec![cpus().0],
            slots_per_worker: 256,
            queues_max,
            engine: Engine::Buffered,
        };
        let worker = start(&cache, &options).expect("a worker").remove(0);
        let ring = rings().into_iter().find(|ring| !before.contains(ring)).expect("the worker has a ring");
        Self { cache, worker, ring, queues: 0, stop_keeper }
    }

    /// A client without devices. Pins the calling thread, which is to be the client.
    pub fn client(&self) -> Client {
        pin(cpus().1).expect("the CPU is there");
        let memory = File::from(memfd_create("client", MFdFlags::empty()).expect("memory"));
        Client {
            ring: IoUring::builder().build(ENTRIES).expect("a ring"),
            first: self.queues,
            queues: Vec::new(),
            memory: Arc::new(memory),
            worker: self.worker.clone(),
            worker_ring: self.ring,
        }
    }

    /// Attaches devices with `tags` tags and `bytes` bytes, one for each of `exports`. A client gets all its devices before another
    /// client is made.
    pub fn attach(
        &mut self,
        client: &mut Client,
        exports: impl IntoIterator<Item = ExportId>,
        tags: u16,
        bytes: u64,
    ) {
        let content: Vec<u8> = (0..piece_of(tags)).map(|at| (at.wrapping_mul(at) >> 7) as u8).collect();
        client.memory.write_all_at(&content, 0).expect("memory");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for export in exports {
            let requests: Arc<[TagRequest]> = (0..tags).map(|_| TagRequest::default()).collect();
            let queue = NullQueue {
                export: Arc::new(Export::new(export, "bench".into(), bytes, self.cache.volume(export))),
                index: self.queues,
                requests: Arc::clone(&requests),
                memory: Arc::clone(&client.memory),
                client_ring: client.ring.as_raw_fd(),
            };
            drop(runtime.block_on(self.worker.attach(Box::new(queue))).expect("the worker takes the queue"));
            client.queues.push(requests);
            self.queues += 1;
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop_keeper.store(true, Ordering::Release);
    }
}

/// The CPUs for worker and client: the last two of this process, or twice the only one. The first call comes before any thread is pinned.
pub fn cpus() -> (usize, usize) {
    static CPUS: OnceLock<(usize, usize)> = OnceLock::new();
    *CPUS.get_or_init(|| {
        let cpus = allowed().expect("the kernel tells the CPUs");
        let last = *cpus.last().expect("at least one");
        (last, cpus.get(cpus.len().saturating_sub(2)).copied().unwrap_or(last))
    })
}

/// Runs `client` on a thread of its own: a thread that was pinned would hand its CPU on to the threads of the next host.
pub fn on_a_thread(client: impl FnOnce() + Send) {
    cpus();
    std::thread::scope(|scope| scope.spawn(client).join().expect("the bench does not panic"));
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

/// The client of devices: sends requests and takes answers.
pub struct Client {
    ring: IoUring,
    /// The queue index of the first device.
    first: u32,
    queues: Vec<Arc<[TagRequest]>>,
    memory: Arc<File>,
    worker: Worker,
    worker_ring: RawFd,
}

impl Client {
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The tags of the device that was attached as number `device`.
    pub fn tags(&self, device: usize) -> impl Iterator<Item = Tag> + use<> {
        let index = self.first + u32::try_from(device).expect("few devices");
        (0..self.queues[device].len()).map(move |tag| (index, u16::try_from(tag).expect("few tags")))
    }

    /// Queues a request of `bytes` bytes at byte `offset` on a tag which has none. [`answers`](Self::answers) sends.
    pub fn request(&mut self, (index, tag): Tag, is_write: bool, offset: u64, bytes: usize) {
        let request = &self.queues[(index - self.first) as usize][usize::from(tag)];
        request.offset.store(offset, Ordering::Release);
        request.bytes.store(bytes as u64, Ordering::Release);
        request.is_write.store(is_write, Ordering::Release);
        self.send((index, tag), REQUEST);
    }

    /// Sends the requests that are queued.
    pub fn submit(&mut self) {
        self.ring.submit().expect("the ring works");
    }

    /// Sends what is queued, sleeps until there is an answer, and moves the tags answered to `into`.
    pub fn answers(&mut self, into: &mut Vec<Tag>) {
        self.ring.submit_and_wait(1).expect("the ring works");
        self.take(into);
    }

    /// As [`answers`](Self::answers), but looks again and again instead of sleeping.
    pub fn poll_answers(&mut self, into: &mut Vec<Tag>) {
        self.submit();
        while into.is_empty() {
            self.take(into);
            std::hint::spin_loop();
        }
    }

    fn take(&mut self, into: &mut Vec<Tag>) {
        into.extend(self.ring.completion().map(|entry| {
            let token = entry.user_data();
            ((token >> 16) as u32, token as u16)
        }));
    }

    /// Puts `stamp` where the next WRITE of `tag` begins.
    pub fn stamp(&self, (_, tag): Tag, stamp: u64) {
        self.memory.write_all_at(&stamp.to_le_bytes(), piece_of(tag) as u64).expect("memory");
    }

    /// The first bytes of the last READ of `tag`.
    pub fn stamp_of(&self, (_, tag): Tag) -> u64 {
        let mut stamp = [0; 8];
        self.memory.read_exact_at(&mut stamp, piece_of(tag) as u64).expect("memory");
        u64::from_le_bytes(stamp)
    }

    fn send(&mut self, tag: Tag, result: i32) {
        let message = opcode::MsgRingData::new(types::Fd(self.worker_ring), result, token(tag), None).build();
        let message = message.flags(Flags::SKIP_SUCCESS);
        // SAFETY: the entry points to no memory.
        while unsafe { self.ring.submission().push(&message) }.is_err() {
            self.submit();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        for device in 0..self.queues.len() {
            self.tags(device).for_each(|tag| self.send(tag, END));
        }
        self.submit();
    }
}
