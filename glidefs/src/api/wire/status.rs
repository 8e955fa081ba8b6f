//! Answers about the daemon as a whole, and its upgrades.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cache::AtRisk;
use crate::router::State;
use crate::store::StoreState;

/// The state of the daemon, the exports and the cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The version of the daemon.
    pub version: String,
    /// The process of the daemon; 0 for a daemon that does not say.
    pub pid: u32,
    /// Whether recovery is done.
    pub ready: bool,
    /// Seconds since the daemon started.
    pub uptime_seconds: u64,
    /// Number of exports by state.
    pub exports: ExportCounts,
    /// The data of all exports that is not in the store. `seconds` and `reason` are those of the export with the oldest data
    /// at risk.
    pub at_risk: AtRisk,
    /// Number of exports with data at risk.
    pub exports_at_risk: u64,
    /// Why the catalog of exports cannot be written at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub catalog_fails: Option<String>,
    /// The upgrade that ended last, as far as the daemon knows: a daemon that was started in another way knows of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub last_upgrade: Option<Upgrade>,
    /// The state of workers, cache and store.
    #[serde(flatten)]
    pub daemon: DaemonStatus,
}

/// Number of exports by state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportCounts {
    /// All exports on this host.
    pub total: u64,
    /// Most exports that may exist.
    pub max: u64,
    /// Exports with a device that answers requests.
    pub serving: u64,
    /// Exports with data and without a device.
    pub detached: u64,
    /// Exports whose last operation failed.
    pub failed: u64,
    /// Exports on the way from one of these states to another.
    pub changing: u64,
}

impl ExportCounts {
    /// Counts an export in the state with this name.
    pub(crate) fn add(&mut self, state: &str) {
        self.total += 1;
        *match state {
            "serving" => &mut self.serving,
            "detached" => &mut self.detached,
            State::FAILED => &mut self.failed,
            _ => &mut self.changing,
        } += 1;
    }
}

/// The state of workers, cache and store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DaemonStatus {
    /// Whether devices are started without user copy, with one buffer per tag.
    pub bounce_mode: bool,
    /// How devices behave when this daemon stops, as the daemon has read at start: "keep" or "remove". Not set by a daemon that does
    /// not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub on_stop: Option<String>,
    /// The workers of the daemon.
    pub workers: Vec<WorkerStatus>,
    /// The state of the cache.
    pub cache: CacheStatus,
    /// What the store does. Left out without a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub store: Option<StoreState>,
    /// Why the store was not found at its place since the start: until it is, nothing is written back or fetched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub store_away: Option<String>,
    /// What somebody has to do something about now, a sentence each.
    #[serde(default)]
    #[schema(required)]
    pub warnings: Vec<String>,
}

/// The state of one worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStatus {
    /// CPU the worker is pinned to.
    pub cpu: u64,
    /// NUMA node of the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub node: Option<u64>,
    /// Share of a CPU that the worker took in the last seconds, per cent.
    pub busy_percent: u64,
    /// Number of device queues the worker serves.
    pub queues: u64,
    /// Number of requests fetched from devices.
    pub requests: u64,
    /// Size of the worker's arena, bytes; 0 until the arena is made.
    pub arena_bytes: u64,
    /// Bytes of the arena in use by requests.
    pub live_bytes: u64,
}

/// The state of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheStatus {
    /// The directory of the cache.
    pub dir: String,
    /// The engine: how the cache appends to the log.
    pub engine: String,
    /// Configured size of the cache, bytes.
    pub size_bytes: u64,
    /// Bytes of the segments that hold data.
    pub used_bytes: u64,
    /// Bytes of data that are not in the store.
    pub dirty_bytes: u64,
    /// Frames that did not match their checksum when read.
    pub corrupt_frames: u64,
}

/// The memory of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Memory {
    /// Memory of the daemon in RAM, as the kernel counts the memory, bytes.
    pub resident_bytes: u64,
    /// The memory by use. The sum may differ from `resident_bytes` by a tenth.
    pub categories: Vec<MemoryCategory>,
}

/// The memory for one use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryCategory {
    /// The name of the category.
    pub category: String,
    /// The memory, as the holder counts the memory, bytes.
    pub bytes: u64,
}

/// The wish for an upgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpgradeRequest {
    /// Absolute path of the new program. Left out for the program installed in place of the daemon's. Only root and the user of
    /// the daemon may name a program, and over the Unix socket only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary: Option<String>,
}

/// An upgrade to a program that was found fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UpgradeBegun {
    /// The version of the new program.
    pub version: String,
    /// When the upgrade began, RFC 3339 in UTC: tells this upgrade from others in `last_upgrade` of the status.
    #[schema(format = DateTime)]
    pub began: String,
}

/// An upgrade that has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Upgrade {
    /// When the upgrade began, RFC 3339 in UTC.
    #[schema(format = DateTime)]
    pub began: String,
    /// The version of the program before.
    pub from: String,
    /// The version of the new program; left out for a program that did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub to: Option<String>,
    /// How the upgrade ended: "done", or "failed" where the program before serves on.
    pub outcome: String,
    /// Why the program before serves on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// How long requests of devices waited for the new program. Left out after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub pauses: Option<Pauses>,
}

/// How long requests of devices waited for a new program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Pauses {
    /// Devices that the new program has taken over.
    pub devices: u64,
    /// The longest pause of a device, seconds.
    pub longest_seconds: f64,
    /// The median of the pauses, seconds.
    pub median_seconds: f64,
}
