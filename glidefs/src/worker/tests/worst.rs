//! Back-pressure at its worst: small arenas, hundreds of devices with all tags busy, a full log, and a store that is away.
//!
//! A queue here has a script for each tag and no client: the answer to a request is the arrival of the next one, so all tags are
//! busy until the scripts end. Progress is counted in requests and turns.

use tokio::sync::watch;

use super::risk::Paper;
use super::*;
use crate::cache::{Budgets, CacheCatalog, SeqMarks, Triggers};
use crate::observe::counter::Counter;
use crate::store::faulty::{Fault, Faults, FaultyStore};
use crate::store::scripted::ScriptedStore;
use crate::store::volume::{VolumeStore, VolumeStoreOptions};
use crate::store::{Access, Backend, Store, StoreOptions, WriterId};

const EXPORTS: u32 = 400;
const TAGS: u16 = 16;
const ARENA_SLOTS: usize = 8;
/// Most memory of a worker for reads of the disk: buffers for data, and for two pages of sums of each read.
const READ_BUFFERS_BYTES_MAX: u64 = (2 << 20) + 32 * 2 * 4096;
const WORKERS: usize = 2;
/// The log: so little that the first writes of all tags fill the log.
const LOG_BYTES: u64 = 32 << 20;
/// Sectors of an export, and of the part that belongs to one tag.
const SECTORS: u64 = 1 << 13;
const TAG_SECTORS: u64 = 256;
/// Exports with data in the cache, one a worker, and the READs of a measurement.
const READERS: u32 = 2;
const READS: usize = 500;

/// A request of a script, and the content of a READ: sectors with zeroes, and the pattern of the others.
#[derive(Clone, Copy)]
struct Step {
    operation: Operation,
    start: u64,
    count: u64,
    zeroes: u64,
    seed: u8,
}

/// Sectors of the requests of a tag: parts of a frame, frames, and the largest request.
fn length(export: u32, tag: u16) -> u64 {
    match tag {
        15 if export.is_multiple_of(8) => 256,
        tag => [1, 8, 3, 17, 8, 32, 5][usize::from(tag) % 7],
    }
}

/// The script of a tag of a writing export.
fn busy(export: u32, tag: u16) -> Vec<Step> {
    let (count, start, half) =
        (length(export, tag), u64::from(tag) * TAG_SECTORS, length(export, tag).div_ceil(2));
    let (first, second) = ((export as u8) ^ (tag as u8), (export as u8).wrapping_add(91) ^ (tag as u8));
    let step = |operation, count, zeroes, seed| Step { operation, start, count, zeroes, seed };
    let mut steps = vec![
        step(Operation::Write, count, 0, first),
        step(Operation::Read, count, 0, first),
        step(Operation::Discard, half, 0, 0),
        step(Operation::Read, count, half, first),
        step(Operation::Write, count, 0, second),
        step(Operation::Read, count, 0, second),
    ];
    if tag.is_multiple_of(4) {
        steps.insert(1, Step { operation: Operation::Flush, start: 0, count: 0, zeroes: 0, seed: 0 });
    }
    steps
}

/// The progress of all scripted queues.
#[derive(Default)]
struct Tally {
    ended: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Tally {
    fn fail(&self, failure: String) {
        self.failures.lock().unwrap().push(failure);
    }
}

struct ScriptedTag {
    steps: std::vec::IntoIter<Step>,
    /// The request that the tag holds.
    held: Option<Step>,
}

struct ScriptedQueue {
    export: Arc<Export>,
    device: Arc<File>,
    tags: Mutex<Vec<ScriptedTag>>,
    tally: Arc<Tally>,
}

impl ScriptedQueue {
    fn held(&self, tag: u16) -> Step {
        self.tags.lock().unwrap()[usize::from(tag)].held.expect("the tag holds a request")
    }
}

impl QueueDriver for ScriptedQueue {
    fn export(&self) -> &Arc<Export> {
        &self.export
    }

    fn ids(&self) -> (u32, u16) {
        (self.export.id().0, 0)
    }

    fn depth(&self) -> u16 {
        self.tags.lock().unwrap().len() as u16
    }

    fn char_device(&self) -> RawFd {
        self.device.as_raw_fd()
    }

    fn arm(&mut self, _tag: u16, _fixed: u32) -> squeue::Entry {
        opcode::Nop::new().build()
    }

    fn answer(&mut self, tag: u16, fixed: u32, result: Result<u32, &Failure>) -> squeue::Entry {
        let Some(step) = self.tags.lock().unwrap()[usize::from(tag)].held.take() else {
            self.tally.fail(format!("tag {tag} was answered twice"));
            return self.arm(tag, fixed);
        };
        let moves = matches!(step.operation, Operation::Read | Operation::Write);
        let bytes = if moves { step.count * 512 } else { 0 };
        if !result.as_ref().is_ok_and(|&moved| u64::from(moved) == bytes) {
            self.tally.fail(format!(
                "{:?} of tag {tag}: {:?}",
                step.operation,
                result.map_err(ToString::to_string)
            ));
        }
        self.tally.ended.fetch_add(1, Ordering::AcqRel);
        self.arm(tag, fixed)
    }

    fn event(&self, tag: u16, _result: i32) -> TagEvent {
        let tag = &mut self.tags.lock().unwrap()[usize::from(tag)];
        assert!(tag.held.is_none(), "a tag with a request came back");
        tag.held = tag.steps.next();
        if tag.held.is_some() { TagEvent::Request } else { TagEvent::Gone }
    }

    fn request(&self, tag: u16) -> Result<Request, Failure> {
        let Step { operation, start, count, .. } = self.held(tag);
        Ok(Request { operation, range: SectorRange::new(start, count).unwrap(), fua: false })
    }

    fn copy_in(&self, tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        buffer.copy_from_slice(&pattern(self.held(tag).seed, start + buffer.len())[start..]);
        Ok(())
    }

    fn copy_out(&self, tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let step = self.held(tag);
        let buffer: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let (zeroes, data) = buffer.split_at(step.zeroes as usize * 512);
        let is_right =
            zeroes.iter().all(|&byte| byte == 0) && data == &pattern(step.seed, buffer.len())[zeroes.len()..];
        if !is_right {
            self.tally.fail(format!("export {} tag {tag} read other data", self.export.id().0));
        }
        Ok(())
    }

    fn stable_buffer(&self, _tag: u16) -> Option<NonNull<[u8]>> {
        None
    }
}

/// Two workers over a small log, a store that can be away, and hundreds of exports in the store.
struct Worst {
    workers: Vec<Worker>,
    cache: Cache,
    exports: Vec<Arc<Export>>,
    readers: Vec<Arc<Export>>,
    faults: Arc<Faults>,
    device: Arc<File>,
    tally: Arc<Tally>,
    stop_keeper: Arc<AtomicBool>,
    _stop_writeback: watch::Sender<bool>,
    _directory: tempfile::TempDir,
}

impl Worst {
    async fn new() -> Self {
        let faults = Faults::new(1);
        let objects = Arc::new(FaultyStore::new(ScriptedStore::new(Arc::default()), Arc::clone(&faults)));
        let access = Access::ReadWrite;
        let (store, _) =
            Store::open(Backend::over(objects, true), access, StoreOptions::default()).await.unwrap();
        let volumes = VolumeStore::new(store, VolumeStoreOptions::new(WriterId([1; 16])));
        let mut remotes = Vec::new();
        for number in 0..EXPORTS {
            remotes.push(volumes.create(&format!("vm-{number}").parse().unwrap(), SECTORS).await.unwrap());
        }
        let ids = || (0..EXPORTS).map(ExportId);
        let known = Known {
            exports: ids().map(|id| (id, SeqMarks::default())).collect(),
            catalog: Arc::new(Paper::default()) as Arc<dyn CacheCatalog>,
            ..Known::local(&[])
        };
        let directory = tempfile::tempdir().unwrap();
        let options = Options {
            size_bytes: LOG_BYTES,
            segment_bytes: 1 << 20,
            shards: WORKERS,
            on_full: OnFull::Wait,
            checksums_bytes_max: 1 << 20,
            mapped_bytes_max: 0,
            budgets: Budgets::default(),
            hands: 1,
        };
        let disk = Arc::new(Directory::new(directory.path()));
        let (cache, _) = Cache::open(disk, Arc::new(MonotonicClock::default()), options, known).unwrap();
        let stop_keeper = Arc::new(AtomicBool::new(false));
        let (mut keeper, stop) = (cache.keeper(), Arc::clone(&stop_keeper));
        std::thread::spawn(move || keeper.run(&stop));
        let cpu = cpus::allowed().unwrap()[0];
        let options = WorkerOptions {
            cpus: vec![cpu; WORKERS],
            slots_per_worker: ARENA_SLOTS,
            queues_max: EXPORTS,
            engine: Engine::default(),
        };
        let workers = start(&cache, &options).unwrap();
        let queue = cache.writeback_queue(tokio::runtime::Handle::current());
        let never = Duration::from_hours(1);
        let triggers = Triggers { size_bytes: 64 << 20, age: never, quiet: never };
        let (stop_writeback, stopped) = watch::channel(false);
        tokio::spawn(cache.writeback(Arc::clone(&queue), triggers).run(stopped));
        let export =
            |id: ExportId| Arc::new(Export::new(id, format!("vm-{}", id.0), SECTORS * 512, cache.volume(id)));
        let exports: Vec<_> = ids().map(export).collect();
        for (export, remote) in exports.iter().zip(remotes) {
            export.volume().link_to_store(remote, Arc::clone(&queue), SECTORS, SECTORS);
        }
        let readers = (EXPORTS..EXPORTS + READERS).map(|id| export(ExportId(id))).collect();
        Self {
            workers,
            cache: cache.clone(),
            exports,
            readers,
            faults,
            device: Arc::new(File::open("/dev/null").unwrap()),
            tally: Arc::default(),
            stop_keeper,
            _stop_writeback: stop_writeback,
            _directory: directory,
        }
    }

    async fn attach(&self, export: &Arc<Export>, scripts: Vec<Vec<Step>>) -> QueueGone {
        let tags = scripts.into_iter().map(|steps| ScriptedTag { steps: steps.into_iter(), held: None });
        let queue = ScriptedQueue {
            export: Arc::clone(export),
            device: Arc::clone(&self.device),
            tags: Mutex::new(tags.collect()),
            tally: Arc::clone(&self.tally),
        };
        let worker = &self.workers[export.id().0 as usize % WORKERS];
        worker.attach(Box::new(queue)).await.unwrap()
    }

    /// Runs a script on each reader, one after the other. Returns the turns that the reader's worker took.
    async fn read(&self, script: &[Step]) -> Vec<u64> {
        let mut turns = Vec::new();
        for reader in &self.readers {
            let stats = &self.workers[reader.id().0 as usize % WORKERS].stats;
            let before = stats.turns.get();
            self.attach(reader, vec![script.to_vec()]).await.await.unwrap();
            turns.push(stats.turns.get() - before);
        }
        turns
    }

    /// Waits until requests wait for log space, or for a share of the log, on all workers, and none ends any more.
    async fn until_stuck(&self) {
        let (mut last, mut rests) = (0, 0);
        let waits = |worker: &Worker| worker.shard_stats.waits.get() + worker.stats.log_waits.get();
        while rests < 100 || self.workers.iter().any(|worker| waits(worker) == 0) {
            for worker in &self.workers {
                worker.ping().await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
            let ended = self.tally.ended.load(Ordering::Acquire);
            rests = if ended == last { rests + 1 } else { 0 };
            last = ended;
        }
    }
}

impl Drop for Worst {
    fn drop(&mut self) {
        self.stop_keeper.store(true, Ordering::Release);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_all_tags_busy_the_log_full_and_the_store_away_cached_exports_are_served_and_then_everybody() {
    let worst = Worst::new().await;
    let cached =
        |number: u64, operation| Step { operation, start: number % 64 * 8, count: 8, zeroes: 0, seed: 7 };
    worst.read(&(0..64).map(|number| cached(number, Operation::Write)).collect::<Vec<_>>()).await;
    let reads: Vec<_> = (0..READS as u64).map(|number| cached(number * 13, Operation::Read)).collect();
    worst.read(&reads).await;
    let idle = worst.read(&reads).await;
    let ended_before = worst.tally.ended.load(Ordering::Acquire);

    worst.faults.set(Fault::SlowDown, 1000);
    let mut gone = Vec::with_capacity(worst.exports.len());
    for export in &worst.exports {
        let scripts = (0..TAGS).map(|tag| busy(export.id().0, tag)).collect();
        gone.push(worst.attach(export, scripts).await);
    }
    worst.until_stuck().await;
    let stuck = worst.tally.ended.load(Ordering::Acquire) - ended_before;
    let asks = || worst.workers.iter().map(|worker| worker.shard_stats.waits.get()).sum::<u64>();
    let asked_before = asks();
    let beside = worst.read(&reads).await;
    let asked = asks() - asked_before;
    assert!(asked < READS as u64 / 10, "{READS} reads had the cache asked for room {asked} times");
    let in_line = || worst.workers.iter().map(|worker| worker.stats.log_line.get()).sum::<u64>();
    let deadline = std::time::Instant::now() + Duration::from_mins(1);
    // A write that was asked for may be in a pause first, which ends soon.
    while in_line() == 0 {
        assert!(std::time::Instant::now() < deadline, "no write waits for log space");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let all: usize = (0..EXPORTS).flat_map(|id| (0..TAGS).map(move |tag| busy(id, tag).len())).sum();
    println!(
        "{stuck} of {all} requests ended with the store away; turns for {READS} reads: {idle:?} idle, {beside:?} then"
    );
    for (idle, beside) in idle.iter().zip(&beside) {
        assert!(beside * 10 <= idle * 11, "{beside} turns instead of {idle}");
    }
    assert!(stuck < all as u64, "the store is needed");

    worst.faults.set(Fault::SlowDown, 0);
    for gone in gone {
        gone.await.unwrap();
    }
    let readings = READERS as usize * (64 + 3 * READS);
    assert_eq!(*worst.tally.failures.lock().unwrap(), Vec::<String>::new());
    assert_eq!(worst.tally.ended.load(Ordering::Acquire), (all + readings) as u64);
    for worker in &worst.workers {
        let (stats, shard) = (&worker.stats, &worker.shard_stats);
        let left = [&stats.queues, &stats.pool.live_bytes, &stats.log_line];
        assert_eq!(left.map(Counter::get), [0; 3]);
        assert!((1..=(ARENA_SLOTS << 17) as u64).contains(&stats.pool.live_bytes_max.get()));
        // Buffers are kept for later reads of the disk.
        assert!(shard.read_buffer_bytes.get() <= READ_BUFFERS_BYTES_MAX);
    }
    for export in &worst.exports {
        export.volume().written_back().await.unwrap();
    }
    assert_eq!(worst.exports.iter().map(|export| export.volume().figures().dirty_bytes).sum::<u64>(), 0);
    assert_eq!(worst.cache.stats().lost_frames, 0);
}
