//! A host with a cache and a store, and the model of all writes that tests compare the host with.

use futures_util::future::{BoxFuture, ready};

use super::*;
use crate::cache::{Budgets, CacheError, Recovered};

/// A catalog in memory. The catalog survives the cache of its host, and fails on demand.
#[derive(Debug)]
pub(super) struct TestCatalog {
    pub(super) entries: Mutex<HashMap<ExportId, Noted>>,
    pub(super) start: Mutex<Start>,
    /// How many more starts can be noted.
    pub(super) starts_left: AtomicU64,
    /// Cuts cannot be noted.
    pub(super) fails: AtomicBool,
    /// Number of failed notes of cuts.
    pub(super) failures: watch::Sender<u64>,
}

/// The catalog's entry for an export.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub(super) resume: Resume,
    /// Nothing up to this sequence number may be taken from the log.
    pub(super) evicted: Seq,
}

impl TestCatalog {
    pub(super) fn new(entries: HashMap<ExportId, Noted>) -> Self {
        Self {
            entries: Mutex::new(entries),
            start: Mutex::default(),
            starts_left: AtomicU64::new(u64::MAX),
            fails: AtomicBool::new(false),
            failures: watch::Sender::new(0),
        }
    }

    /// Adds an export whose volume in the store is at `resume`.
    pub(super) fn add(&self, id: ExportId, resume: Resume) {
        self.entries.lock().unwrap().insert(id, Noted { resume, evicted: Seq(0) });
    }
}

impl CacheCatalog for TestCatalog {
    fn start(&self) -> Option<Start> {
        Some(*self.start.lock().unwrap())
    }

    fn set_start(&self, start: Start) -> io::Result<()> {
        if self.starts_left.fetch_sub(1, Ordering::AcqRel) == 0 {
            return Err(io::ErrorKind::Other.into());
        }
        *self.start.lock().unwrap() = start;
        Ok(())
    }

    fn evicted(&self, marks: &[(ExportId, Seq)]) -> io::Result<()> {
        let mut entries = self.entries.lock().unwrap();
        for (id, seq) in marks {
            let noted = entries.get_mut(id).unwrap();
            noted.evicted = noted.evicted.max(*seq);
        }
        Ok(())
    }

    fn stored(&self, export: ExportId, resume: &Resume, evicted: Seq) -> BoxFuture<'static, io::Result<()>> {
        if self.fails.load(Ordering::Acquire) {
            self.failures.send_modify(|failures| *failures += 1);
            return Box::pin(ready(Err(io::ErrorKind::StorageFull.into())));
        }
        let mut entries = self.entries.lock().unwrap();
        let noted = entries.get_mut(&export).unwrap();
        noted.resume = Resume { manifest: None, ..resume.clone() };
        noted.evicted = noted.evicted.max(evicted);
        Box::pin(ready(Ok(())))
    }
}

/// The machine's clock, and a test may move the clock on.
#[derive(Debug, Default)]
pub(super) struct TestClock {
    pub(super) machine: MonotonicClock,
    pub(super) ahead: Mutex<Duration>,
}

impl TestClock {
    pub(super) fn advance(&self, time: Duration) {
        *self.ahead.lock().unwrap() += time;
    }
}

impl Clock for TestClock {
    fn now(&self) -> Duration {
        self.machine.now() + *self.ahead.lock().unwrap()
    }

    fn sleep(&self, time: Duration) {
        self.machine.sleep(time);
    }
}

/// One host: a cache directory, a catalog, and a daemon that comes and goes.
pub(super) struct Host {
    pub(super) directory: tempfile::TempDir,
    pub(super) faults: Arc<Faults>,
    pub(super) catalog: Arc<TestCatalog>,
    pub(super) clock: Arc<TestClock>,
    pub(super) volumes: VolumeStore,
    /// Ends the requests to the store.
    pub(super) stops: watch::Sender<bool>,
    pub(super) size_sectors: u64,
    pub(super) triggers: Triggers,
    /// Whether the daemon has an engine for writeback.
    pub(super) writes_back: bool,
    pub(super) budgets: Budgets,
    pub(super) runtime: Runtime,
    pub(super) daemon: Option<Daemon>,
}

pub(super) struct Daemon {
    pub(super) driver: Driver,
    pub(super) queue: Arc<WritebackQueue>,
    pub(super) stop: watch::Sender<bool>,
}

pub(super) fn store(runtime: &Runtime, backend: Backend) -> (Store, watch::Sender<bool>) {
    let access = Access::ReadWrite;
    let (stops, stopped) = watch::channel(false);
    let options = StoreOptions { shutdown: Some(stopped), ..StoreOptions::default() };
    (runtime.block_on(Store::open(backend, access, options)).unwrap().0, stops)
}

pub(super) fn memory() -> Backend {
    Backend::connect(&StoreUrl::Memory, &Vec::new(), false).unwrap()
}

impl Host {
    /// A host with the volume `vm`: taken over if `opens`, otherwise created.
    pub(super) fn new(backend: Backend, writer: u8, opens: bool) -> Self {
        Self::with_clean(backend, writer, opens, false)
    }

    /// As [`Self::new`], with a block cache in memory if `keeps`.
    pub(super) fn with_clean(backend: Backend, writer: u8, opens: bool, keeps: bool) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (store, stops) = store(&runtime, backend);
        let options = BlockCacheOptions { directory: None, memory_bytes_max: 64 << 20, disk_bytes_max: 0 };
        let block_cache = keeps.then(|| runtime.block_on(BlockCache::open(options)).unwrap());
        let volumes = VolumeStore::new(
            store,
            VolumeStoreOptions { block_cache, ..VolumeStoreOptions::new(WriterId([writer; 16])) },
        );
        let name = "vm".parse().unwrap();
        let volume = runtime.block_on(async {
            if opens { volumes.take_over(&name).await } else { volumes.create(&name, SECTORS).await }
        });
        let entries = HashMap::from([(EXPORT, Noted { resume: volume.unwrap().state(), evicted: Seq(0) })]);
        Self::with(runtime, volumes, stops, entries)
    }

    /// A second host with the entries of a catalog.
    pub(super) fn over(backend: Backend, writer: WriterId, entries: HashMap<ExportId, Noted>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (store, stops) = store(&runtime, backend);
        let volumes = VolumeStore::new(store, VolumeStoreOptions::new(writer));
        Self::with(runtime, volumes, stops, entries)
    }

    pub(super) fn with(
        runtime: Runtime,
        volumes: VolumeStore,
        stops: watch::Sender<bool>,
        entries: HashMap<ExportId, Noted>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (catalog, clock) = (Arc::new(TestCatalog::new(entries)), Arc::default());
        let (size_sectors, daemon) = (SECTORS, None);
        let triggers = Triggers {
            size_bytes: 2 << 20,
            age: Duration::from_millis(300),
            quiet: Duration::from_millis(100),
        };
        let faults = Arc::default();
        let mut host = Self {
            directory,
            faults,
            catalog,
            clock,
            volumes,
            stops,
            size_sectors,
            triggers,
            writes_back: true,
            budgets: Budgets::default(),
            runtime,
            daemon,
        };
        host.start();
        host
    }

    /// The cache directory, on a disk that fails on demand.
    pub(super) fn disk(&self) -> Faulty {
        let mut disk = Faulty::new(self.directory.path());
        disk.faults = Arc::clone(&self.faults);
        disk
    }

    /// From now on data is written back only when somebody asks.
    pub(super) fn write_back_when_asked(&mut self) {
        let never = Duration::from_hours(1);
        self.triggers = Triggers { size_bytes: u64::MAX, age: never, quiet: never };
        self.restart();
    }

    /// From now on no data is written back: cuts are those of the test alone.
    pub(super) fn never_write_back(&mut self) {
        self.writes_back = false;
        self.restart();
    }

    /// Opens the cache with the marks of the catalog.
    pub(super) fn open(&self) -> Result<(Cache, Resume), CacheError> {
        let Noted { resume, evicted } = self.catalog.entries.lock().unwrap()[&EXPORT].clone();
        let exports = vec![(EXPORT, SeqMarks { stored: resume.cut, evicted })];
        self.open_with(exports, None).map(|(cache, _)| (cache, resume))
    }

    /// Opens the cache with these exports, and this id for the next export.
    pub(super) fn open_with(
        &self,
        exports: Vec<(ExportId, SeqMarks)>,
        next_export: Option<ExportId>,
    ) -> Result<(Cache, Recovered), CacheError> {
        let options = Options {
            size_bytes: 8 * SEGMENT_BYTES,
            segment_bytes: SEGMENT_BYTES,
            shards: 1,
            on_full: OnFull::Wait,
            checksums_bytes_max: 0,
            mapped_bytes_max: 2 * SEGMENT_BYTES,
            budgets: self.budgets,
            hands: 1,
        };
        let catalog = Arc::clone(&self.catalog) as Arc<dyn CacheCatalog>;
        let known = Known { exports, next_export, catalog };
        Cache::open(Arc::new(self.disk()), Arc::clone(&self.clock) as Arc<dyn Clock>, options, known)
    }

    pub(super) fn start(&mut self) {
        let (cache, resume) = self.open().unwrap();
        let queue = cache.writeback_queue(self.runtime.handle().clone());
        let (stop, stopped) = watch::channel(false);
        if self.writes_back {
            self.runtime.spawn(cache.writeback(Arc::clone(&queue), self.triggers).run(stopped));
        }
        cache.volume(EXPORT).link_to_store(
            self.volumes.resume(&resume),
            Arc::clone(&queue),
            self.size_sectors,
            resume.size_sectors,
        );
        self.daemon = Some(Daemon { driver: Driver::new(cache), queue, stop });
    }

    /// Ends the daemon as kill -9 does: work under way is not finished.
    pub(super) fn stop(&mut self) {
        let daemon = self.daemon.take().unwrap();
        // Without an engine nobody listens.
        let _ = daemon.stop.send(true);
        daemon.driver.kill();
    }

    pub(super) fn restart(&mut self) {
        self.stop();
        self.start();
    }

    pub(super) fn driver(&mut self) -> &mut Driver {
        &mut self.daemon.as_mut().unwrap().driver
    }

    pub(super) fn volume(&mut self) -> Arc<Volume> {
        self.driver().cache.volume(EXPORT)
    }

    pub(super) fn write(&mut self, range: SectorRange, data: Option<&[u8]>) -> Result<(), IoError> {
        let volume = self.volume();
        self.driver().write(&volume, range, data)
    }

    pub(super) fn flush(&mut self) -> Result<(), IoError> {
        let volume = self.volume();
        self.driver().flush(&volume)
    }

    pub(super) fn read(&mut self, range: SectorRange) -> Result<Vec<u8>, IoError> {
        let volume = self.volume();
        self.driver().read(&volume, range)
    }

    /// Asks the store whether the volume is this host's, as a start does before the export gets a device.
    pub(super) fn confirm(&mut self) -> Result<bool, crate::store::volume::VolumeError> {
        let volume = self.volume();
        self.runtime.block_on(volume.confirm(PATIENCE))
    }

    pub(super) fn write_back(&mut self) -> Result<Seq, IoError> {
        let volume = self.volume();
        self.runtime.block_on(async { tokio::time::timeout(PATIENCE, volume.written_back()).await.unwrap() })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let _ = daemon.stop.send(true);
        }
    }
}

/// All writes: for each sector the number of the last write, from which the bytes of the sector are made; 0 stands for zeroes.
pub(super) struct Model {
    pub(super) sectors: Vec<u64>,
    pub(super) next: u64,
    pub(super) written_bytes: u64,
    pub(super) random: SmallRng,
}

impl Model {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            sectors: vec![0; SECTORS as usize],
            next: 1,
            written_bytes: 0,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    pub(super) fn range(&mut self, longest: u64) -> SectorRange {
        let count = self.random.random_range(1..=longest);
        SectorRange::new(self.random.random_range(0..=SECTORS - count), count).unwrap()
    }

    pub(super) fn write(&mut self, host: &mut Host) {
        let longest = if self.random.random_bool(0.3) { 256 } else { 16 };
        let range = self.range(longest);
        let zero = self.random.random_bool(0.1);
        let number = if zero { 0 } else { self.next };
        self.next += 1;
        let mut data = Vec::new();
        for sector in range.start()..range.end() {
            data.extend_from_slice(&bytes_of(number, sector));
            self.sectors[sector as usize] = number;
        }
        host.write(range, (!zero).then_some(&data[..])).unwrap();
        self.written_bytes += if zero { 0 } else { data.len() as u64 };
    }

    pub(super) fn check(&mut self, host: &mut Host, range: SectorRange) {
        let found = host.read(range).unwrap();
        for (sector, bytes) in (range.start()..).zip(found.chunks_exact(SECTOR_BYTES as usize)) {
            let expected = bytes_of(self.sectors[sector as usize], sector);
            assert!(
                bytes == expected,
                "sector {sector} of {range:?}, written as {}",
                self.sectors[sector as usize]
            );
        }
    }

    pub(super) fn check_all(&mut self, host: &mut Host) {
        for start in (0..SECTORS).step_by(256) {
            self.check(host, SectorRange::new(start, 256).unwrap());
        }
    }
}
