//! The bounds of every setting, and the rules between settings.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::sections::{ApiSection, CacheSection, Config, StoreSection, WorkersSection};
use super::values::{ByteSize, TimeSpan};
use crate::units::SEGMENT_BYTES;
use crate::worker::cpus::Usable;

/// Longest path of a Unix socket, bytes: the kernel's address has room for no more.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Checks every setting, and sets `worker_cpus` for a daemon that may use the CPUs `usable`.
pub(super) fn check(config: &mut Config, usable: &Usable) -> Result<(), Refusal> {
    within("workers", "count", config.workers.count, 1..=1024)?;
    within("buffers", "slots_per_worker", Some(config.buffers.slots_per_worker as u64), 4..=65_536)?;
    within("exports", "max", Some(config.exports.max as u64), 1..=1_000_000)?;
    within("exports", "queue_depth", Some(config.exports.queue_depth.into()), 1..=4096)?;
    config.worker_cpus = worker_cpus(&config.workers, usable)?;
    check_cache(&config.cache, config.worker_cpus.len())?;
    check_api(&config.api)?;
    let second = TimeSpan(Duration::from_secs(1));
    span_within("control", "command_timeout", config.control.command_timeout, second..=minutes(10))?;
    check_store(&config.store)?;
    if config.cache.log_max_per_export.is_some() && config.store.url.is_none() {
        let message = "data leaves the log for a store only, and an export at the bound would stop for good: set [store] url as \
                       well, or remove the key";
        return refuse("cache", "log_max_per_export", message.into());
    }
    Ok(())
}

/// The CPU of each worker: where there are more workers than CPUs, the CPUs are used again in the same order. A number that is set
/// takes precedence over the quota of CPU time.
fn worker_cpus(workers: &WorkersSection, usable: &Usable) -> Result<Vec<usize>, Refusal> {
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
    let count = workers.count.map_or_else(|| usable.workers(cpus.len()), whole);
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
    // Each part that is locked may need two areas of memory, of which the kernel allows a process 65,530.
    let mapped = ByteSize(1 << 20)..=ByteSize(16 << 30);
    if cache.mapped_max.0 != 0 && !mapped.contains(&cache.mapped_max) {
        return refuse("cache", "mapped_max", out_of_bounds(cache.mapped_max, &mapped));
    }
    for (key, value, least) in [
        ("index_max", cache.index_max, ByteSize(16 << 20)),
        ("index_max_per_export", cache.index_max_per_export, ByteSize(1 << 20)),
        ("log_max_per_export", cache.log_max_per_export, ByteSize(16 << 20)),
    ] {
        let allowed = least..=ByteSize(1 << 50);
        if let Some(value) = value.filter(|value| !allowed.contains(value)) {
            return refuse("cache", key, out_of_bounds(value, &allowed));
        }
    }
    let disk = ByteSize(64 << 20)..=ByteSize(1 << 50);
    if cache.clean_size.0 != 0 && !disk.contains(&cache.clean_size) {
        return refuse("cache", "clean_size", out_of_bounds(cache.clean_size, &disk));
    }
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
    within("api", "connections_max", Some(api.connections_max as u64), 8..=65_536)?;
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
    span_within("store", "flush_interval", store.flush_interval, shortest..=minutes(60))?;
    span_within("store", "flush_age", store.flush_age, shortest..=minutes(24 * 60))?;
    if !store.gc_interval.0.is_zero() {
        span_within("store", "gc_interval", store.gc_interval, minutes(10)..=minutes(30 * 24 * 60))?;
    }
    let packs = ByteSize(256 << 20)..=ByteSize(1 << 40);
    if !packs.contains(&store.pack_memory) {
        return refuse("store", "pack_memory", out_of_bounds(store.pack_memory, &packs));
    }
    Ok(())
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

fn out_of_bounds<T: std::fmt::Display>(value: T, bounds: &RangeInclusive<T>) -> String {
    format!("{value} is out of bounds: use {} to {}", bounds.start(), bounds.end())
}

fn minutes(minutes: u64) -> TimeSpan {
    TimeSpan(Duration::from_mins(minutes))
}

fn span_within(
    section: &'static str,
    key: &'static str,
    value: TimeSpan,
    bounds: RangeInclusive<TimeSpan>,
) -> Result<(), Refusal> {
    if bounds.contains(&value) { Ok(()) } else { refuse(section, key, out_of_bounds(value, &bounds)) }
}

fn within(
    section: &'static str,
    key: &'static str,
    value: Option<u64>,
    bounds: RangeInclusive<u64>,
) -> Result<(), Refusal> {
    match value {
        Some(value) if !bounds.contains(&value) => refuse(section, key, out_of_bounds(value, &bounds)),
        _ => Ok(()),
    }
}
