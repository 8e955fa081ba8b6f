//! The cache and the workers, opened from the configuration.
//!
//! Owns process limits, who may open the daemon's files, and how the cache is written to. Does not own recovery (`cache`).

use std::collections::HashSet;
use std::fs;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};

use super::error::DaemonError;
use crate::cache::{self, Budgets, Cache, CacheError, Directory, HANDS_MAX, Known, MonotonicClock};
use crate::config::{CacheSection, Config};
use crate::router::devices::DeviceId;
use crate::router::{Catalog, CatalogError};
use crate::ublk::{self, Features};
use crate::units::{ExportId, SEGMENT_BYTES};
use crate::worker::WorkerOptions;
use crate::worker::capabilities::{CAP_IPC_LOCK, Capabilities};
use crate::worker::engine::{Engine, check_direct};

/// The part of the size of the cache that indexes may have by default. An extent takes about 40 bytes, and 4 KiB of the log or more
/// when written: so a cache full of the smallest writes needs less than half.
const INDEX_SHARE: u64 = 32;
const INDEX_BYTES_MIN: u64 = 64 << 20;
/// Memory for checksums of the log, 1 MiB for each GiB that is read again and again. Others are read from the disk, beside the data.
const CHECKSUMS_BYTES_MAX: u64 = 64 << 20;

/// How long the locks may be those of the program before in this process: the kernel tears its devices down one by one, and its writes keep
/// the locks.
const LOCKS_PATIENCE: Duration = Duration::from_mins(5);
const LOCKS_PAUSE: Duration = Duration::from_millis(3);

/// Until when the locks of the cache may be those of the program before; `None` at a start that follows no other program.
#[derive(Debug)]
pub(super) struct Locks(Option<Instant>);

impl Locks {
    /// The locks of a start, which `follows` another program in this process or not.
    pub fn new(follows: bool) -> Self {
        Self(follows.then(|| Instant::now() + LOCKS_PATIENCE))
    }

    /// The result of `open`, tried again while the program before may still have what is opened `in_use`.
    fn once_free<T, E>(
        &self,
        in_use: impl Fn(&E) -> bool,
        mut open: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            let may_be_freed = self.0.is_some_and(|deadline| Instant::now() < deadline);
            match open() {
                Err(error) if may_be_freed && in_use(&error) => std::thread::sleep(LOCKS_PAUSE),
                done => return done,
            }
        }
    }
}

/// Leaves every file that this process makes from now on to its user only: files have the data of all exports, and whoever can open
/// the catalog can lock it.
pub(super) fn make_files_private() {
    umask(Mode::S_IRWXG | Mode::S_IRWXO);
}

/// Refuses a start without the cache's directory.
pub(super) fn check_directory(config: &Config) -> Result<(), DaemonError> {
    let directory: &Path = &config.cache.dir;
    if !directory.is_dir() {
        return Err(CacheError::DirectoryMissing { directory: directory.display().to_string() }.into());
    }
    Ok(())
}

/// How workers append to the log, which has to work in the cache's directory.
pub(super) fn engine(config: &Config) -> Result<Engine, DaemonError> {
    let (engine, directory) = (config.cache.engine, &config.cache.dir);
    if engine == Engine::Direct {
        check_direct(directory)
            .map_err(|source| DaemonError::NoDirect { directory: directory.display().to_string(), source })?;
    }
    tracing::info!(engine = %engine.name(), "the cache has its engine");
    Ok(engine)
}

/// Opens the catalog, which one process at a time can have open.
pub(super) fn open_catalog(config: &Config, locks: &Locks) -> Result<Catalog, DaemonError> {
    let path = config.cache.dir.join("catalog.redb");
    let in_use = |error: &CatalogError| matches!(error, CatalogError::InUse { .. });
    let catalog = locks.once_free(in_use, || Catalog::open(&path))?;
    let exports = catalog.stored_exports();
    if config.store.url.is_none() && exports > 0 {
        // Data evicted from the cache would read as zeroes.
        return Err(DaemonError::NoStore { exports });
    }
    Ok(catalog)
}

/// Marks the devices that a daemon before has left, so that the kernel is soon done with that daemon. Call with the catalog open.
pub(super) fn mark_abandoned(config: &Config, features: Features) -> HashSet<DeviceId> {
    let tag = Cache::tag_on(&Directory::new(&config.cache.dir));
    let mark = |tag| ublk::mark_abandoned(tag, features, config.control.command_timeout.0);
    tag.map(mark).unwrap_or_default()
}

/// Opens the cache, and recovers the log.
pub(super) fn open_cache(
    config: &Config,
    catalog: &Catalog,
    engine: Engine,
    locks: &Locks,
) -> Result<Cache, DaemonError> {
    let options = cache_options(config, engine);
    let disk = Arc::new(Directory::new(&config.cache.dir).direct(engine == Engine::Direct));
    let in_use = |error: &CacheError| matches!(error, CacheError::InUse { .. });
    locks.once_free(in_use, || Cache::check_free(&*disk))?;
    let (cache, recovered) = Cache::open(
        disk,
        Arc::new(MonotonicClock::default()),
        options,
        Known {
            exports: catalog.known(),
            next_export: Some(ExportId(catalog.next_export_id())),
            catalog: Arc::new(catalog.handle()),
        },
    )?;
    tracing::info!(
        segments = recovered.segments,
        covered = recovered.covered,
        records = recovered.records,
        torn_tails = recovered.torn_tails,
        seconds = recovered.seconds,
        "the log is recovered"
    );
    Ok(cache)
}

/// The options of the cache, which is written to by `engine`.
pub(super) fn cache_options(config: &Config, engine: Engine) -> cache::Options {
    cache::Options {
        size_bytes: config.cache.size.0,
        segment_bytes: SEGMENT_BYTES,
        shards: config.worker_cpus.len(),
        on_full: config.cache.on_full,
        checksums_bytes_max: CHECKSUMS_BYTES_MAX,
        // Nothing is mapped that is written past the page cache, and in bounce mode no READ looks there.
        mapped_bytes_max: if engine == Engine::Direct || config.bounce_mode {
            0
        } else {
            bytes_within_limit(config.cache.mapped_max.0)
        },
        budgets: budgets(&config.cache),
        hands: hands(),
    }
}

/// The number of threads that read the log at a start: the CPUs which this process may use, within the quota of CPU time.
fn hands() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(HANDS_MAX)
}

/// The bounds on the parts of the cache that exports share.
fn budgets(cache: &CacheSection) -> Budgets {
    let by_size = (cache.size.0 / INDEX_SHARE).max(INDEX_BYTES_MIN);
    Budgets {
        index_bytes_max: cache.index_max.map_or(by_size, |bytes| bytes.0),
        index_bytes_max_per_export: cache.index_max_per_export.map_or(u64::MAX, |bytes| bytes.0),
        log_bytes_max_per_export: cache.log_max_per_export.map_or(u64::MAX, |bytes| bytes.0),
    }
}

/// The options of the workers.
pub(super) fn worker_options(config: &Config, engine: Engine) -> WorkerOptions {
    // Each queue needs a descriptor in the ring's table, and the kernel allows no table larger than the limit on descriptors.
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    WorkerOptions {
        cpus: config.worker_cpus.clone(),
        slots_per_worker: config.buffers.slots_per_worker,
        engine,
        queues_max: u32::try_from(config.exports.max.max(64))
            .unwrap_or(u32::MAX)
            // One descriptor is for the lock of the cache.
            .min(u32::try_from(descriptors.saturating_sub(1)).unwrap_or(u32::MAX)),
    }
}

/// Raises the limit on locked memory to the hard limit. Returns `wanted` bytes, or fewer, where the process may lock fewer.
fn bytes_within_limit(wanted: u64) -> u64 {
    // No limit holds for a process with the capability.
    if fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| Capabilities::in_status(&status).has(CAP_IPC_LOCK))
    {
        return wanted;
    }
    let hard = getrlimit(Resource::RLIMIT_MEMLOCK)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard).map(|()| hard));
    let bytes = hard.unwrap_or(0).min(wanted);
    if bytes < wanted {
        tracing::warn!(
            bytes,
            mapped_max = wanted,
            "the process may lock less memory than cache.mapped_max, so more READs take a buffer: raise the limit (ulimit -l, LimitMEMLOCK), \
             or lower cache.mapped_max"
        );
    }
    bytes
}

/// Raises the limit on descriptors, of which each device needs some, to the hard limit.
pub(super) fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(error = %error, "the limit on open files could not be raised");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn other_users_may_open_nothing_that_the_daemon_makes() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("cache");
        // The mask is the process's unless a thread has its own.
        let of_a_daemon = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_FS).unwrap();
            umask(Mode::S_IWGRP | Mode::S_IWOTH);
            fs::create_dir(&dir).unwrap();
            let mut config = Config::default();
            config.cache.dir.clone_from(&dir);
            make_files_private();
            check_directory(&config).unwrap();
            let _catalog = open_catalog(&config, &Locks::new(false)).unwrap();
            Cache::check_free(&Directory::new(&dir)).unwrap();
        };
        std::thread::scope(|scope| scope.spawn(of_a_daemon).join()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        let made = ["LOCK", "catalog.redb", "segments"].map(|name| mode(&dir.join(name)));
        assert_eq!(made, [0o600, 0o600, 0o700]);
    }

    #[test]
    fn no_more_is_locked_than_asked_for() {
        assert_eq!(bytes_within_limit(4096), 4096);
    }

    #[test]
    fn a_lock_of_the_program_before_is_waited_for_and_no_other_lock_or_error() {
        let tries_until = |locks: &Locks, error: &str, free_at: u32| {
            let mut tries = 0;
            let done = locks.once_free(
                |error| *error == "in use",
                || {
                    tries += 1;
                    if tries < free_at { Err(error) } else { Ok(()) }
                },
            );
            (tries, done.is_ok())
        };
        assert_eq!(tries_until(&Locks::new(true), "in use", 5), (5, true));
        assert_eq!(tries_until(&Locks::new(true), "damaged", 5), (1, false));
        assert_eq!(tries_until(&Locks::new(false), "in use", 5), (1, false));
        assert_eq!(tries_until(&Locks(Some(Instant::now())), "in use", 5), (1, false));
    }
}
