//! The worker's loop against a queue in this process: one pipe a tag stands for the kernel.
//!
//! A byte in a tag's pipe announces a request; closing the pipe takes the tag back. Everything else is the real thing: ring,
//! pool, executor, cache on a real directory.

use std::fs::File;
use std::io::{self, IoSlice, Read as _, Write as _};
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use io_uring::{opcode, squeue, types};

use super::driver::TagEvent;
use super::engine::{Engine, check_direct};
use super::{Failure, QueueDriver, QueueGone, Worker, WorkerError, WorkerOptions, cpus, start};
use crate::cache::{Budgets, Cache, Directory, Known, MonotonicClock, OnFull, Options, Resource};
use crate::export::{Export, Operation, Request};
use crate::units::{ExportId, SectorRange};

mod bundles;
mod divided;
mod ending;
mod failures;
mod fairness;
mod fua;
mod index;
mod limits;
mod mapped;
mod queues;
mod remote;
mod risk;
mod share;
mod traced;
mod watched;
mod worst;

const DEPTH: u16 = 8;
const SLOTS: usize = 4;
const QUEUES_MAX: u32 = 20;

/// State of one tag, shared by client and queue.
#[derive(Default)]
struct Tag {
    request: Option<Request>,
    data: Vec<u8>,
    result: Option<Result<u32, String>>,
}

#[derive(Default)]
struct SharedTags {
    tags: Mutex<Vec<Tag>>,
    completed: Condvar,
}

/// The worker's end of a queue.
pub(crate) struct PipeQueue {
    export: Arc<Export>,
    shared: Arc<SharedTags>,
    pipes: Vec<File>,
    /// Where the ring puts the byte of each tag.
    bytes: Box<[u8]>,
    /// Whether the first WRITE ends in a panic.
    pub panics: bool,
}

impl QueueDriver for PipeQueue {
    fn export(&self) -> &Arc<Export> {
        &self.export
    }

    fn ids(&self) -> (u32, u16) {
        (7, 0)
    }

    fn depth(&self) -> u16 {
        DEPTH
    }

    fn char_device(&self) -> RawFd {
        self.pipes[0].as_raw_fd()
    }

    fn arm(&mut self, tag: u16, _fixed: u32) -> squeue::Entry {
        let tag = usize::from(tag);
        opcode::Read::new(types::Fd(self.pipes[tag].as_raw_fd()), &raw mut self.bytes[tag], 1).build()
    }

    fn answer(&mut self, tag: u16, fixed: u32, result: Result<u32, &Failure>) -> squeue::Entry {
        let mut tags = self.shared.tags.lock().unwrap();
        let shared = &mut tags[usize::from(tag)];
        assert!(shared.request.take().is_some(), "tag {tag} was answered without a request");
        assert!(
            shared.result.replace(result.map_err(ToString::to_string)).is_none(),
            "tag {tag} was answered twice"
        );
        self.shared.completed.notify_all();
        drop(tags);
        self.arm(tag, fixed)
    }

    fn event(&self, _tag: u16, result: i32) -> TagEvent {
        if result == 1 { TagEvent::Request } else { TagEvent::Gone }
    }

    fn request(&self, tag: u16) -> Result<Request, Failure> {
        self.shared.tags.lock().unwrap()[usize::from(tag)].request.ok_or(Failure::Unsupported { code: 0 })
    }

    fn copy_in(&self, tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        assert!(!self.panics, "a planted panic");
        let tags = self.shared.tags.lock().unwrap();
        (&tags[usize::from(tag)].data[start..]).read_exact(buffer)
    }

    fn copy_out(&self, tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()> {
        self.shared.tags.lock().unwrap()[usize::from(tag)].data =
            parts.iter().flat_map(|part| part.iter().copied()).collect();
        Ok(())
    }

    fn stable_buffer(&self, _tag: u16) -> Option<NonNull<[u8]>> {
        None
    }
}

/// The client's end of a queue.
pub(crate) struct Client {
    shared: Arc<SharedTags>,
    pipes: Vec<Option<File>>,
    gone: Option<QueueGone>,
}

impl Client {
    async fn attach(worker: &Worker, export: &Arc<Export>) -> Self {
        Self::try_attach(worker, export).await.unwrap()
    }

    async fn try_attach(worker: &Worker, export: &Arc<Export>) -> Result<Self, WorkerError> {
        Self::attach_with(worker, export, |queue, _| Box::new(queue)).await
    }

    /// Attaches the queue which `wrap` makes of a plain queue and the client's ends of the pipes.
    pub async fn attach_with(
        worker: &Worker,
        export: &Arc<Export>,
        wrap: impl FnOnce(PipeQueue, &[Option<File>]) -> Box<dyn QueueDriver + Send>,
    ) -> Result<Self, WorkerError> {
        let shared = Arc::new(SharedTags::default());
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..DEPTH {
            let (read, write) = nix::unistd::pipe().unwrap();
            theirs.push(File::from(read));
            ours.push(Some(File::from(write)));
            shared.tags.lock().unwrap().push(Tag::default());
        }
        let queue = PipeQueue {
            export: Arc::clone(export),
            shared: Arc::clone(&shared),
            pipes: theirs,
            bytes: vec![0; usize::from(DEPTH)].into(),
            panics: false,
        };
        let gone = worker.attach(wrap(queue, &ours)).await?;
        Ok(Self { shared, pipes: ours, gone: Some(gone) })
    }

    pub fn start(&mut self, tag: u16, operation: Operation, start: u64, count: u64, data: Vec<u8>) {
        let range = SectorRange::new(start, count).unwrap();
        self.start_request(tag, Request { operation, range, fua: false }, data);
    }

    fn start_request(&mut self, tag: u16, request: Request, data: Vec<u8>) {
        self.shared.tags.lock().unwrap()[usize::from(tag)] =
            Tag { request: Some(request), data, result: None };
        self.pipes[usize::from(tag)].as_mut().unwrap().write_all(&[1]).unwrap();
    }

    pub fn finish(&self, tag: u16) -> (Result<u32, String>, Vec<u8>) {
        let finished = self.result_within(tag, Duration::from_secs(30));
        finished.unwrap_or_else(|| panic!("tag {tag} was never completed"))
    }

    fn result_within(&self, tag: u16, patience: Duration) -> Option<(Result<u32, String>, Vec<u8>)> {
        let tag = usize::from(tag);
        let tags = self.shared.tags.lock().unwrap();
        let waited =
            self.shared.completed.wait_timeout_while(tags, patience, |tags| tags[tag].result.is_none());
        let mut tags = waited.unwrap().0;
        tags[tag].result.take().map(|result| (result, std::mem::take(&mut tags[tag].data)))
    }

    fn run(
        &mut self,
        operation: Operation,
        start: u64,
        count: u64,
        data: Vec<u8>,
    ) -> (Result<u32, String>, Vec<u8>) {
        self.start(0, operation, start, count, data);
        self.finish(0)
    }

    async fn detach(mut self) {
        self.pipes.clear();
        self.gone.take().unwrap().await.unwrap();
    }
}

/// A worker over a cache of its own.
pub(crate) struct Bench {
    _directory: tempfile::TempDir,
    cache: Cache,
    worker: Worker,
    stop_keeper: Arc<AtomicBool>,
}

impl Bench {
    fn new() -> Self {
        Self::with(Engine::default())
    }

    fn with(engine: Engine) -> Self {
        Self::over(engine, Known::local(&[]))
    }

    fn over(engine: Engine, known: Known) -> Self {
        Self::sized(engine, known, SLOTS)
    }

    fn sized(engine: Engine, known: Known, slots_per_worker: usize) -> Self {
        Self::bounded(engine, known, slots_per_worker, (OnFull::Wait, Budgets::default()))
    }

    fn bounded(
        engine: Engine,
        known: Known,
        slots_per_worker: usize,
        (on_full, budgets): (OnFull, Budgets),
    ) -> Self {
        Self::open(engine, known, slots_per_worker, Options { on_full, budgets, ..Self::options() })
    }

    /// Whose segments are mapped when they are read.
    fn mapped() -> Self {
        let options = Options { mapped_bytes_max: 4 << 20, ..Self::options() };
        Self::open(Engine::default(), Known::local(&[]), SLOTS, options)
    }

    pub fn options() -> Options {
        Options {
            size_bytes: 64 << 20,
            segment_bytes: 1 << 20,
            shards: 1,
            on_full: OnFull::Wait,
            checksums_bytes_max: 1 << 20,
            mapped_bytes_max: 0,
            budgets: Budgets::default(),
            hands: 1,
        }
    }

    fn open(engine: Engine, known: Known, slots_per_worker: usize, options: Options) -> Self {
        let worker = worker_options(engine, slots_per_worker);
        Self::start(engine == Engine::Direct, known, &worker, options)
    }

    fn start(direct: bool, known: Known, worker: &WorkerOptions, options: Options) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(Directory::new(directory.path()).direct(direct));
        let (cache, _) = Cache::open(disk, Arc::new(MonotonicClock::default()), options, known).unwrap();
        let stop_keeper = Arc::new(AtomicBool::new(false));
        let (mut keeper, stop) = (cache.keeper(), Arc::clone(&stop_keeper));
        std::thread::spawn(move || keeper.run(&stop));
        let worker = start(&cache, worker).unwrap().remove(0);
        Self { _directory: directory, cache, worker, stop_keeper }
    }

    fn export(&self, id: u32) -> Arc<Export> {
        let id = ExportId(id);
        Arc::new(Export::new(id, format!("export-{}", id.0), 16 << 20, self.cache.volume(id)))
    }
}

pub(crate) fn worker_options(engine: Engine, slots_per_worker: usize) -> WorkerOptions {
    let cpus = vec![cpus::allowed().unwrap()[0]];
    WorkerOptions { cpus, slots_per_worker, queues_max: QUEUES_MAX, engine }
}

/// The engines that work in the directory of temporary files.
fn usable_engines() -> impl Iterator<Item = Engine> {
    let has_direct = check_direct(&std::env::temp_dir()).is_ok();
    [Engine::Buffered, Engine::Direct].into_iter().take(1 + usize::from(has_direct))
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.stop_keeper.store(true, Ordering::Release);
    }
}

fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| seed.wrapping_mul(31).wrapping_add((at / 7 + at % 251) as u8)).collect()
}

#[tokio::test]
async fn what_was_written_is_read_back_whatever_the_alignment_and_the_engine() {
    for engine in usable_engines() {
        read_back(engine).await;
    }
}

async fn read_back(engine: Engine) {
    let bench = Bench::with(engine);
    let mut client = Client::attach(&bench.worker, &bench.export(1)).await;
    for (seed, (start, count)) in (1..).zip([(0, 8), (3, 1), (5, 17), (100, 256), (101, 254), (1, 2)]) {
        let data = pattern(seed, count as usize * 512);
        assert_eq!(client.run(Operation::Write, start, count, data.clone()).0, Ok(count as u32 * 512));
        let (result, read) = client.run(Operation::Read, start, count, Vec::new());
        assert_eq!((result, read == data), (Ok(count as u32 * 512), true), "{count} sectors at {start}");
    }
    assert_eq!(client.run(Operation::Discard, 100, 10, Vec::new()).0, Ok(0));
    assert_eq!(client.run(Operation::Read, 100, 10, Vec::new()).1, vec![0; 5120]);
    assert_eq!(client.run(Operation::Flush, 0, 0, Vec::new()).0, Ok(0));
    client.detach().await;
}

#[tokio::test]
async fn more_large_requests_than_slots_are_all_served() {
    let bench = Bench::new();
    let mut clients = Vec::new();
    for id in 1..=4 {
        clients.push(Client::attach(&bench.worker, &bench.export(id)).await);
    }
    for round in 0..8_u8 {
        for (number, client) in (0_u8..).zip(&mut clients) {
            for tag in 0..DEPTH {
                let data = pattern(round ^ number ^ tag as u8, 128 << 10);
                client.start(tag, Operation::Write, u64::from(tag) * 256, 256, data);
            }
        }
        for client in &clients {
            for tag in 0..DEPTH {
                assert_eq!(client.finish(tag).0, Ok(128 << 10));
            }
        }
        for (number, client) in (0_u8..).zip(&mut clients) {
            for tag in 0..DEPTH {
                client.start(tag, Operation::Read, u64::from(tag) * 256, 256, Vec::new());
            }
            for tag in 0..DEPTH {
                assert!(
                    client.finish(tag).1 == pattern(round ^ number ^ tag as u8, 128 << 10),
                    "round {round}"
                );
            }
        }
    }
    assert_eq!(bench.worker.stats.pool.live_bytes.get(), 0);
    for client in clients {
        client.detach().await;
    }
    assert_eq!(bench.worker.stats.queues.get(), 0);
}

#[tokio::test]
async fn a_request_outside_the_export_is_refused_and_the_tag_serves_on() {
    let bench = Bench::new();
    let mut client = Client::attach(&bench.worker, &bench.export(1)).await;
    assert!(client.run(Operation::Read, (16 << 20) / 512, 8, Vec::new()).0.is_err());
    assert!(client.run(Operation::Write, 0, 257, vec![0; 257 * 512]).0.is_err());
    assert_eq!(client.run(Operation::Write, 0, 8, pattern(1, 4096)).0, Ok(4096));
    client.detach().await;
}

#[tokio::test]
async fn counters_tell_sizes_and_nothing_is_in_flight_at_rest() {
    let bench = Bench::new();
    let export = bench.export(1);
    let mut client = Client::attach(&bench.worker, &export).await;
    client.run(Operation::Write, 0, 8, pattern(1, 4096)).0.unwrap();
    client.run(Operation::Read, 0, 16, Vec::new()).0.unwrap();
    client.detach().await;
    let io = export.io_totals();
    assert_eq!(io.write_size.counts().next(), Some(1), "4096 bytes belong to le=4096");
    assert_eq!(io.read_size.counts().nth(1), Some(1));
    assert_eq!(io.in_flight.get(), 0);
}

#[tokio::test]
async fn a_worker_answers_a_ping() {
    Bench::new().worker.ping().await.unwrap();
}
