//! The sections of the configuration file, with the default of every key.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::values::{ByteSize, CpuList, Listen, OnUnreachable, TimeSpan};
use crate::observe::metrics::ExportHistograms;
use crate::store::StoreUrl;
use crate::worker::engine::{self, Appends};

/// All settings of a daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The section `[cache]` of the file.
    pub cache: CacheSection,
    /// The section `[store]` of the file.
    pub store: StoreSection,
    /// The section `[api]` of the file.
    pub api: ApiSection,
    /// The section `[workers]` of the file.
    pub workers: WorkersSection,
    /// The section `[buffers]` of the file.
    pub buffers: BuffersSection,
    /// The section `[exports]` of the file.
    pub exports: ExportsSection,
    /// The section `[control]` of the file.
    pub control: ControlSection,
    /// The section `[traces]` of the file.
    pub traces: TracesSection,
    /// The section `[log]` of the file.
    pub log: LogSection,
    /// The text of the file; empty for a configuration that was not read from a file.
    #[serde(skip)]
    pub source: String,
    /// Keys of the file that have no effect, each as `[section] key`.
    #[serde(skip)]
    pub ignored: Vec<String>,
    /// Whether devices are started without user copy, with one stable buffer per tag.
    #[serde(skip)]
    pub bounce_mode: bool,
    /// The CPU of each worker; the length is the number of workers.
    #[serde(skip)]
    pub worker_cpus: Vec<usize>,
}

/// The section `[cache]` of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CacheSection {
    /// The directory of the cache.
    pub dir: PathBuf,
    /// Space for the log.
    pub size: ByteSize,
    /// How a WRITE behaves while the cache is full.
    pub on_full: OnFull,
    /// How workers append to the log.
    pub engine: EngineSetting,
    /// Disk space of the block cache; 0 for none.
    pub clean_size: ByteSize,
    /// Memory of the block cache.
    pub clean_memory: ByteSize,
    /// Memory for checksums of the log.
    pub checksums_max: ByteSize,
    /// Locked memory for data of the log that is read often.
    pub mapped_max: ByteSize,
    /// Memory for the indexes of all exports.
    pub index_max: Option<ByteSize>,
    /// Memory for the index of one export.
    pub index_max_per_export: Option<ByteSize>,
    /// Most space of the log for data of one export not in the store. `None`: only the share bounds an export.
    pub log_max_per_export: Option<ByteSize>,
}

/// How a WRITE behaves while the cache is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFull {
    /// The WRITE waits for space.
    #[default]
    Wait,
    /// The WRITE fails with ENOSPC.
    Enospc,
}

/// How exports behave at the start while the store cannot confirm that this host still has them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unconfirmed {
    /// The devices wait for the store.
    #[default]
    Wait,
    /// The exports are served from the cache.
    Serve,
}

/// How workers append to the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EngineSetting {
    /// The best engine that works in the directory.
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
    /// The engine asked for; `None` for `Auto`.
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

/// The section `[store]` of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSection {
    /// The place of the object store; `None` for no store.
    pub url: Option<StoreUrl>,
    /// Time without a write after which an export is written back.
    pub flush_interval: TimeSpan,
    /// Age of the oldest data at risk at which an export is written back.
    pub flush_age: TimeSpan,
    /// Bytes of data at risk at which an export is written back.
    pub flush_size: ByteSize,
    /// How long a daemon that removes its devices at the stop waits for the store.
    pub drain_timeout: TimeSpan,
    /// Time between garbage collections of the store; 0 for no collections.
    pub gc_interval: TimeSpan,
    /// Memory for packs being made, uploaded, and uploaded last.
    pub pack_memory: ByteSize,
    /// Memory for the blocks of READs.
    pub read_memory: ByteSize,
    /// How exports behave at the start while the store cannot confirm that this host still has them.
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
            pack_memory: ByteSize(512 << 20),
            read_memory: ByteSize(64 << 20),
            unconfirmed: Unconfirmed::default(),
        }
    }
}

/// The section `[api]` of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApiSection {
    /// The TCP address of the API.
    pub listen: Listen,
    /// The path of the API's Unix socket.
    pub socket: PathBuf,
    /// The group whose members may use the socket.
    pub group: Option<String>,
    /// The file with the token for TCP.
    pub token_file: Option<PathBuf>,
    /// Names of this host, allowed in the header `Host` of requests over TCP.
    pub hosts: Vec<String>,
    /// Most connections over TCP, and most over the socket.
    pub connections_max: usize,
    /// Which exports have histograms on `/metrics`.
    pub export_histograms: ExportHistograms,
}

/// The section `[workers]` of the file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkersSection {
    /// The number of workers.
    pub count: Option<u64>,
    /// The CPUs that workers are pinned to.
    pub cpus: Option<CpuList>,
}

/// The section `[buffers]` of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BuffersSection {
    /// Slots in the arena of a worker.
    pub slots_per_worker: usize,
}

/// The section `[exports]` of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExportsSection {
    /// Most exports that may exist.
    pub max: usize,
    /// Queue depth of an export created without one.
    pub queue_depth: u16,
    /// Number of queues of an export created without one.
    pub queues: u16,
    /// `on_unreachable` of an export created without one: how a READ behaves while the store is away.
    pub on_unreachable: OnUnreachable,
}

/// The section `[control]` of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ControlSection {
    /// Time limit of one kernel command.
    pub command_timeout: TimeSpan,
    /// How devices behave when the daemon stops.
    pub on_stop: OnStop,
}

/// How devices behave when the daemon stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnStop {
    /// The devices wait for the next daemon, and so do the requests.
    #[default]
    Keep,
    /// The devices are removed.
    Remove,
}

/// The section `[traces]` of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TracesSection {
    /// The collector's URL, without `/v1/traces`; `None`: no forwarding.
    pub otlp_endpoint: Option<String>,
    /// The file with further headers of requests to the collector.
    pub otlp_headers_file: Option<PathBuf>,
    /// Time limit of one request to the collector.
    pub otlp_timeout: TimeSpan,
    /// The attribute `service.name` of all spans.
    pub service_name: String,
    /// One request in so many is traced; `None`: the daemon follows the load.
    pub one_in: Option<u32>,
    /// Only requests of devices that took at least so long are sent.
    pub slower_than: TimeSpan,
}

impl Default for TracesSection {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            otlp_headers_file: None,
            otlp_timeout: TimeSpan(Duration::from_secs(10)),
            service_name: "glidefs".into(),
            one_in: None,
            slower_than: TimeSpan(Duration::ZERO),
        }
    }
}

/// The section `[log]` of the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    /// The filter of log lines.
    pub filter: String,
    /// The target and form of the log.
    pub format: LogFormat,
}

/// The target and form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// Journald if the daemon is run by systemd, text otherwise.
    #[default]
    Auto,
    /// Text on standard error.
    Text,
    /// Lines with their fields to journald.
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
            checksums_max: ByteSize(64 << 20),
            mapped_max: ByteSize(256 << 20),
            index_max: None,
            index_max_per_export: None,
            log_max_per_export: None,
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
            export_histograms: ExportHistograms::default(),
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
