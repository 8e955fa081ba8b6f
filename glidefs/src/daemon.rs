//! The composition root: puts the parts together, runs them until told to stop, and proves to systemd that they live.
//!
//! Owns the order of start and stop, process limits and signals. Does not own what any part does.
//!
//! Start: features → catalog → cache (recovers the log) → keeper → workers → devices → store → router → API → devices
//! recovered → ready. Stop: the API refuses, operations under way end, devices stay quiesced for the next daemon (or are removed, where
//! asked for), the process ends; requests in flight are issued again by the kernel to the next daemon.

mod collecting;
mod figures;
mod storage;
#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use self::collecting::{Collections, collect};
use self::figures::Parts;
use self::storage::{DaemonStorage, StoreSide};
use crate::api::{self, Access, Listeners, Readiness, ServeError, TokenError, TokenFile};
use crate::cache::{self, Cache, CacheError, Directory, Known, MonotonicClock, Triggers};
use crate::config::{Config, OnFull, OnStop, Unconfirmed};
use crate::router::{Catalog, CatalogError, Devices, Router, RouterOptions};
use crate::store::volume::VolumesOptions;
use crate::store::{
    self, Backend, CleanCache, CleanError, CleanOptions, HostName, StoreError, StoreOptions, StoreUrl,
    process_variables,
};
use crate::ublk::{Features, UblkDevices};
use crate::units::REQUEST_BYTES_MAX;
use crate::worker::affinity::Cpu;
use crate::worker::engine::probe::{self, Probe, ProbeError};
use crate::worker::engine::{Appends, Engine};
use crate::worker::ring::REGISTERED_BYTES_MAX;
use crate::worker::{self, Worker, WorkerError, WorkerOptions};

/// Size of a segment of the cache, bytes.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Threads of the control plane.
const CONTROL_THREADS: usize = 2;
/// Devices that are recovered at the same time.
const RECOVERY_PARALLEL_MAX: usize = 8;
/// How long the end waits for work on the control threads.
const STOP_PATIENCE: Duration = Duration::from_secs(5);
/// Memory for packs that were uploaded last: a level of a volume that writes packs of the usual length.
const RECENT_BYTES_MAX: u64 = 288 << 20;
/// How long the start waits for the store, and each export for its answer whose it is.
const STORE_PATIENCE: Duration = Duration::from_secs(10);
/// Pause before exports that could not be brought to the store are tried again.
const BRING_PAUSE: Duration = Duration::from_mins(5);
/// How long a worker may take to answer a ping before the watchdog is no longer fed.
const PING_PATIENCE: Duration = Duration::from_secs(10);

/// Why the daemon could not start or had to end.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The kernel cannot serve devices.
    #[error("this machine cannot serve block devices")]
    Devices(#[from] crate::router::DeviceError),
    /// The catalog could not be opened.
    #[error("the catalog of exports could not be opened")]
    Catalog(#[from] CatalogError),
    /// The cache could not be opened.
    #[error("the cache could not be opened")]
    Cache(#[from] CacheError),
    /// There is no way to write to the cache.
    #[error("the cache has no engine")]
    Engine(#[from] ProbeError),
    /// The workers could not be started.
    #[error("the workers could not be started")]
    Workers(#[from] WorkerError),
    /// The store cannot be used.
    #[error("the store cannot be used")]
    Store(#[from] StoreError),
    /// Exports have data in a store that is not configured.
    #[error(
        "{exports} exports have data in a store, and [store] url is not set: set it to where their data is (nothing was changed)"
    )]
    NoStore {
        /// How many.
        exports: usize,
    },
    /// There is no place for what is read back from the store.
    #[error("the clean cache could not be opened: change clean_memory or clean_size in [cache]")]
    Clean(#[from] CleanError),
    /// The API could not be served.
    #[error("the API could not be served")]
    Serve(#[from] ServeError),
    /// The group of the API's socket does not exist.
    #[error("there is no group {name:?}: make it (`groupadd --system {name}`) or change `[api] group`")]
    Group {
        /// Its name.
        name: String,
    },
    /// The token of the API could not be read.
    #[error("the token of the API could not be read")]
    Token(#[from] TokenError),
    /// A system call failed.
    #[error("{what} failed")]
    System {
        /// What was tried.
        what: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Runs the daemon until SIGTERM or SIGINT.
pub fn run(config: &Config) -> Result<(), DaemonError> {
    let system = |what| move |source| DaemonError::System { what, source };
    raise_descriptor_limit();
    // Threads inherit it from the one that makes them, so that this covers all of them: each may be what the flushing of a
    // device waits for.
    if let Err(error) = worker::affinity::set_io_flusher() {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "running without PR_SET_IO_FLUSHER: needs CAP_SYS_RESOURCE"
        );
    }
    let features = Features::probe()?;
    let probe = choose_engine(config)?;
    let (catalog, cache) = open_cache(config, probe.chosen)?;
    let keeper_stop = Arc::new(AtomicBool::new(false));
    let keeper = std::thread::Builder::new()
        .name("keeper".into())
        .spawn({
            let (mut keeper, stop) = (cache.keeper(), Arc::clone(&keeper_stop));
            move || keeper.run(&stop)
        })
        .map_err(system("spawning the keeper thread"))?;
    let workers = worker::start(&cache, &worker_options(config, probe.chosen))?;
    let devices = Arc::new(UblkDevices::new(
        workers.clone(),
        features,
        config.bounce_mode,
        cache.tag(),
        config.control.command_timeout.0,
    ));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(CONTROL_THREADS)
        .thread_name("control")
        .enable_all()
        .build()
        .map_err(system("starting the control threads"))?;
    let options = RouterOptions {
        exports_max: config.exports.max,
        queues_default: config.exports.queues,
        queue_depth_default: config.exports.queue_depth,
        on_unreachable_default: config.exports.on_unreachable.0,
        parallel_max: RECOVERY_PARALLEL_MAX,
        confirm_patience: STORE_PATIENCE,
        serve_unconfirmed: config.store.unconfirmed == Unconfirmed::Serve,
        boot_id: crate::router::kernel_boot_id().map_err(system("reading the kernel's boot id"))?,
    };
    let (stop_store, stopped) = watch::channel(false);
    let store = connect_store(config, &catalog, &cache, &runtime, &stopped)?;
    let objects = store.as_ref().map(StoreSide::store);
    let clean = store.as_ref().and_then(StoreSide::clean);
    let router = Router::new(
        catalog,
        Arc::clone(&devices) as Arc<dyn Devices>,
        Arc::new(DaemonStorage::new(cache.clone(), store.map(Arc::new))),
        options,
    );
    let result = runtime.block_on(serve(
        config,
        Parts {
            router,
            devices,
            workers,
            cache,
            probe,
            store: objects,
            clean: clean.clone(),
            collections: Arc::<Collections>::default(),
        },
    ));
    let _ = stop_store.send(true);
    if let Some(clean) = clean {
        // What is not written down is fetched again.
        let _ = runtime.block_on(async { tokio::time::timeout(STOP_PATIENCE, clean.close()).await });
    }
    // A pack that is being made need not be finished: its cut is made again.
    runtime.shutdown_timeout(STOP_PATIENCE);
    keeper_stop.store(true, Ordering::Release);
    drop(keeper.join());
    result
}

/// Connects to the store, if there is to be one, and has what is not in it flushed. A store that does not answer is tried
/// again when it is needed; a place that is no store keeps the daemon from starting.
fn connect_store(
    config: &Config,
    catalog: &Catalog,
    cache: &Cache,
    runtime: &tokio::runtime::Runtime,
    stopped: &watch::Receiver<bool>,
) -> Result<Option<StoreSide>, DaemonError> {
    let Some(url) = &config.store.url else { return Ok(None) };
    let backend = connect(url, catalog.store_id().is_some())?;
    let options =
        StoreOptions { shutdown: Some(stopped.clone()), checked_first: true, ..StoreOptions::default() };
    let store = store::Store::over(backend, options);
    let clean = open_clean(config, runtime)?;
    let options = VolumesOptions {
        clean: Some(clean),
        notes: catalog.journal(),
        recent_bytes_max: Some(RECENT_BYTES_MAX),
        host: host_name(),
        ..VolumesOptions::new(cache.writer())
    };
    let volumes = store::volume::Volumes::new(store, options);
    let link = cache.link(runtime.handle().clone());
    let triggers = Triggers {
        size_bytes: config.store.flush_size.0,
        age: config.store.flush_age.0,
        quiet: config.store.flush_interval.0,
    };
    runtime.spawn(cache.flusher(Arc::clone(&link), triggers).run(stopped.clone()));
    let side = StoreSide::new(volumes, link, catalog);
    match runtime.block_on(async { tokio::time::timeout(STORE_PATIENCE, side.check()).await }) {
        Ok(Ok(())) => {}
        Ok(Err(error)) if side.is_foreign(&error) => return Err(error.into()),
        Ok(Err(error)) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the store cannot be reached; it is asked again");
        }
        Err(_) => {
            tracing::warn!(url = %url, "the store does not answer; it is asked again");
        }
    }
    Ok(Some(side))
}

/// The place of the store. One that is known to hold a store counts as away while it cannot be set up: its file system may not be
/// mounted yet, or the files with its credentials may be broken. A place that nothing is in yet has to be right.
fn connect(url: &StoreUrl, is_known: bool) -> Result<Backend, StoreError> {
    let variables = process_variables();
    match Backend::connect(url, &variables, !is_known) {
        Err(error @ StoreError::Setup { .. }) if is_known => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "the store cannot be set up; it is tried again");
            Backend::later(url, &variables)
        }
        connected => connected,
    }
}

/// The name that this host has for its kernel.
fn host_name() -> HostName {
    HostName::nearest(&std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default())
}

/// Opens the clean cache. A disk that gives it no room leaves it its memory.
fn open_clean(config: &Config, runtime: &tokio::runtime::Runtime) -> Result<CleanCache, CleanError> {
    let options = CleanOptions {
        directory: (config.cache.clean_size.0 > 0).then(|| config.cache.dir.clone()),
        memory_bytes_max: usize::try_from(config.cache.clean_memory.0).unwrap_or(usize::MAX),
        disk_bytes_max: config.cache.clean_size.0,
    };
    match runtime.block_on(CleanCache::open(options.clone())) {
        Err(error @ CleanError::Directory { .. }) => {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "data that is read back from the store is kept in memory only");
            runtime.block_on(CleanCache::open(CleanOptions { directory: None, ..options }))
        }
        opened => opened,
    }
}

/// Measures how the cache's directory is best written to.
fn choose_engine(config: &Config) -> Result<Probe, DaemonError> {
    let directory: &PathBuf = &config.cache.dir;
    if !directory.is_dir() {
        return Err(CacheError::DirectoryMissing { directory: directory.display().to_string() }.into());
    }
    let mut probe = probe::run(directory, config.cache.engine.wanted())?;
    let arena_bytes = config.buffers.slots_per_worker.saturating_mul(REQUEST_BYTES_MAX);
    if arena_bytes > REGISTERED_BYTES_MAX && probe.chosen.appends == Appends::RingFixed {
        // A record must lie in one registered buffer, and the kernel takes no larger ones.
        probe.chosen.appends = probe.chosen.appends.without_registered_buffers();
        tracing::warn!(engine = %probe.chosen, "buffers.slots_per_worker is too large for registered buffers");
    }
    if let Some(Err(error)) = probe.of(Engine::default()) {
        tracing::warn!(error = %error, "appending to a file in cache.dir failed when it was measured");
    }
    tracing::info!(engine = %probe.chosen, "the cache has its engine");
    Ok(probe)
}

fn open_cache(config: &Config, engine: Engine) -> Result<(Catalog, Cache), DaemonError> {
    let directory: &PathBuf = &config.cache.dir;
    let catalog = Catalog::open(&directory.join("catalog.redb"))?;
    let exports = catalog.resumes().len();
    if config.store.url.is_none() && exports > 0 {
        // What has left the cache for the store would read as zeroes.
        return Err(DaemonError::NoStore { exports });
    }
    let options = cache::Options {
        size_bytes: config.cache.size.0,
        segment_bytes: SEGMENT_BYTES,
        shards: config.worker_cpus.len(),
        on_full: match config.cache.on_full {
            OnFull::Wait => cache::OnFull::Wait,
            OnFull::Enospc => cache::OnFull::Enospc,
        },
    };
    let disk = Arc::new(Directory::new(directory).direct(engine.direct));
    let (cache, recovered) = Cache::open(
        disk,
        Arc::new(MonotonicClock::default()),
        options,
        Known { exports: catalog.known(), book: Arc::new(catalog.handle()) },
    )?;
    tracing::info!(
        segments = recovered.segments,
        records = recovered.records,
        torn_tails = recovered.torn_tails,
        seconds = recovered.seconds,
        "the log is recovered"
    );
    Ok((catalog, cache))
}

fn worker_options(config: &Config, engine: Engine) -> WorkerOptions {
    // A queue needs its descriptor, and the kernel allows no table larger than the limit on descriptors.
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    let queues = config.exports.max.saturating_mul(usize::from(config.exports.queues.max(1)));
    WorkerOptions {
        cpus: config.worker_cpus.iter().copied().map(Cpu).collect(),
        slots_per_worker: config.buffers.slots_per_worker,
        appends: engine.appends,
        queues_max: u32::try_from(queues.max(64))
            .unwrap_or(u32::MAX)
            // One more is for the lock of the cache.
            .min(u32::try_from(descriptors.saturating_sub(1)).unwrap_or(u32::MAX)),
    }
}

/// Serves the API, recovers the devices, and waits for a signal to stop.
async fn serve(config: &Config, parts: Parts) -> Result<(), DaemonError> {
    let system = |what| move |source| DaemonError::System { what, source };
    let mut terminate = signal(SignalKind::terminate()).map_err(system("waiting for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("waiting for SIGINT"))?;
    let access = access(config)?;
    let listeners = Listeners::bind(config.api.listen.0, &config.api.socket, access.group).await?;
    let ready = Readiness::default();
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(api::serve(listeners, parts.state(config, ready.clone()), access, stopped));
    let watchdog = tokio::spawn(feed_watchdog(parts.workers.clone()));
    let collecting = parts.store.clone().filter(|_| !config.store.gc_interval.0.is_zero()).map(|store| {
        tokio::spawn(collect(
            Arc::clone(&parts.router),
            store.shared_stats(),
            config.store.gc_interval.0,
            Arc::clone(&parts.collections),
        ))
    });

    let (begin, has_store) = (Arc::clone(&parts.router), parts.store.is_some());
    let recovering = tokio::spawn(async move {
        let recovery = begin.start().await;
        tracing::info!(
            recovered = recovery.recovered,
            attached = recovery.attached,
            detached = recovery.detached,
            failed = recovery.failed,
            waiting = recovery.waiting,
            seconds = recovery.elapsed.as_secs_f64(),
            "every export has what it should have, or waits for the store"
        );
        ready.set();
        notify(&[NotifyState::Ready]);
        if has_store {
            reconcile_with_store(begin).await;
        }
    });
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
    notify(&[NotifyState::Stopping]);
    recovering.abort();
    parts.router.stop().await;
    if config.control.on_stop == OnStop::Remove {
        let left = parts.router.remove_devices().await;
        if left > 0 {
            tracing::warn!(
                devices = left,
                "some devices could not be removed; they wait for the next daemon"
            );
        }
        if has_store {
            drain(&parts.router, config.store.drain_timeout.0).await;
        }
    }
    watchdog.abort();
    if let Some(collecting) = collecting {
        collecting.abort();
    }
    // The receiver may be gone with the API; then there is nothing to stop.
    let _ = stop.send(true);
    match serving.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(error = %error, "the API ended with an error"),
        Err(error) => tracing::warn!(error = %error, "the API's task failed"),
    }
    Ok(())
}

/// Who may use the API.
fn access(config: &Config) -> Result<Access, DaemonError> {
    let gid = |name: &String| match nix::unistd::Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(DaemonError::Group { name: name.clone() }),
        Err(error) => {
            Err(DaemonError::System { what: "reading the groups of this host", source: error.into() })
        }
    };
    Ok(Access {
        token: config.api.token_file.as_deref().map(TokenFile::open).transpose()?,
        hosts: config.api.hosts.clone(),
        group: config.api.group.as_ref().map(gid).transpose()?,
        connections_max: config.api.connections_max,
    })
}

/// Has everything brought to the store, as far as there is time: the host may be given up.
async fn drain(router: &Arc<Router>, patience: Duration) {
    match tokio::time::timeout(patience, router.drain()).await {
        Ok(drain) if drain.written_back == 0 && drain.failed.is_empty() => {}
        Ok(drain) => {
            for error in &drain.failed {
                tracing::warn!(
                    error = error as &dyn std::error::Error,
                    "an export is not in the store as a whole"
                );
            }
            tracing::info!(
                exports = drain.written_back,
                kept = drain.kept,
                "everything of these exports is in the store, and other hosts may open those that are not kept"
            );
        }
        Err(_) => tracing::warn!(
            seconds = patience.as_secs(),
            "store.drain_timeout is over, and not everything is in the store; what is missing stays in cache.dir"
        ),
    }
}

/// Makes sure that exports are still this host's, as long as the daemon runs, and brings those to the store that were made before
/// there was one. The store may be away, so all of it is tried again.
async fn reconcile_with_store(router: Arc<Router>) {
    let bring = async {
        while router.bring_to_store().await > 0 {
            tokio::time::sleep(BRING_PAUSE).await;
        }
    };
    let confirm = async {
        loop {
            router.confirm().await;
            router.has_to_confirm().await;
        }
    };
    let ((), ()) = tokio::join!(confirm, bring);
}

/// Tells systemd that the daemon lives, as long as every worker's loop turns.
async fn feed_watchdog(workers: Vec<Worker>) {
    let Some(interval) = sd_notify::watchdog_enabled() else { return };
    loop {
        let all = futures_util::future::join_all(workers.iter().map(Worker::ping));
        match tokio::time::timeout(PING_PATIENCE, all).await {
            Ok(pongs) if pongs.iter().all(Result::is_ok) => notify(&[NotifyState::Watchdog]),
            _ => tracing::error!("a worker does not answer; the watchdog is not fed"),
        }
        tokio::time::sleep(interval / 3).await;
    }
}

/// Tells systemd; without systemd there is nobody to tell.
fn notify(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(error = %error, "systemd could not be told");
    }
}

/// Each device needs descriptors: takes as many as the hard limit allows.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(error = %error, "the limit on open files could not be raised");
    }
}
