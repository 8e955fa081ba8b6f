//! The sections of the configuration file, with the default of every key.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::values::{ByteSize, CpuList, Listen, OnUnreachable, TimeSpan};
use crate::store::StoreUrl;
use crate::worker::engine::{self, Appends};

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// `[cache]`
    pub cache: CacheSection,
    /// `[store]`
    pub store: StoreSection,
    /// `[api]`
    pub api: ApiSection,
    /// `[workers]`
    pub workers: WorkersSection,
    /// `[buffers]`
    pub buffers: BuffersSection,
    /// `[exports]`
    pub exports: ExportsSection,
    /// `[control]`
    pub control: ControlSection,
    /// `[log]`
    pub log: LogSection,
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
pub struct CacheSection {
    /// Where the cache lives.
    pub dir: PathBuf,
    /// Space it may use.
    pub size: ByteSize,
    /// What a write does when it is full.
    pub on_full: OnFull,
    /// How it writes to its files.
    pub engine: EngineSetting,
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
pub enum EngineSetting {
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

impl EngineSetting {
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
pub struct StoreSection {
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

impl Default for StoreSection {
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
pub struct ApiSection {
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
pub struct WorkersSection {
    /// How many.
    pub count: Option<u64>,
    /// On which CPUs.
    pub cpus: Option<CpuList>,
}

/// `[buffers]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BuffersSection {
    /// Slots a worker has.
    pub slots_per_worker: usize,
}

/// `[exports]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExportsSection {
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
pub struct ControlSection {
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
pub struct LogSection {
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

impl Default for CacheSection {
    fn default() -> Self {
        Self {
            dir: "/var/lib/glidefs".into(),
            size: ByteSize(16 << 30),
            on_full: OnFull::default(),
            engine: EngineSetting::default(),
            clean_size: ByteSize(4 << 30),
            clean_memory: ByteSize(64 << 20),
        }
    }
}

impl Default for ApiSection {
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

impl Default for BuffersSection {
    fn default() -> Self {
        Self { slots_per_worker: 256 }
    }
}

impl Default for ExportsSection {
    fn default() -> Self {
        Self { max: 20_000, queue_depth: 64, queues: 1, on_unreachable: OnUnreachable::default() }
    }
}

impl Default for ControlSection {
    fn default() -> Self {
        Self { command_timeout: TimeSpan(Duration::from_secs(10)), on_stop: OnStop::default() }
    }
}

impl Default for LogSection {
    fn default() -> Self {
        Self { filter: "info,libublk=warn".into(), format: LogFormat::default() }
    }
}
