//! The bounds of every setting, and the rules between settings.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::sections::{ApiSection, CacheSection, Config, StoreSection, WorkersSection};
use super::values::TimeSpan;
use crate::observe::{chain, logging};
use crate::units::{ByteSize, SEGMENT_BYTES};
use crate::worker::cpus::Usable;

/// Longest path of a Unix socket, bytes: the kernel's address has room for no more.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Checks every setting, and sets `worker_cpus` for a daemon that may use the CPUs `usable`.
pub(super) fn check(config: &mut Config, usable: &Usable) -> Result<(), Refusal> {
    within("workers", "count", config.workers.count, 1..=1024)?;
    within("buffers", "slots_per_worker", config.buffers.slots_per_worker, 4..=65_536)?;
    within("exports", "max", config.exports.max, 1..=1_000_000)?;
    within("exports", "queue_depth", config.exports.queue_depth, 1..=4096)?;
    config.worker_cpus = worker_cpus(&config.workers, &config.cache, usable)?;
    check_cache(&config.cache, config.worker_cpus.len())?;
    check_api(&config.api)?;
    let second = TimeSpan(Duration::from_secs(1));
    within("control", "command_timeout", config.control.command_timeout, second..=minutes(10))?;
    check_store(&config.store)?;
    logging::check(&config.log.filter).or_else(|error| refuse("log", "filter", chain(&error)))?;
    if config.cache.log_max_per_export.is_some() && config.store.url.is_none() {
        let message = "data leaves the log for a store only, and an export at the bound would stop for good: set [store] url as \
                       well, or remove the key";
        return refuse("cache", "log_max_per_export", message.into());
    }
    Ok(())
}

/// The CPU of each worker: where there are more workers than CPUs, the CPUs are used again in the same order. A number that is set
/// takes precedence over the quota of CPU time. A number that is not set fits the cache, so that more CPUs never keep a host from starting.
fn worker_cpus(
    workers: &WorkersSection,
    cache: &CacheSection,
    usable: &Usable,
) -> Result<Vec<usize>, Refusal> {
    let cpus: Vec<usize> = match &workers.cpus {
        Some(list) => list.cpus().to_vec(),
        None => usable.cpus.clone(),
    };
    if let Some(cpu) = cpus.iter().find(|cpu| !usable.cpus.contains(cpu)) {
        return refuse(
            "workers",
            "cpus",
            format!("CPU {cpu} is not one of those the daemon may use ({:?})", usable.cpus),
        );
    }
    let whole = |count| usize::try_from(count).unwrap_or(usize::MAX);
    let room = whole((cache.size.0 / SEGMENT_BYTES).saturating_sub(3) / 2).max(1);
    let count = workers.count.map_or_else(|| usable.workers(cpus.len()).min(room), whole);
    Ok(cpus.into_iter().cycle().take(count).collect())
}

fn check_cache(cache: &CacheSection, workers: usize) -> Result<(), Refusal> {
    let size_min = (2 * workers as u64 + 3) * SEGMENT_BYTES;
    if cache.size.0 < size_min {
        let (size, min) = (cache.size, ByteSize(size_min));
        return refuse(
            "cache",
            "size",
            format!("{size} is too small: {workers} workers need at least {min}"),
        );
    }
    let sizes = |least: u64, most: u64| ByteSize(least)..=ByteSize(most);
    let unless_zero = |size: ByteSize| (size.0 != 0).then_some(size);
    // Each part that is locked may need two areas of memory, of which the kernel allows a process 65,530.
    within("cache", "mapped_max", unless_zero(cache.mapped_max), sizes(1 << 20, 16 << 30))?;
    within("cache", "index_max", cache.index_max, sizes(16 << 20, 1 << 50))?;
    within("cache", "index_max_per_export", cache.index_max_per_export, sizes(1 << 20, 1 << 50))?;
    within("cache", "log_max_per_export", cache.log_max_per_export, sizes(16 << 20, 1 << 50))?;
    within("cache", "clean_size", unless_zero(cache.clean_size), sizes(64 << 20, 1 << 50))?;
    if cache.dir.as_os_str().is_empty() {
        return refuse("cache", "dir", "it is empty: give a directory".into());
    }
    Ok(())
}

fn check_api(api: &ApiSection) -> Result<(), Refusal> {
    let socket_bytes = api.socket.as_os_str().len();
    if socket_bytes == 0 || socket_bytes > SOCKET_PATH_BYTES_MAX {
        let message = format!("the path has {socket_bytes} bytes: use 1 to {SOCKET_PATH_BYTES_MAX}");
        return refuse("api", "socket", message);
    }
    if let Some(address) = api.listen.0
        && !address.ip().is_loopback()
        && api.token_file.is_none()
    {
        let message =
            format!("{address} can be reached from other hosts: set token_file as well, or use 127.0.0.1");
        return refuse("api", "listen", message);
    }
    within("api", "connections_max", api.connections_max, 8..=65_536)?;
    let is_name = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
    if let Some(name) = api.hosts.iter().find(|name| name.is_empty() || !is_name(name)) {
        return refuse(
            "api",
            "hosts",
            format!("{name:?} is not a host's name: use letters, digits, '.' and '-', without a port"),
        );
    }
    Ok(())
}

fn check_store(store: &StoreSection) -> Result<(), Refusal> {
    let shortest = TimeSpan(Duration::from_millis(10));
    within("store", "flush_interval", store.flush_interval, shortest..=minutes(60))?;
    within("store", "flush_age", store.flush_age, shortest..=minutes(24 * 60))?;
    let interval = (!store.gc_interval.0.is_zero()).then_some(store.gc_interval);
    within("store", "gc_interval", interval, minutes(10)..=minutes(30 * 24 * 60))?;
    within("store", "upload_bps", store.upload_bps, ByteSize(16 << 10)..=ByteSize(1 << 50))?;
    if store.upload_hours.is_some() && store.upload_bps.is_none() {
        return refuse(
            "store",
            "upload_hours",
            "there is no limit for these hours: set upload_bps as well".into(),
        );
    }
    within("store", "pack_memory", store.pack_memory, ByteSize(256 << 20)..=ByteSize(1 << 40))
}

/// A setting that is not allowed, and the sentence about the allowed values.
pub(super) struct Refusal {
    pub section: &'static str,
    pub key: &'static str,
    pub message: String,
}

fn refuse<T>(section: &'static str, key: &'static str, message: String) -> Result<T, Refusal> {
    Err(Refusal { section, key, message })
}

fn minutes(minutes: u64) -> TimeSpan {
    TimeSpan(Duration::from_mins(minutes))
}

/// Refuses a value out of `bounds`; a key that is not set has no value.
fn within<T: Display + PartialOrd>(
    section: &'static str,
    key: &'static str,
    value: impl Into<Option<T>>,
    bounds: RangeInclusive<T>,
) -> Result<(), Refusal> {
    match value.into() {
        Some(value) if !bounds.contains(&value) => {
            let message = format!("{value} is out of bounds: use {} to {}", bounds.start(), bounds.end());
            refuse(section, key, message)
        }
        _ => Ok(()),
    }
}
