//! The answer about the daemon as a whole.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::answers::AtRisk;

/// How the daemon is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// Its version.
    pub version: String,
    /// Whether recovery is done.
    pub ready: bool,
    /// Seconds since it started.
    pub uptime_seconds: u64,
    /// Its exports.
    pub exports: ExportCounts,
    /// What of all exports is not in the store. The reason is that of the export whose data has been so for longest.
    #[serde(default)]
    pub at_risk: AtRisk,
    /// How many exports that is.
    #[serde(default)]
    pub exports_at_risk: u64,
    /// Why the catalog of exports cannot be written at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalog_fails: Option<String>,
    /// What it says of itself.
    #[serde(flatten)]
    pub daemon: DaemonStatus,
}

/// How many exports there are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExportCounts {
    /// All of them.
    pub total: u64,
    /// As many as there may be.
    pub max: u64,
    /// With a device that answers requests.
    pub serving: u64,
    /// With data and no device.
    pub detached: u64,
    /// Whose last operation failed.
    pub failed: u64,
    /// On the way from one of these to another.
    pub changing: u64,
}

/// What the daemon says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DaemonStatus {
    /// Whether devices are started without user copy, with one buffer a tag.
    pub bounce_mode: bool,
    /// Its workers.
    pub workers: Vec<WorkerStatus>,
    /// Its cache.
    pub cache: CacheStatus,
}

/// One worker.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WorkerStatus {
    /// CPU it is pinned to.
    pub cpu: u64,
    /// Device queues it serves.
    pub queues: u64,
    /// Requests it has fetched.
    pub requests: u64,
    /// Size of its buffer arena, bytes; 0 until it is made.
    pub arena_bytes: u64,
    /// Bytes of the arena that are out.
    pub live_bytes: u64,
}

/// The cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CacheStatus {
    /// Its directory.
    pub dir: String,
    /// How it appends to its files.
    pub engine: String,
    /// What was measured at start; empty in bounce mode.
    pub probe: Vec<EngineStatus>,
    /// Space it may use, bytes.
    pub size_bytes: u64,
    /// Space in segments that hold data, bytes.
    pub used_bytes: u64,
    /// Bytes that are not in the object store.
    pub dirty_bytes: u64,
    /// Frames that failed their checksum when they were read.
    pub corrupt_frames: u64,
}

/// What an engine gave when the cache's directory was probed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EngineStatus {
    /// Which.
    pub engine: String,
    /// Median time of an append of 36 KiB until it may be acknowledged.
    pub append_nanoseconds: Option<u64>,
    /// The same with a sync behind it.
    pub synced_append_nanoseconds: Option<u64>,
    /// Why it cannot be used in this directory.
    pub error: Option<String>,
}
