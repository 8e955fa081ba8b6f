//! The configuration file: what may be set, what it defaults to, what is refused.
//!
//! Owns reading the file and the environment variable `GLIDEFS_BOUNCE_MODE`, once, at start. Does not own what the settings
//! do. Invariant: a [`Config`] that was loaded has been checked as a whole; a refusal names file, line, key and what is allowed.

pub mod keys;
mod values;

use std::ffi::OsStr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::store::StoreUrl;
use crate::worker::engine::{self, Appends};

pub use self::values::{ByteSize, CPU_NUMBER_MAX, CpuList, Listen, OnUnreachable, TimeSpan, ValueError};

/// Where the daemon looks for its configuration when it is not told.
pub const DEFAULT_PATH: &str = "/etc/glidefs/glidefs.toml";
/// The environment variable that starts devices without user copy.
pub const BOUNCE_MODE_VARIABLE: &str = "GLIDEFS_BOUNCE_MODE";
/// Size of the cache's segments, bytes; the least cache is counted in them.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Longest path of a Unix socket, bytes: what fits the kernel's address.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[cache]`
    pub cache: Cache,
    /// `[store]`
    pub store: Store,
    /// `[api]`
    pub api: Api,
    /// `[workers]`
    pub workers: Workers,
    /// `[buffers]`
    pub buffers: Buffers,
    /// `[exports]`
    pub exports: Exports,
    /// `[control]`
    pub control: Control,
    /// `[log]`
    pub log: Log,
    /// Whether devices are started without user copy, with one stable buffer a tag.
    #[serde(skip)]
    pub bounce_mode: bool,
    /// CPU of each worker: its length is the number of workers.
    #[serde(skip)]
    pub worker_cpus: Vec<usize>,
}

/// `[cache]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Where the cache lives.
    pub dir: PathBuf,
    /// Space it may use.
    pub size: ByteSize,
    /// What a write does when it is full.
    pub on_full: OnFull,
    /// How it writes to its files.
    pub engine: Engine,
    /// Space for data that was read back from the store; 0 for none.
    pub clean_size: ByteSize,
    /// Memory for it.
    pub clean_memory: ByteSize,
}

/// What a write does when the cache is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// It waits for space.
    #[default]
    Wait,
    /// It fails with ENOSPC.
    Enospc,
}

/// What becomes of exports at the start while the store cannot confirm that this host still has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unconfirmed {
    /// Their devices wait.
    #[default]
    Wait,
    /// They are served from the cache.
    Serve,
}

/// How the cache writes to its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The best that works in the directory.
    #[default]
    Auto,
    /// System calls, through the page cache.
    Pwrite,
    /// The worker's ring, through the page cache.
    Ring,
    /// As `Ring`, from registered buffers.
    RingFixed,
    /// The worker's ring, past the page cache.
    RingDirect,
    /// As `RingDirect`, from registered buffers.
    RingFixedDirect,
}

impl Engine {
    /// The one that is asked for, if one is.
    pub fn wanted(self) -> Option<engine::Engine> {
        let (appends, direct) = match self {
            Self::Auto => return None,
            Self::Pwrite => (Appends::Pwrite, false),
            Self::Ring => (Appends::Ring, false),
            Self::RingFixed => (Appends::RingFixed, false),
            Self::RingDirect => (Appends::Ring, true),
            Self::RingFixedDirect => (Appends::RingFixed, true),
        };
        Some(engine::Engine { appends, direct })
    }
}

/// `[store]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// Where the object store is.
    pub url: Option<StoreUrl>,
    /// Time without a write after which an export is flushed.
    pub flush_interval: TimeSpan,
    /// Age of the oldest data not in the store at which an export is flushed.
    pub flush_age: TimeSpan,
    /// Data not in the store at which an export is flushed.
    pub flush_size: ByteSize,
    /// How long a daemon that removes its devices waits for the store before it ends.
    pub drain_timeout: TimeSpan,
    /// How often the store is searched for what nothing uses; 0 for never.
    pub gc_interval: TimeSpan,
    /// What becomes of exports at the start while the store cannot be asked whose they are.
    pub unconfirmed: Unconfirmed,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            url: None,
            flush_interval: TimeSpan(Duration::from_secs(2)),
            flush_age: TimeSpan(Duration::from_secs(30)),
            flush_size: ByteSize(32 << 20),
            drain_timeout: TimeSpan(Duration::from_secs(30)),
            gc_interval: TimeSpan(Duration::from_hours(12)),
            unconfirmed: Unconfirmed::default(),
        }
    }
}

/// `[api]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// TCP address.
    pub listen: Listen,
    /// Unix socket.
    pub socket: PathBuf,
    /// Group whose members may use the socket.
    pub group: Option<String>,
    /// File with the token for TCP.
    pub token_file: Option<PathBuf>,
    /// Names of this host that requests over TCP may name.
    pub hosts: Vec<String>,
    /// Connections over TCP, and over the socket, at most.
    pub connections_max: usize,
}

/// `[workers]`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workers {
    /// How many.
    pub count: Option<u64>,
    /// On which CPUs.
    pub cpus: Option<CpuList>,
}

/// `[buffers]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Buffers {
    /// Slots a worker has.
    pub slots_per_worker: usize,
}

/// `[exports]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exports {
    /// How many may exist.
    pub max: usize,
    /// Queue depth of those that do not say.
    pub queue_depth: u16,
    /// Queues of those that do not say.
    pub queues: u16,
    /// What a READ of those that do not say does while the store is away.
    pub on_unreachable: OnUnreachable,
}

/// `[control]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Time limit of one kernel command.
    pub command_timeout: TimeSpan,
    /// What happens to devices when the daemon stops.
    pub on_stop: OnStop,
}

/// What happens to devices when the daemon stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStop {
    /// They wait for the next daemon; requests wait with them.
    #[default]
    Keep,
    /// They are removed.
    Remove,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// What is logged.
    pub filter: String,
    /// How.
    pub format: LogFormat,
}

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Journald when run by systemd, text otherwise.
    #[default]
    Auto,
    /// Text on standard error.
    Text,
    /// Fields to journald.
    Journald,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            dir: "/var/lib/glidefs".into(),
            size: ByteSize(16 << 30),
            on_full: OnFull::default(),
            engine: Engine::default(),
            clean_size: ByteSize(4 << 30),
            clean_memory: ByteSize(64 << 20),
        }
    }
}

impl Default for Api {
    fn default() -> Self {
        Self {
            listen: Listen(Some(([127, 0, 0, 1], 9470).into())),
            socket: "/run/glidefs/glidefs.sock".into(),
            group: None,
            token_file: None,
            hosts: Vec::new(),
            connections_max: 512,
        }
    }
}

impl Default for Buffers {
    fn default() -> Self {
        Self { slots_per_worker: 256 }
    }
}

impl Default for Exports {
    fn default() -> Self {
        Self { max: 20_000, queue_depth: 64, queues: 1, on_unreachable: OnUnreachable::default() }
    }
}

impl Default for Control {
    fn default() -> Self {
        Self { command_timeout: TimeSpan(Duration::from_secs(10)), on_stop: OnStop::default() }
    }
}

impl Default for Log {
    fn default() -> Self {
        Self { filter: "info,libublk=warn".into(), format: LogFormat::default() }
    }
}

/// Why the configuration was refused.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read the configuration {path}: `glidefs init {path}` writes one")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: std::io::Error,
    },
    /// The file says something that is not allowed.
    #[error("{path}:{line}: {message}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 1 where the key is not in the file.
        line: usize,
        /// Key, value and what is allowed.
        message: String,
    },
    /// `GLIDEFS_BOUNCE_MODE` is set to something else than on or off.
    #[error(
        "{BOUNCE_MODE_VARIABLE} is {value:?}: use 1, true, on or yes, or 0, false, off or no, or unset it"
    )]
    BounceMode {
        /// What it is.
        value: String,
    },
    /// The kernel did not say which CPUs the daemon may use.
    #[error("cannot find out which CPUs may be used: set `[workers] cpus`")]
    Cpus(#[source] std::io::Error),
}

impl Config {
    /// Reads and checks the file at `path`, the environment and the CPUs that may be used.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        let bounce_mode = bounce_mode(std::env::var_os(BOUNCE_MODE_VARIABLE).as_deref())?;
        let mut config = Self::parse(path, &text, &usable_cpus().map_err(ConfigError::Cpus)?)?;
        config.bounce_mode = bounce_mode;
        Ok(config)
    }

    /// Reads and checks `text`, the content of `path`, for a daemon that may use the CPUs `usable`.
    pub fn parse(path: &Path, text: &str, usable: &[usize]) -> Result<Self, ConfigError> {
        let mut config: Self = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            let (line, key) = locate(text, at);
            let message = format!("{key}{}", error.message());
            ConfigError::Invalid { path: path.into(), line, message }
        })?;
        config.check(usable).map_err(|refusal| {
            let line = line_of(text, refusal.section, refusal.key).unwrap_or(1);
            let message = format!("[{}] {}: {}", refusal.section, refusal.key, refusal.message);
            ConfigError::Invalid { path: path.into(), line, message }
        })?;
        Ok(config)
    }

    fn check(&mut self, usable: &[usize]) -> Result<(), Refusal> {
        within("workers", "count", self.workers.count, 1..=1024)?;
        within("buffers", "slots_per_worker", Some(self.buffers.slots_per_worker as u64), 4..=65_536)?;
        within("exports", "max", Some(self.exports.max as u64), 1..=1_000_000)?;
        within("exports", "queue_depth", Some(self.exports.queue_depth.into()), 1..=4096)?;
        within("exports", "queues", Some(self.exports.queues.into()), 1..=128)?;

        let cpus: Vec<usize> = match &self.workers.cpus {
            Some(list) => list.cpus().to_vec(),
            None => usable.to_vec(),
        };
        if let Some(cpu) = cpus.iter().find(|cpu| !usable.contains(cpu)) {
            return refuse(
                "workers",
                "cpus",
                format!("CPU {cpu} is not one of those the daemon may use ({usable:?})"),
            );
        }
        let count =
            self.workers.count.map_or(cpus.len(), |count| usize::try_from(count).unwrap_or(usize::MAX));
        self.worker_cpus = cpus.into_iter().cycle().take(count).collect();

        let size_min = (2 * count as u64 + 3) * SEGMENT_BYTES;
        if self.cache.size.0 < size_min {
            let (size, min) = (self.cache.size, ByteSize(size_min));
            return refuse(
                "cache",
                "size",
                format!("{size} is too small: {count} workers need at least {min}"),
            );
        }
        let memory = ByteSize(16 << 20)..=ByteSize(1 << 40);
        if !memory.contains(&self.cache.clean_memory) {
            return refuse("cache", "clean_memory", out_of_bounds(self.cache.clean_memory, &memory));
        }
        let disk = ByteSize(64 << 20)..=ByteSize(1 << 50);
        if self.cache.clean_size.0 != 0 && !disk.contains(&self.cache.clean_size) {
            return refuse("cache", "clean_size", out_of_bounds(self.cache.clean_size, &disk));
        }
        if self.cache.dir.as_os_str().is_empty() {
            return refuse("cache", "dir", "it is empty: give a directory".into());
        }
        let socket_bytes = self.api.socket.as_os_str().len();
        if socket_bytes == 0 || socket_bytes > SOCKET_PATH_BYTES_MAX {
            let message = format!("the path has {socket_bytes} bytes: use 1 to {SOCKET_PATH_BYTES_MAX}");
            return refuse("api", "socket", message);
        }
        if let Some(address) = self.api.listen.0
            && !address.ip().is_loopback()
            && self.api.token_file.is_none()
        {
            let message = format!(
                "{address} can be reached from other hosts: set token_file as well, or use 127.0.0.1"
            );
            return refuse("api", "listen", message);
        }
        within("api", "connections_max", Some(self.api.connections_max as u64), 8..=65_536)?;
        let is_name =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte));
        if let Some(name) = self.api.hosts.iter().find(|name| name.is_empty() || !is_name(name)) {
            return refuse(
                "api",
                "hosts",
                format!("{name:?} is not a host's name: use letters, digits, '.' and '-', without a port"),
            );
        }
        let second = TimeSpan(Duration::from_secs(1));
        span_within("control", "command_timeout", self.control.command_timeout, second..=minutes(10))?;
        let shortest = TimeSpan(Duration::from_millis(10));
        span_within("store", "flush_interval", self.store.flush_interval, shortest..=minutes(60))?;
        span_within("store", "flush_age", self.store.flush_age, shortest..=minutes(24 * 60))?;
        let any = TimeSpan(Duration::ZERO);
        span_within("store", "drain_timeout", self.store.drain_timeout, any..=minutes(60))?;
        if !self.store.gc_interval.0.is_zero() {
            span_within("store", "gc_interval", self.store.gc_interval, minutes(10)..=minutes(30 * 24 * 60))?;
        }
        let (size, sizes) = (self.store.flush_size, ByteSize(64 << 10)..=ByteSize(1 << 40));
        if !sizes.contains(&size) {
            return refuse("store", "flush_size", out_of_bounds(size, &sizes));
        }
        Ok(())
    }
}

/// A setting that cannot be.
struct Refusal {
    section: &'static str,
    key: &'static str,
    message: String,
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

/// Line (from 1) of a place in the file, and the key that stands there as `[section] key: `.
fn locate(text: &str, at: usize) -> (usize, String) {
    let at = text.floor_char_boundary(at);
    let line = text[..at].matches('\n').count() + 1;
    let here = text.lines().nth(line - 1).unwrap_or_default().trim();
    let header = |line: &str| line.trim().starts_with('[').then(|| line.trim().to_owned());
    let section = text.lines().take(line).filter_map(header).last();
    let key = here.split_once('=').map(|(key, _)| key.trim());
    let place = match (section, key) {
        (Some(section), Some(key)) => format!("{section} {key}: "),
        (Some(section), None) => format!("{section}: "),
        (None, Some(key)) => format!("{key}: "),
        (None, None) => String::new(),
    };
    (line, place)
}

/// Line (from 1) where `key` of `section` is set.
fn line_of(text: &str, section: &str, key: &str) -> Option<usize> {
    let mut current = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            current = header.split(']').next().unwrap_or_default().trim();
        }
        if current == section && line.split_once('=').is_some_and(|(name, _)| name.trim() == key) {
            return Some(index + 1);
        }
    }
    None
}

fn bounce_mode(value: Option<&OsStr>) -> Result<bool, ConfigError> {
    let Some(value) = value else { return Ok(false) };
    match value.to_str() {
        Some("1" | "true" | "on" | "yes") => Ok(true),
        Some("0" | "false" | "off" | "no") => Ok(false),
        _ => Err(ConfigError::BounceMode { value: value.to_string_lossy().into_owned() }),
    }
}

/// CPUs that this process may run on, ascending.
fn usable_cpus() -> std::io::Result<Vec<usize>> {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0))?;
    let set = &set;
    Ok((0..nix::sched::CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

#[cfg(test)]
mod tests;
