//! The composition root: puts the parts together, runs them until told to stop, and proves to systemd that they live.
//!
//! Owns the order of start and stop. Does not own the work of any part.
//!
//! Start: features → catalog → cache (recovers the log) → keeper → workers → devices → store → router → API → devices recovered
//! → ready. Stop: the API refuses, running operations end, devices stay quiesced for the next daemon (or are removed, if
//! configured), the process ends; the kernel issues requests in flight again to the next daemon.
//!
//! | File | What it owns |
//! |---|---|
//! | `upgrading` | upgrades as requests of users |
//! | `cache_setup`, `store_setup` | opening the cache and the store from the configuration |
//! | `serving` | the time from the first to the last request of the API |
//! | `signals` | the signals that stop the daemon |
//! | `storage` | the data of exports: cache and store as the router sees them |
//! | `collecting` | garbage collection at intervals |
//! | `figures` | `/v1/status` and `/metrics` |
//! | `top` | `/v1/top`: figures for rates, and warnings |
//! | `memory` | `/v1/memory`: memory by category |
//! | `releasing` | when memory goes back to the kernel |

mod cache_setup;
mod collecting;
mod error;
mod figures;
mod memory;
mod releasing;
mod serving;
mod signals;
mod storage;
mod store_setup;
#[cfg(test)]
mod tests;
mod top;
mod upgrading;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use self::cache_setup::{
    Locks, check_directory, engine, make_files_private, mark_abandoned, open_cache, open_catalog,
    raise_descriptor_limit, worker_options,
};
use self::collecting::Collections;
use self::error::DaemonError;
use self::figures::Parts;
pub use self::figures::of_exports_and_cache as measured_figures;
pub use self::memory::Holders as MemoryHolders;
use self::serving::serve;
use self::signals::SignalThread;
pub use self::storage::{DaemonStorage, StoreSide};
use self::store_setup::{STORE_PATIENCE, connect_store};
use self::upgrading::{Order, identity};
use crate::cache::{Cache, CacheCatalog as _, CacheError, Directory};
use crate::config::{Config, Unconfirmed};
use crate::handover::{Handed, Identity, Launch};
use crate::observe::troubles::{Part, Troubles};
use crate::router::{Deaths, Devices, Router, RouterOptions};
use crate::store::BlockCache;
use crate::store::volume::VolumeStore;
use crate::ublk::{Features, UblkDevices};
use crate::worker;

/// Threads of the control plane.
const CONTROL_THREADS: usize = 2;
/// Devices that are recovered at the same time.
const RECOVERY_PARALLEL_MAX: usize = 8;
/// How long the stop waits for work on the control threads.
const STOP_PATIENCE: Duration = Duration::from_secs(5);

/// Writes what only memory has of the block cache. Blocks that do not get to the disk in time are fetched again later.
async fn close_block_cache(block_cache: &BlockCache) {
    let _ = tokio::time::timeout(STOP_PATIENCE, block_cache.close()).await;
}

/// Refuses what can be refused without a start: the API's group and token, and a cache of a format that this program does not
/// read. Returns what the program would be in place of a daemon that runs.
pub fn check(config: &Config) -> Result<Identity, DaemonError> {
    serving::check_access(config)?;
    match Cache::check_format(&Directory::new(&config.cache.dir)) {
        // Not every user may look, and the first start finds no cache.
        Ok(()) | Err(CacheError::Disk { .. } | CacheError::DirectoryMissing { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(identity(config))
}

/// Runs the daemon until SIGTERM or SIGINT, or until another program goes on in this process: then this one does not return. The program
/// before may have `handed` over. No error once exports are recovered, except when nothing can be started for an upgrade.
pub fn run(config: &Config, handed: Option<Handed>) -> Result<(), DaemonError> {
    make_files_private();
    let troubles = Arc::<Troubles>::default();
    troubles.set(Part::Configuration, config.refused.clone());
    let system = |what| move |source| DaemonError::System { what, source };
    let launch = Launch::of_this_process().map_err(system("finding the file of this program"))?;
    raise_descriptor_limit();
    // Threads inherit the flag from the spawning thread; that of the log has set its own. Every thread needs the flag, because the
    // kernel's writing of dirty pages to a device may wait for any of these threads.
    if let Err(error) = crate::observe::memory::set_io_flusher() {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "running without PR_SET_IO_FLUSHER: needs CAP_SYS_RESOURCE"
        );
    }
    let signals = SignalThread::start().map_err(system("starting the thread for signals"))?;
    let features = Features::probe()?;
    check_directory(config)?;
    let engine = engine(config)?;
    let locks = Locks::new(handed.is_some());
    let catalog = open_catalog(config, &locks)?;
    let count = || catalog.handle().start().map_or(0, |start| start.last);
    let served = handed.as_ref().filter(|handed| handed.start == count());
    // With the catalog open no other process begins to serve this cache; and only devices of a process that has ended are marked.
    let untouchable = mark_abandoned(config, features);
    let cache = open_cache(config, &catalog, engine, &locks)?;
    if let Some(handed) = served {
        handed.way_back.counted(count());
    }
    let keeper_stop = Arc::new(AtomicBool::new(false));
    let keeper = std::thread::Builder::new()
        .name("keeper".into())
        .spawn({
            let (mut keeper, stop) = (cache.keeper(), Arc::clone(&keeper_stop));
            move || keeper.run(&stop)
        })
        .map_err(system("spawning the keeper thread"))?;
    let workers = worker::start(&cache, &worker_options(config, engine))?;
    let devices = Arc::new(UblkDevices::new(
        workers.clone(),
        features,
        config.bounce_mode,
        config.control.allow_broken_kernel,
        cache.tag(),
        config.control.command_timeout.0,
        untouchable,
    ));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(system("starting the control threads"))?;
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let boot_id = boot_id.map_err(system("reading the kernel's boot id"))?;
    let options = RouterOptions {
        exports_max: config.exports.max,
        queue_depth_default: config.exports.queue_depth,
        parallel_max: RECOVERY_PARALLEL_MAX,
        confirm_patience: STORE_PATIENCE,
        serve_unconfirmed: config.store.unconfirmed == Unconfirmed::Serve,
        waiting_since: handed.as_ref().map(Handed::waiting_since),
        tenures: served.map(|handed| handed.tenures.iter().copied().collect()).unwrap_or_default(),
        deaths: Deaths::watch(&config.cache.dir),
        boot_id: boot_id.trim().to_owned(),
    };
    let (stop_store, stopped) = watch::channel(false);
    let store = connect_store(config, &catalog, &cache, &runtime, &stopped)?;
    let volumes = store.as_deref().map(StoreSide::volumes);
    let objects = volumes.as_ref().map(|volumes| volumes.store().clone());
    let block_cache = volumes.as_ref().and_then(VolumeStore::block_cache);
    let handle = catalog.handle();
    let router = Router::new(
        catalog,
        Arc::clone(&devices) as Arc<dyn Devices>,
        Arc::new(DaemonStorage::new(cache.clone(), store)),
        options,
    );
    let result = runtime.block_on(serve(
        config,
        Parts {
            router: Arc::clone(&router),
            devices,
            workers,
            cache,
            engine,
            store: objects,
            block_cache: block_cache.clone(),
            volumes,
            collections: Arc::<Collections>::default(),
            troubles,
        },
        handed,
        launch.clone(),
        signals,
    ));
    let _ = stop_store.send(true);
    if let Some(block_cache) = block_cache {
        runtime.block_on(close_block_cache(&block_cache));
    }
    // An unfinished pack is no loss: the next daemon makes the cut again.
    runtime.shutdown_timeout(STOP_PATIENCE);
    keeper_stop.store(true, Ordering::Release);
    drop(keeper.join());
    let Some(Order { program, upgrade }) = result? else { return Ok(()) };
    let start = handle.start().map_or(0, |start| start.last);
    let tenures = router.tenures().into_iter().collect();
    let handed = Handed::new(upgrade, start, tenures, &config.source, launch);
    Err(DaemonError::NotReplaced(handed.leave_to(&program)))
}
