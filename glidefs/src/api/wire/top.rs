//! The figures of all exports and of the daemon at one moment, for clients that show rates: `glidefs top` and the status page.
//!
//! Invariant: counters only grow while `instance` stays the same and an export keeps its `id`, so that a rate is the difference of two
//! answers over the difference of their `uptime_nanoseconds`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::status::{ExportCounts, WorkerStatus};
use crate::observe::trace::is_zero;
use crate::store::StoreState;

/// The figures of all exports, of cache and store, and warnings, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Top {
    /// The version of the daemon.
    pub version: String,
    /// The process of the daemon.
    pub pid: u32,
    /// A random text for each start of a daemon: the process may have the number of the one before. Counters of another instance begin anew.
    #[serde(default)]
    pub instance: String,
    /// Whether recovery is done and exports are served.
    pub ready: bool,
    /// Time since the daemon started, by a clock that only goes forward, nanoseconds: when the figures were read.
    pub uptime_nanoseconds: u64,
    /// The host's clock at the same time, milliseconds since 1970-01-01 UTC.
    pub unix_milliseconds: u64,
    /// Number of exports by state.
    pub counts: ExportCounts,
    /// The data of all exports that is not in the store.
    pub at_risk: TopRisk,
    /// Size and content of the local cache.
    pub cache: TopCache,
    /// The store, and the cache of what was read from the store. Left out without a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub store: Option<TopStore>,
    /// The workers of the daemon.
    pub workers: Vec<WorkerStatus>,
    /// What somebody has to do something about now, a sentence each.
    pub warnings: Vec<String>,
    /// Upper bounds of the buckets of each `latency`, inclusive, nanoseconds. One more bucket has what took longer.
    pub latency_bounds_nanoseconds: Vec<u64>,
    /// All exports, sorted by name.
    pub exports: Vec<TopExport>,
}

/// Data that is not in the store, of all exports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopRisk {
    /// Bytes of data at risk.
    pub bytes: u64,
    /// Age of the oldest data at risk, seconds.
    pub seconds: u64,
    /// Number of exports with data at risk.
    pub exports: u64,
}

/// Size and content of the local cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopCache {
    /// Configured size of the cache, bytes.
    pub size_bytes: u64,
    /// Bytes of the segments that hold data.
    pub used_bytes: u64,
    /// Bytes of data that are not in the store.
    pub dirty_bytes: u64,
    /// Bytes of data that the store has as well.
    pub clean_bytes: u64,
    /// Writes that wait until the cache has room.
    pub waiting_writes: u64,
}

/// The store, and the cache of what was read from the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopStore {
    /// What the store does.
    #[serde(default)]
    #[schema(required)]
    pub status: StoreState,
    /// Requests by operation, since the daemon started.
    pub operations: Vec<TopStoreOperation>,
    /// Number of READs that wait for the store.
    pub waiting_reads: u64,
    /// How long the oldest of these READs has waited, seconds.
    pub oldest_read_seconds: u64,
    /// Blocks that readers found in the block cache.
    pub block_cache_hits: u64,
    /// Blocks that readers needed and the block cache did not have.
    pub block_cache_misses: u64,
}

/// Requests of one operation on the store, since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopStoreOperation {
    /// The operation: get, put, list, delete or head.
    pub operation: String,
    /// Tries, also those repeated after an error.
    pub requests: u64,
    /// Payload of successful requests, bytes.
    pub bytes: u64,
    /// Requests that failed after all their tries.
    pub errors: u64,
}

/// One export. Fields that are left out are 0, or not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopExport {
    /// The name of the export.
    pub name: String,
    /// The state: creating, recovering, waiting, attaching, serving, detaching, detached, failed or deleting.
    pub state: String,
    /// Size of the export, bytes.
    pub size_bytes: u64,
    /// Bytes of data that is not in the store.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dirty_bytes: u64,
    /// Age of the oldest data that is not in the store, seconds, at most the time since the daemon started; left out without a store
    /// as well.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub at_risk_seconds: u64,
    /// Bytes known to be damaged.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub damaged_bytes: u64,
    /// The resource for which writes of the export wait: index or log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub waiting_for: Option<String>,
    /// The requests since the daemon started; left out for an export without a device that was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub io: Option<TopIo>,
}

/// The requests of one export since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopIo {
    /// The id of the export. Another export of the same name has another id, and its counters begin anew.
    pub id: u32,
    /// READs, as the device sent them.
    pub read: TopRequests,
    /// WRITEs. Errors are those of DISCARD and WRITE_ZEROES as well.
    pub write: TopRequests,
    /// FLUSHes, as the device sent them.
    pub flush: TopRequests,
    /// DISCARDs and WRITE_ZEROES, without latency and errors.
    pub zero: TopRequests,
    /// Requests that have not ended.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub in_flight: u64,
    /// Time that requests waited for a limit of the export, nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub limit_wait_nanoseconds: u64,
    /// Time in which writes were held back for memory of the index, nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub index_wait_nanoseconds: u64,
    /// Time in which writes were held back for log space, nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub log_wait_nanoseconds: u64,
}

/// The requests of one kind, since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopRequests {
    /// Number of requests completed without an error.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub operations: u64,
    /// Bytes of data of these requests.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// Number of requests that failed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub errors: u64,
    /// The sum of the times from fetching to committing these requests, nanoseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub latency_nanoseconds: u64,
    /// Number of these requests by latency, a number for each of `latency_bounds_nanoseconds` and one for what took longer. Zeroes at
    /// the end are left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub latency: Vec<u64>,
}
