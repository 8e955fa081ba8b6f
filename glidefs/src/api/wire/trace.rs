//! Traces: what `GET /v1/trace` takes and answers.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::values::is_zero;

/// Which requests to show.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TraceQuery {
    /// The name of the only export; all exports when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// Only requests after this sequence number; all that are kept when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Only requests that took at least so many nanoseconds; all when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_than_nanoseconds: Option<u64>,
}

/// Requests that ended last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// The requests, oldest first.
    pub requests: Vec<TracedRequest>,
    /// Sequence number of the newest request, shown or not; 0 before the first.
    pub last: u64,
    /// Requests that were not kept since the start, as another was being kept or read at the same moment.
    pub missed: u64,
}

/// A request of a device that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedRequest {
    /// Number of the request among those that were kept since the start, from 1.
    pub sequence: u64,
    /// When the worker found the request, nanoseconds since 1970-01-01 UTC.
    pub unix_nanoseconds: u64,
    /// Name of the export that the request was for.
    pub export: String,
    /// Number of the device, N of `/dev/ublkbN`.
    pub device_id: u32,
    /// Number of the queue in the device.
    pub queue_id: u16,
    /// Place of the request in the queue.
    pub tag: u16,
    /// `read`, `write`, `flush`, `discard` or `write_zeroes`.
    pub operation: String,
    /// First byte of the device asked for.
    pub offset_bytes: u64,
    /// Number of bytes asked for.
    pub length_bytes: u64,
    /// Whether the request is acknowledged only when stable.
    pub fua: bool,
    /// `ok`, or a word for the failure.
    pub result: String,
    /// From the moment at which the worker found the request until the answer: the sum of `parts`.
    pub total_nanoseconds: u64,
    /// The time in each part of the way.
    pub parts: TraceParts,
    /// Of a sample, the number of requests of its worker that it stands for; left out where the request is shown as it was slow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub one_in: Option<u32>,
}

/// The time of a request in each part of its way, nanoseconds. Parts without time are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct TraceParts {
    /// Waits for the worker: behind other requests of a turn, or for a turn of the export among others.
    #[serde(skip_serializing_if = "is_zero")]
    pub queue: u64,
    /// Waits because of a limit of the export.
    #[serde(skip_serializing_if = "is_zero")]
    pub limit: u64,
    /// Waits because data leaves more slowly than it comes: a bound on data at risk, packs to be merged, a share or the whole of the log,
    /// memory of the index.
    #[serde(skip_serializing_if = "is_zero")]
    pub brake: u64,
    /// Waits for memory for the data, a slot: `buffers.slots_per_worker`.
    #[serde(skip_serializing_if = "is_zero")]
    pub slot: u64,
    /// The bytes are copied between client and worker.
    #[serde(skip_serializing_if = "is_zero")]
    pub copy: u64,
    /// The record is appended to the log, with the wait for other appends or a free segment, or the content is read from the log.
    #[serde(skip_serializing_if = "is_zero")]
    pub log: u64,
    /// Waits until data is stable on the cache disk: a FLUSH, or a FUA WRITE.
    #[serde(skip_serializing_if = "is_zero")]
    pub sync: u64,
    /// Waits for the store: for content only in the store, or for the commit of a durable FLUSH.
    #[serde(skip_serializing_if = "is_zero")]
    pub store: u64,
}
