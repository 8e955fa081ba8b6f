//! The cache with a store behind it, against a model of what was written: nothing acknowledged is ever read differently,
//! whatever was stored, forgotten, fetched back, restarted or opened elsewhere.

mod crowded;
mod damaged;

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::cut::{Cut, OnUnread};

mod waiting;
use crate::cache::catalog::{CacheCatalog, Start};
use crate::cache::driver::{Driver, PATIENCE, bytes_of};
use crate::cache::faulty::{Faults, Faulty};
use crate::cache::sync_hold::SyncHold;
use crate::cache::volume::durability::{Durability, Triggers};
use crate::cache::volume::fetch::{Fill, OnUnreachable};
use crate::cache::volume::queue::WritebackQueue;
use crate::cache::{Cache, IoError, Known, MonotonicClock, OnFull, Options, SeqMarks, Volume};
use crate::store::volume::Resume;
use crate::store::volume::{CutSource, VolumeStore, VolumeStoreOptions};
use crate::store::{
    Access, Backend, BlockCache, BlockCacheOptions, Operation, Store, StoreOptions, StoreUrl, WriterId,
};
use crate::units::{ExportId, SECTOR_BYTES, SectorRange, Seq};

mod restored;

const SEGMENT_BYTES: u64 = 1 << 20;
const EXPORT: ExportId = ExportId(7);
const SECTORS: u64 = 16 * 1024;

/// A catalog that survives its cache, as the catalog does.
#[derive(Debug, Default)]
struct Paper(Mutex<HashMap<ExportId, (Resume, Seq)>>, Failing);

/// Whether a catalog cannot be written, and how often that was tried.
#[derive(Debug)]
struct Failing {
    now: AtomicBool,
    tries: AtomicU64,
    start: Mutex<Start>,
    /// How many starts can still be noted.
    start_fails_after: AtomicU64,
}

impl Default for Failing {
    fn default() -> Self {
        let (now, tries, start) = (AtomicBool::default(), AtomicU64::default(), Mutex::default());
        Self { now, tries, start, start_fails_after: AtomicU64::new(u64::MAX) }
    }
}

impl CacheCatalog for Paper {
    fn start(&self) -> Option<Start> {
        Some(*self.1.start.lock().unwrap())
    }

    fn set_start(&self, start: Start) -> io::Result<()> {
        if self.1.start_fails_after.fetch_sub(1, Ordering::AcqRel) == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        *self.1.start.lock().unwrap() = start;
        Ok(())
    }

    fn evicted(&self, marks: &[(ExportId, Seq)]) -> io::Result<()> {
        let mut entries = self.0.lock().unwrap();
        for (id, seq) in marks {
            let entry = entries.get_mut(id).unwrap();
            entry.1 = entry.1.max(*seq);
        }
        Ok(())
    }

    fn stored(&self, export: ExportId, resume: &Resume, evicted: Seq) -> io::Result<()> {
        if self.1.now.load(Ordering::Acquire) {
            self.1.tries.fetch_add(1, Ordering::AcqRel);
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut entries = self.0.lock().unwrap();
        let entry = entries.get_mut(&export).unwrap();
        *entry = (Resume { manifest: None, ..resume.clone() }, entry.1.max(evicted));
        Ok(())
    }
}

/// One host: a cache directory, its catalog, and a daemon that comes and goes.
struct Host {
    directory: tempfile::TempDir,
    faults: Arc<Faults>,
    paper: Arc<Paper>,
    volumes: VolumeStore,
    /// Ends the requests to the store.
    stops: watch::Sender<bool>,
    size_sectors: u64,
    triggers: Triggers,
    runtime: Runtime,
    daemon: Option<Daemon>,
}

struct Daemon {
    driver: Driver,
    queue: Arc<WritebackQueue>,
    stop: watch::Sender<bool>,
}

fn store(runtime: &Runtime, backend: Backend) -> (Store, watch::Sender<bool>) {
    let access = Access::ReadWrite { now_unix_millis: 0 };
    let (stops, stopped) = watch::channel(false);
    let options = StoreOptions { shutdown: Some(stopped), ..StoreOptions::default() };
    (runtime.block_on(Store::open(backend, access, options)).unwrap().0, stops)
}

fn memory() -> Backend {
    Backend::connect(&StoreUrl::Memory, &Vec::new(), false).unwrap()
}

impl Host {
    /// A host that has the volume `vm` open, or makes it.
    fn new(backend: Backend, writer: u8, opens: bool) -> Self {
        Self::with_clean(backend, writer, opens, false)
    }

    /// As [`Self::new`], with a clean cache in memory if `keeps`.
    fn with_clean(backend: Backend, writer: u8, opens: bool, keeps: bool) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (store, stops) = store(&runtime, backend);
        let options = BlockCacheOptions { directory: None, memory_bytes_max: 64 << 20, disk_bytes_max: 0 };
        let clean = keeps.then(|| runtime.block_on(BlockCache::open(options)).unwrap());
        let volumes = VolumeStore::new(
            store,
            VolumeStoreOptions { clean, ..VolumeStoreOptions::new(WriterId([writer; 16])) },
        );
        let name = "vm".parse().unwrap();
        let volume = runtime.block_on(async {
            if opens { volumes.take_over(&name).await } else { volumes.create(&name, SECTORS).await }
        });
        let entries = HashMap::from([(EXPORT, (volume.unwrap().state(), Seq(0)))]);
        Self::with(runtime, volumes, stops, entries)
    }

    /// Another host with what a catalog says.
    fn over(backend: Backend, writer: WriterId, entries: HashMap<ExportId, (Resume, Seq)>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (store, stops) = store(&runtime, backend);
        let volumes = VolumeStore::new(store, VolumeStoreOptions::new(writer));
        Self::with(runtime, volumes, stops, entries)
    }

    fn with(
        runtime: Runtime,
        volumes: VolumeStore,
        stops: watch::Sender<bool>,
        entries: HashMap<ExportId, (Resume, Seq)>,
    ) -> Self {
        let paper = Paper(Mutex::new(entries), Failing::default());
        let directory = tempfile::tempdir().unwrap();
        let paper = Arc::new(paper);
        let (size_sectors, daemon) = (SECTORS, None);
        let triggers = Triggers {
            size_bytes: 2 << 20,
            age: Duration::from_millis(300),
            quiet: Duration::from_millis(100),
        };
        let faults = Arc::default();
        let mut host =
            Self { directory, faults, paper, volumes, stops, size_sectors, triggers, runtime, daemon };
        host.start();
        host
    }

    /// The cache directory, whose disk fails as it is told to.
    fn disk(&self) -> Faulty {
        let mut disk = Faulty::new(self.directory.path());
        disk.faults = Arc::clone(&self.faults);
        disk
    }

    /// Has nothing stored that nobody asks for.
    fn flush_when_asked(&mut self) {
        let never = Duration::from_hours(1);
        self.triggers = Triggers { size_bytes: u64::MAX, age: never, quiet: never };
        self.restart();
    }

    /// Opens the cache as the catalog says.
    fn open(&self) -> Result<(Cache, Resume), crate::cache::CacheError> {
        let (resume, evicted) = self.paper.0.lock().unwrap()[&EXPORT].clone();
        let options = Options {
            size_bytes: 8 * SEGMENT_BYTES,
            segment_bytes: SEGMENT_BYTES,
            shards: 1,
            on_full: OnFull::Wait,
        };
        let exports = vec![(EXPORT, SeqMarks { stored: resume.cut, evicted })];
        let known = Known { exports, catalog: Arc::clone(&self.paper) as Arc<dyn CacheCatalog> };
        Cache::open(Arc::new(self.disk()), Arc::new(MonotonicClock::default()), options, known)
            .map(|(cache, _)| (cache, resume))
    }

    fn start(&mut self) {
        let (cache, resume) = self.open().unwrap();
        let queue = cache.writeback_queue(self.runtime.handle().clone());
        let (stop, stopped) = watch::channel(false);
        self.runtime.spawn(cache.writeback(Arc::clone(&queue), self.triggers).run(stopped));
        cache.volume(EXPORT).link_to_store(
            self.volumes.resume(&resume),
            Arc::clone(&queue),
            self.size_sectors,
            resume.size_sectors,
        );
        self.daemon = Some(Daemon { driver: Driver::new(cache), queue, stop });
    }

    /// Ends the daemon as kill -9 does: what it was doing is not finished.
    fn stop(&mut self) {
        let daemon = self.daemon.take().unwrap();
        daemon.stop.send(true).unwrap();
        daemon.driver.kill();
    }

    fn restart(&mut self) {
        self.stop();
        self.start();
    }

    fn driver(&mut self) -> &mut Driver {
        &mut self.daemon.as_mut().unwrap().driver
    }

    fn volume(&mut self) -> Arc<Volume> {
        self.driver().cache.volume(EXPORT)
    }

    fn write(&mut self, range: SectorRange, data: Option<&[u8]>) -> Result<(), IoError> {
        let volume = self.volume();
        self.driver().write(&volume, range, data)
    }

    fn flush(&mut self) -> Result<(), IoError> {
        let volume = self.volume();
        self.driver().flush(&volume)
    }

    fn read(&mut self, range: SectorRange) -> Result<Vec<u8>, IoError> {
        let volume = self.volume();
        self.driver().read(&volume, range)
    }

    fn write_back(&mut self) -> Result<Seq, IoError> {
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

/// What was written: a number a sector, of which the sector's bytes are made; 0 is zeroes.
struct Model {
    sectors: Vec<u64>,
    next: u64,
    written_bytes: u64,
    random: SmallRng,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self {
            sectors: vec![0; SECTORS as usize],
            next: 1,
            written_bytes: 0,
            random: SmallRng::seed_from_u64(seed),
        }
    }

    fn range(&mut self, longest: u64) -> SectorRange {
        let count = self.random.random_range(1..=longest);
        SectorRange::new(self.random.random_range(0..=SECTORS - count), count).unwrap()
    }

    fn write(&mut self, host: &mut Host) {
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

    fn check(&mut self, host: &mut Host, range: SectorRange) {
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

    fn check_all(&mut self, host: &mut Host) {
        for start in (0..SECTORS).step_by(256) {
            self.check(host, SectorRange::new(start, 256).unwrap());
        }
    }
}

#[test]
fn cuts_whose_writes_cannot_be_appended_keep_no_other_from_the_store() {
    let mut host = Host::new(memory(), 1, false);
    let daemon = host.daemon.as_ref().unwrap();
    let volumes: Vec<_> = (100..108).map(|id| daemon.driver.cache.volume(ExportId(id))).collect();
    for volume in &volumes {
        let name = format!("vm-{}", volume.id().0).parse().unwrap();
        let remote = host.runtime.block_on(host.volumes.create(&name, SECTORS)).unwrap();
        volume.link_to_store(remote, Arc::clone(&daemon.queue), SECTORS, SECTORS);
        // A write that has its number and no segment.
        volume.next_seqs(1);
        volume.cut_now();
        volume.ask_writeback();
    }
    // Time for each of them to be begun.
    let landing = crate::cache::volume::cuts::CutState::Landing;
    while volumes.iter().any(|volume| volume.cut_state() != landing) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let driver = &mut host.daemon.as_mut().unwrap().driver;
    let volume = driver.cache.volume(EXPORT);
    driver.write(&volume, SectorRange::new(0, 8).unwrap(), Some(&[1; 4096])).unwrap();
    let stored = host.runtime.block_on(async { tokio::time::timeout(PATIENCE, volume.written_back()).await });
    stored.expect("it waits for cuts that wait").unwrap();
    for volume in &volumes {
        assert_eq!(volume.cut_state(), crate::cache::volume::cuts::CutState::Landing);
    }
}

#[test]
fn cuts_that_wait_for_a_sync_leave_threads_for_others() {
    const THREADS: usize = 16;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(THREADS)
        .enable_all()
        .build()
        .unwrap();
    let (store, stops) = store(&runtime, memory());
    let volumes = VolumeStore::new(store, VolumeStoreOptions::new(WriterId([1; 16])));
    let state = runtime.block_on(volumes.create(&"vm".parse().unwrap(), SECTORS)).unwrap().state();
    let mut host = Host::with(runtime, volumes, stops, HashMap::from([(EXPORT, (state, Seq(0)))]));
    let daemon = host.daemon.as_mut().unwrap();
    let shared = Arc::clone(&daemon.driver.cache.shared);
    let mut cut = Vec::new();
    for id in 100..100 + 2 * THREADS as u64 {
        let volume = daemon.driver.cache.volume(ExportId(u32::try_from(id).unwrap()));
        let name = format!("vm-{id}").parse().unwrap();
        let remote = host.runtime.block_on(host.volumes.create(&name, SECTORS)).unwrap();
        host.paper.0.lock().unwrap().insert(volume.id(), (remote.state(), Seq(0)));
        volume.link_to_store(remote, Arc::clone(&daemon.queue), SECTORS, SECTORS);
        cut.push(volume);
    }
    // Somebody else is at every file, for as long as a disk may take.
    let busy: Vec<_> = (0..8).filter_map(|number| SyncHold::begin(&*shared, number)).collect();
    for volume in &cut {
        daemon.driver.write(volume, SectorRange::new(0, 8).unwrap(), Some(&[1; 4096])).unwrap();
        volume.cut_now();
        volume.ask_writeback();
    }
    // Time for each of them to be begun; without it this shows less, and passes.
    std::thread::sleep(Duration::from_millis(300));
    let other = host.runtime.spawn_blocking(|| 7);
    let answer = host.runtime.block_on(async { tokio::time::timeout(PATIENCE, other).await });
    drop(busy);
    assert_eq!(answer.expect("cuts that wait have every thread").unwrap(), 7);
    for volume in &cut {
        let stored =
            host.runtime.block_on(async { tokio::time::timeout(PATIENCE, volume.written_back()).await });
        stored.expect("a cut is not carried").unwrap();
    }
}

#[test]
fn a_cache_smaller_than_what_is_written_reads_back_everything_from_wherever_it_is() {
    let backend = memory();
    let mut host = Host::new(backend.clone(), 1, false);
    let mut model = Model::new(1);
    let mut evicted_bytes = 0;
    for step in 0..3000 {
        model.write(&mut host);
        match step % 10 {
            3 => host.flush().unwrap(),
            5 => {
                let range = model.range(256);
                model.check(&mut host, range);
            }
            _ => {}
        }
        if step % 700 == 699 {
            evicted_bytes += host.driver().cache.stats().evicted_bytes;
            host.restart();
        }
    }
    let stats = host.driver().cache.stats();
    assert!(evicted_bytes + stats.evicted_bytes > 0, "nothing left the cache: {stats:?}");
    model.check_all(&mut host);
    host.write_back().unwrap();
    assert_eq!(host.driver().cache.stats().dirty_bytes, 0);

    // Another host has nothing but the store.
    let mut other = Host::new(backend, 2, true);
    model.check_all(&mut other);
    model.write(&mut other);
    other.write_back().unwrap();
    model.check_all(&mut other);

    // The first one finds out with its next flush, unless it was making packs fewer, and keeps what it has not stored.
    let range = SectorRange::new(0, 8).unwrap();
    let written = host.write(range, Some(&[7; 4096]));
    assert!(matches!(written, Ok(()) | Err(IoError::Fenced)), "{written:?}");
    assert_eq!(host.write_back(), Err(IoError::Fenced));
    assert_eq!(host.read(range), Err(IoError::Fenced));
    assert_eq!(host.write(range, Some(&[8; 4096])), Err(IoError::Fenced));
    assert_eq!(host.flush(), Err(IoError::Fenced));
    assert_eq!(host.driver().cache.stats().dirty_bytes, if written.is_ok() { 4096 } else { 0 });
}

#[test]
fn a_write_that_failed_is_the_same_on_host_and_store_after_a_crash() {
    let backend = memory();
    let mut host = Host::new(backend.clone(), 1, false);
    let range = |start| SectorRange::new(start, 8).unwrap();
    host.write(range(0), Some(&[1; 4096])).unwrap();
    // The record is on the disk, and nothing that could end the segment before the record gets there.
    host.faults.breaks.store(true, Ordering::SeqCst);
    assert_eq!(host.write(range(8), Some(&[2; 4096])), Err(IoError::Write));
    host.write(range(16), Some(&[3; 4096])).unwrap();
    host.write_back().unwrap();
    host.stop();
    host.faults.mend();
    host.start();
    let here = [0, 8, 16].map(|start| host.read(range(start)).unwrap());
    assert_eq!((here[0][0], here[2][0]), (1, 3));
    host.write_back().unwrap();
    let mut other = Host::new(backend, 2, true);
    let there = [0, 8, 16].map(|start| other.read(range(start)).unwrap());
    assert!(there == here, "a sector of {}, and of {}", here[1][0], there[1][0]);
}

#[test]
fn a_flush_that_is_to_survive_the_host_returns_when_the_store_has_everything() {
    let backend = memory();
    let mut host = Host::new(backend.clone(), 1, false);
    host.volume().set_durability(Durability::Store);
    let mut model = Model::new(3);
    for _ in 0..5 {
        (0..10).for_each(|_| model.write(&mut host));
        host.flush().unwrap();
        let figures = host.volume().figures();
        assert_eq!((figures.stored, figures.dirty_bytes), (figures.last_seq, 0));
    }
    let mut other = Host::new(backend, 2, true);
    model.check_all(&mut other);
    model.write(&mut host);
    assert_eq!(host.flush(), Err(IoError::Fenced), "the other host has it");
}

#[test]
fn what_was_removed_is_an_error_to_whoever_stores_it_and_not_zeroes() {
    let mut host = Host::new(memory(), 1, false);
    let driver = host.driver();
    let volume = driver.cache.volume(ExportId(100));
    let range = SectorRange::new(0, 8).unwrap();
    driver.write(&volume, range, Some(&[7; 4096])).unwrap();
    volume.cut_now();
    let shared = Arc::clone(&driver.cache.shared);
    let cut = Arc::new(Cut::new(shared, Arc::clone(&volume), volume.figures().last_seq, OnUnread::Fail));
    let cuts: [Arc<dyn CutSource>; 2] = [driver.cache.kept(&volume), cut];
    let mut bytes = vec![0; 4096];
    for cut in &cuts {
        cut.read(range, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
    }
    driver.cache.remove(ExportId(100));
    for cut in &cuts {
        let read = cut.read(range, &mut bytes).unwrap_err();
        assert!(read.to_string().contains("was removed"), "{read}");
    }
}

#[test]
fn a_volume_that_nobody_writes_to_asks_nothing_of_the_store() {
    let mut host = Host::new(memory(), 1, false);
    let mut model = Model::new(2);
    (0..20).for_each(|_| model.write(&mut host));
    host.write_back().unwrap();
    let all = |host: &Host| Operation::ALL.iter().map(|operation| requests(host, *operation)).sum::<u64>();
    model.check_all(&mut host);
    let before = all(&host);
    std::thread::sleep(Duration::from_millis(700));
    host.restart();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(all(&host), before, "an idle volume sent requests");
}

fn requests(host: &Host, operation: Operation) -> u64 {
    host.volumes.store().stats().of(operation).requests.get()
}

#[test]
fn a_new_size_that_the_store_did_not_know_puts_nothing_at_risk() {
    let mut host = Host::new(memory(), 1, false);
    let mut model = Model::new(4);
    (0..20).for_each(|_| model.write(&mut host));
    host.write_back().unwrap();
    host.size_sectors *= 2;
    host.restart();
    host.write_back().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(host.volume().figures().at_risk_for, Duration::ZERO);
}

#[test]
fn what_the_store_has_is_not_uploaded_again_because_that_could_not_be_written_down() {
    let mut host = Host::new(memory(), 1, false);
    let range = SectorRange::new(0, 8).unwrap();
    host.paper.1.now.store(true, Ordering::Release);
    let before = requests(&host, Operation::Put);
    host.write(range, Some(&[7; 4096])).unwrap();
    host.volume().ask_writeback();
    let deadline = std::time::Instant::now() + PATIENCE;
    while host.paper.1.tries.load(Ordering::Acquire) < 4 {
        assert!(std::time::Instant::now() < deadline, "it is not tried again");
        std::thread::sleep(Duration::from_millis(5));
    }
    host.paper.1.now.store(false, Ordering::Release);
    host.write_back().unwrap();
    assert_eq!(requests(&host, Operation::Put) - before, 2, "a pack and a manifest");
}

#[test]
fn a_read_that_waits_for_the_store_when_the_daemon_stops_is_left_to_the_next_one() {
    let backend = memory();
    let mut host = Host::new(backend.clone(), 1, false);
    let range = SectorRange::new(0, 8).unwrap();
    host.write(range, Some(&[7; 4096])).unwrap();
    host.write_back().unwrap();
    let mut other = Host::new(backend, 2, true);
    other.stops.send(true).unwrap();
    let answer = other.volume().fetch(range).unwrap();
    assert!(other.runtime.block_on(answer).is_err(), "an answer would be an I/O error");
}

#[test]
fn who_waits_for_the_store_to_have_what_cannot_be_read_is_told() {
    let mut host = Host::new(memory(), 1, false);
    host.flush_when_asked();
    host.volume().set_durability(Durability::Store);
    let (range, data) = (SectorRange::new(0, 8).unwrap(), [7; 4096]);
    host.write(range, Some(&data)).unwrap();
    let mut segments = std::fs::read_dir(host.directory.path().join("segments")).unwrap();
    let damaged = segments.any(|file| {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let found = bytes.chunks_exact(4096).position(|frame| frame == data);
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        found.is_some_and(|at| file.write_at(&[8], 4096 * at as u64).unwrap() == 1)
    });
    assert!(damaged);
    assert_eq!(host.flush(), Err(IoError::Unreadable));
    // The loss was told, and is in the store.
    host.flush().unwrap();
    assert_eq!(host.volume().damaged_bytes(), Some(4096));
}
