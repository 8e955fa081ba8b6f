//! Hosts that share a store. Each host has a cache directory that outlives its daemons.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::sim::disk::{FakeDisk, Shared, machine};
use super::sim::faults::Crash;
use super::sim::machine::Machine;
use super::sim::rng::Rng;
use crate::cache::driver::Driver;
use crate::cache::{Budgets, Cache, Known, MonotonicClock, OnFull, Options, Triggers, Volume};
use crate::daemon::figures::of_exports_and_cache;
use crate::daemon::memory::Holders;
use crate::daemon::storage::{DaemonStorage, StoreSide};
use crate::observe::metrics::{ExportHistograms, encode};
use crate::properties::{Durability, PropertiesChange};
use crate::router::tests::fake::{Kernel, deletions_ended, drop_last};
use crate::router::{
    Catalog, CreateExport, Deaths, Devices, ExportName, InitialContent, Router, RouterOptions, Tenures,
};
use crate::store::faulty::{Fault, Faults, FaultyStore, Seeded};
use crate::store::scripted::{ManualClock, ScriptedStore};
use crate::store::volume::{StatePoint, View, VolumeError, VolumeStore, VolumeStoreOptions};
use crate::store::{Backend, BlockCache, BlockCacheOptions, RetryPolicy, Store, StoreOptions, WriterId};
use crate::units::{ExportId, SectorRange};

const SEGMENT_BYTES: u64 = 1 << 20;
const SEGMENTS: u64 = 8;
/// Small, so that a few writes make another cut while one is being written back.
const CUT_BYTES_MAX: u64 = 96 << 10;

/// The things that hosts share: the store, and the clock of the store.
pub struct World {
    pub clock: Arc<ManualClock>,
    pub faults: Arc<Faults>,
    pub runtime: Runtime,
    pub objects: Arc<ScriptedStore>,
    /// How long daemons started from now on try a request.
    pub time_budget: Duration,
    /// Whether daemons started from now on have `[store] unconfirmed = "serve"`.
    pub serves_unconfirmed: bool,
    /// How often each fault happens while the store is reachable.
    per_mille: u64,
    /// Whether daemons defer appends, as daemons with a ring do. Worlds with an odd seed do.
    defers_appends: bool,
    /// Seed of the next daemon's random numbers: no two daemons have the same.
    daemons: AtomicU64,
}

pub struct Host {
    /// This host's own way to the store.
    apart: Option<Arc<ScriptedStore>>,
    /// The computer, with the disk of the log. The catalog, which syncs every change, and the block cache, which may
    /// lose everything, are in a directory.
    computer: Shared,
    directory: tempfile::TempDir,
    kernel: Arc<Kernel>,
    /// Number of boots of the computer.
    boots: u64,
    /// The exports served by the last daemon when killed.
    tenures: Tenures,
    daemon: Option<Daemon>,
}

/// A copy of a cache directory.
#[derive(Clone)]
pub struct Copy {
    disk: super::sim::machine::Copy,
    catalog: Vec<u8>,
}

/// A daemon, running until it is killed.
pub struct Daemon {
    pub router: Arc<Router>,
    pub driver: Driver,
    cache: Cache,
    volumes: VolumeStore,
    stop: watch::Sender<bool>,
}

/// The name of an export.
pub fn name(name: &str) -> ExportName {
    ExportName::new(name).unwrap()
}

/// The request to create `export` with `content` and usual parameters.
pub fn request(export: &str, content: InitialContent) -> CreateExport {
    CreateExport {
        name: name(export),
        content,
        properties: PropertiesChange::default(),
        queues: None,
        queue_depth: None,
        detached: false,
    }
}

/// The choice of a durability.
pub fn durable(durability: Durability) -> PropertiesChange {
    PropertiesChange { durability: Some(durability), ..PropertiesChange::default() }
}

impl World {
    /// A store that fails in `per_mille` of a thousand requests, in each of the harmless ways.
    pub fn new(seed: u64, per_mille: u64) -> Self {
        let clock = Arc::<ManualClock>::default();
        let faults = Faults::new(seed);
        faults.set_all(&Fault::PASSING, per_mille);
        faults.set_all(&[Fault::Truncated, Fault::FlippedBit], per_mille);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self {
            objects: ScriptedStore::new(Arc::clone(&clock)),
            clock,
            faults,
            per_mille,
            defers_appends: seed % 2 == 1,
            time_budget: RetryPolicy::default().time_budget,
            serves_unconfirmed: false,
            runtime: runtime.unwrap(),
            daemons: AtomicU64::new(seed << 20),
        }
    }

    /// Has every request fail from now on.
    pub fn store_goes_away(&self) {
        self.faults.set(Fault::ServerError, 1000);
    }

    /// Ends [`Self::store_goes_away`] after so many milliseconds.
    pub fn store_comes_back_in(&self, millis: u64) {
        let (faults, per_mille) = (Arc::clone(&self.faults), self.per_mille);
        self.runtime.spawn(async move {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            faults.set(Fault::ServerError, per_mille);
        });
    }

    /// Ends [`Self::store_goes_away`] now.
    pub fn store_comes_back(&self) {
        self.faults.set(Fault::ServerError, self.per_mille);
    }

    /// Has no request fail any more.
    pub fn calm(&mut self) {
        self.per_mille = 0;
        self.faults.set_all(&Fault::ALL, 0);
    }

    /// The number of the newest manifest of an export in the store.
    pub fn manifest_number(&self, name: &str) -> Option<u64> {
        self.look(name, None, |view| async move { Ok(view.manifest().number) })
    }

    /// The content in the store of an export, or of a snapshot, as bytes, read without taking anything over. `None`:
    /// the export does not exist.
    pub fn image(&self, name: &str, snapshot: Option<&str>) -> Option<Bytes> {
        self.look(name, snapshot, |view| async move {
            let whole = SectorRange::new(0, view.manifest().size_sectors).unwrap();
            view.read(whole).await
        })
    }

    /// The result of `look`.
    fn look<T, F: Future<Output = Result<T, VolumeError>>>(
        &self,
        name: &str,
        snapshot: Option<&str>,
        look: impl FnOnce(View) -> F,
    ) -> Option<T> {
        let objects = self.objects.another_way(0);
        let volumes = VolumeStore::new(
            self.store(&objects, &Faults::new(0), false),
            VolumeStoreOptions::new(WriterId([0; 16])),
        );
        self.runtime.block_on(async {
            let volume = volumes.find(&name.parse().unwrap()).await.unwrap()?;
            let point = StatePoint { volume, snapshot: snapshot.map(|name| name.parse().unwrap()) };
            let view = match volumes.view(&point).await {
                // The creation of the name arrived after the deletion had freed the name.
                Err(VolumeError::Deleted { .. }) => return None,
                view => view.unwrap(),
            };
            Some(look(view).await.unwrap())
        })
    }

    fn seed(&self) -> u64 {
        self.daemons.fetch_add(1, Ordering::Relaxed)
    }

    fn store(&self, objects: &Arc<ScriptedStore>, faults: &Arc<Faults>, checked_first: bool) -> Store {
        let seed = self.seed();
        let faulty = FaultyStore::new(Arc::clone(objects) as _, Arc::clone(faults));
        let retry = RetryPolicy {
            idle_time_max: Duration::from_millis(200),
            pause_first_max: Duration::from_millis(2),
            pause_max: Duration::from_millis(20),
            time_budget: self.time_budget,
            missing_time: Duration::from_millis(200),
        };
        let entropy = Arc::new(Seeded::new(seed));
        let options = StoreOptions { retry, entropy, checked_first, ..StoreOptions::default() };
        Store::over(Backend::over(Arc::new(faulty), true), options)
    }
}

impl Host {
    pub fn new(world: &World) -> Self {
        Self::begun(world, None, true)
    }

    /// A host with its own way to the store.
    pub fn apart(world: &World) -> Self {
        Self::begun(world, Some(world.objects.another_way(world.seed())), true)
    }

    /// A host with a first daemon that has no store.
    pub fn without_store(world: &World) -> Self {
        Self::begun(world, None, false)
    }

    fn begun(world: &World, apart: Option<Arc<ScriptedStore>>, has_store: bool) -> Self {
        let kernel = Kernel::default();
        *kernel.lists.lock().unwrap() = true;
        let directory = tempfile::tempdir().unwrap();
        let machine = Machine::new(Rng::new(world.seed()));
        let computer = Arc::new(Mutex::new(machine));
        let mut host = Self {
            apart,
            computer,
            directory,
            kernel: Arc::new(kernel),
            boots: 1,
            tenures: Tenures::default(),
            daemon: None,
        };
        host.start(world, has_store, Tenures::default());
        host
    }

    fn start(&mut self, world: &World, has_store: bool, mut tenures: Tenures) -> Vec<Crash> {
        let catalog = Catalog::open(&self.directory.path().join("catalog.redb")).unwrap();
        let options = Options {
            size_bytes: SEGMENTS * SEGMENT_BYTES,
            segment_bytes: SEGMENT_BYTES,
            shards: 1,
            on_full: OnFull::Wait,
            checksums_bytes_max: 0,
            mapped_bytes_max: 2 * SEGMENT_BYTES,
            budgets: Budgets::default(),
            hands: 1,
        };
        let mut crashes = Vec::new();
        let cache = loop {
            let known = Known {
                exports: catalog.known(),
                next_export: Some(ExportId(catalog.next_export_id())),
                catalog: Arc::new(catalog.handle()),
            };
            let disk = Arc::new(FakeDisk::new(&self.computer));
            let opened = Cache::open(disk, Arc::new(MonotonicClock::default()), options, known);
            let mut machine = machine(&self.computer);
            match opened {
                Ok((cache, _)) if !machine.dead() => {
                    machine.calm();
                    break cache;
                }
                Err(error) if !machine.dead() => panic!("the cache does not open: {error}, {error:?}"),
                // The lock of the dead process is void after the reboot.
                _ => {
                    crashes.extend(machine.reboot());
                    tenures.clear();
                }
            }
        };
        let block_cache = BlockCacheOptions {
            directory: Some(self.directory.path().to_owned()),
            memory_bytes_max: 4 << 20,
            disk_bytes_max: 4 << 20,
        };
        let options = VolumeStoreOptions {
            clock: Arc::clone(&world.clock) as _,
            notes: catalog.journal(),
            block_cache: Some(world.runtime.block_on(BlockCache::open(block_cache)).unwrap()),
            ..VolumeStoreOptions::new(cache.writer())
        };
        let objects = self.apart.as_ref().unwrap_or(&world.objects);
        let volumes = VolumeStore::new(world.store(objects, &world.faults, true), options);
        let queue = cache.writeback_queue(world.runtime.handle().clone());
        queue.set_cut_bytes_max(CUT_BYTES_MAX);
        let triggers = Triggers {
            size_bytes: 1 << 20,
            age: Duration::from_millis(100),
            quiet: Duration::from_millis(50),
        };
        let (stop, stopped) = watch::channel(false);
        let own_volumes = volumes.clone();
        let side = has_store.then(|| {
            world.runtime.spawn(cache.writeback(Arc::clone(&queue), triggers).run(stopped));
            let side = Arc::new(StoreSide::new(volumes, queue, &catalog));
            let checked = Arc::clone(&side);
            let mut stopped = stop.subscribe();
            world.runtime.spawn(async move {
                let check = async {
                    while checked.check().await.is_err() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                };
                tokio::select! {
                    () = check => {}
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            });
            side
        });
        let options = RouterOptions {
            exports_max: 64,
            queue_depth_default: 64,
            parallel_max: 8,
            serve_unconfirmed: world.serves_unconfirmed,
            // Long enough for a thread that stands still, as tests with a store that answers rely on the answer.
            confirm_patience: Duration::from_secs(1),
            waiting_since: None,
            tenures,
            deaths: Arc::new(Deaths::read(self.directory.path())),
            boot_id: format!("boot {}", self.boots),
        };
        let devices = Arc::clone(&self.kernel) as Arc<dyn Devices>;
        let router =
            Router::new(catalog, devices, Arc::new(DaemonStorage::new(cache.clone(), side)), options);
        world.runtime.block_on(async {
            router.start().await;
            deletions_ended(&router).await;
        });
        let own_cache = cache.clone();
        let mut driver =
            if world.defers_appends { Driver::deferring(cache, world.seed()) } else { Driver::new(cache) };
        let computer = Arc::clone(&self.computer);
        driver.ends_when(move || machine(&computer).dead());
        self.daemon = Some(Daemon { router, driver, cache: own_cache, volumes: own_volumes, stop });
        crashes
    }

    /// Upgrades the daemon: the end of a program, and another one with the tenures of the one before.
    pub fn hand_over(&mut self, world: &World) {
        self.go_down(Crash::Kill);
        self.succeed(world);
    }

    /// As [`Self::come_up`], for the next program of an upgrade.
    pub fn succeed(&mut self, world: &World) -> Vec<Crash> {
        let tenures = std::mem::take(&mut self.tenures);
        self.start(world, true, tenures)
    }

    /// As [`Self::hand_over`], with these `tenures`.
    pub fn hand_over_as(&mut self, world: &World, tenures: Tenures) {
        self.go_down(Crash::Kill);
        self.start(world, true, tenures);
    }

    /// Kills the daemon, and starts another one.
    pub fn restart(&mut self, world: &World) {
        self.crash(world, Crash::Kill);
    }

    /// Crashes the host, and starts another daemon.
    pub fn crash(&mut self, world: &World, crash: Crash) {
        self.go_down(crash);
        self.come_up(world);
    }

    /// Crashes the host, unless it has just crashed. Returns the kind of the crash.
    pub fn go_down(&mut self, crash: Crash) -> Crash {
        self.tenures = self.daemon.as_ref().map(|daemon| daemon.router.tenures()).unwrap_or_default();
        // Later effects of the daemon's threads are dropped.
        machine(&self.computer).crash_now(crash);
        self.lose();
        let crash = machine(&self.computer).reboot().unwrap_or(crash);
        if crash == Crash::PowerCut {
            self.boots += 1;
            self.kernel.devices().clear();
            self.tenures.clear();
        }
        crash
    }

    /// Has daemons from now on know that those before have died twice of an export.
    pub fn died_of(&self, export: ExportId) {
        let path = self.directory.path().join("deaths");
        std::fs::write(path, format!("{export} panicked\n{export} panicked\n")).unwrap();
    }

    /// Copies the cache directory, with the catalog, while the host is down.
    pub fn copy(&self) -> Copy {
        let catalog = std::fs::read(self.directory.path().join("catalog.redb")).unwrap();
        Copy { disk: self.machine().copy(), catalog }
    }

    /// Puts `copy` in the place of the cache directory while the host is down, as a restored backup. No device is left.
    pub fn put(&mut self, copy: &Copy) {
        std::fs::write(self.directory.path().join("catalog.redb"), &copy.catalog).unwrap();
        self.machine().put(&copy.disk);
        self.tenures.clear();
        self.boots += 1;
        self.kernel.devices().clear();
    }

    /// Another host with a copied directory.
    pub fn of_copy(world: &World, copy: &Copy) -> Self {
        let mut host = Self::apart(world);
        host.go_down(Crash::Kill);
        host.put(copy);
        host.come_up(world);
        host
    }

    /// Starts another daemon, after every crash that happens while the cache is opened.
    pub fn come_up(&mut self, world: &World) -> Vec<Crash> {
        self.start(world, true, Tenures::default())
    }

    /// The way to the store of a host of [`Self::apart`].
    pub fn objects(&self) -> &Arc<ScriptedStore> {
        self.apart.as_ref().unwrap()
    }

    /// The computer, with its disk and the faults of the disk.
    pub fn machine(&self) -> MutexGuard<'_, Machine> {
        machine(&self.computer)
    }

    /// Kills the daemon and starts no other.
    pub fn lose(&mut self) {
        let Daemon { router, driver, stop, .. } = self.daemon.take().unwrap();
        self.kernel.daemon_died();
        // Without a store nobody listens.
        let _ = stop.send(true);
        drop_last(router);
        driver.kill();
    }

    /// The devices of this host.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    pub fn router(&self) -> Arc<Router> {
        Arc::clone(&self.daemon.as_ref().unwrap().router)
    }

    pub fn driver(&mut self) -> &mut Driver {
        &mut self.daemon.as_mut().unwrap().driver
    }

    /// The volumes in the store, as the daemon sees the volumes.
    pub fn volumes(&self) -> &VolumeStore {
        &self.daemon.as_ref().unwrap().volumes
    }

    /// A scrape of the exports and the cache.
    pub fn scrape(&self) -> String {
        let daemon = self.daemon.as_ref().unwrap();
        let holders = Holders {
            workers: Vec::new(),
            shards: Vec::new(),
            cache: daemon.cache.clone(),
            router: Arc::clone(&daemon.router),
            block_cache: None,
            volumes: None,
            api: Arc::default(),
        };
        encode(ExportHistograms::Busy, |out| of_exports_and_cache(&holders, true, out)).unwrap()
    }

    /// Whether an export is open on this host.
    pub fn knows(&self, name: &str) -> bool {
        self.router().show(name).is_ok()
    }

    /// The volume of an export that is open on this host, as the export's device would use the volume.
    pub fn volume(&self, name: &str) -> Arc<Volume> {
        let export = self.router().export_for_io(name);
        Arc::clone(export.unwrap_or_else(|| panic!("{name} is not open here")).volume())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            let _ = daemon.stop.send(true);
        }
    }
}
