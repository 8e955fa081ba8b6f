//! Traces: what `GET /v1/trace` takes and sends.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::values::is_zero;

/// The parameters of a trace.
#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TraceQuery {
    /// The name of the only export; all exports when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub export: Option<String>,
    /// `requests` of devices, requests to the `store`, or `all`; `all` when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(inline)]
    pub kind: Option<TraceKind>,
    /// One request in so many is traced, on average; chosen by the daemon when left out.
    #[serde(default, skip_serializing_if = "Option::is_none", alias = "rate")]
    #[param(minimum = 1, maximum = 1_000_000_000)]
    pub one_in: Option<u32>,
    /// Only requests that took at least so many nanoseconds; all when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slower_than_nanoseconds: Option<u64>,
    /// How long to trace, seconds; an hour when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 3600)]
    pub seconds: Option<u32>,
}

/// The kinds of requests that a reader asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TraceKind {
    /// Block requests of devices alone.
    Requests,
    /// Requests to the store alone.
    Store,
    /// Block requests, and requests to the store.
    #[default]
    All,
}

/// A line of a trace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum TraceLine {
    /// A block request that has ended.
    Request(TracedRequest),
    /// A request to the store that has ended.
    Store(TracedStoreRequest),
    /// Counts since the begin of the trace: at the begin, at most every second, when traces were lost, and at the end.
    Counts(TraceCounts),
    /// The end of the trace, by the daemon. Without this line the connection was cut.
    End(TraceEnd),
}

/// A block request that has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedRequest {
    /// When the worker found the request, nanoseconds since 1970-01-01 UTC.
    pub unix_nanoseconds: u64,
    /// Name of the export the request was for.
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
    /// From the moment at which the worker found the request until the answer: the sum of `parts`, and of `steps`.
    pub total_nanoseconds: u64,
    /// How long the request may have lain with the kernel before, as the worker was in a turn: an estimate of the most. Not in the total.
    pub unseen_max_nanoseconds: u64,
    /// The time in each part of the way.
    pub parts: TraceParts,
    /// The way: the parts in order, as often as the request was there.
    pub steps: Vec<TraceStep>,
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
    /// A write waits to be appended together with others: for the end of the turn, for earlier appends, or for a free segment of the log.
    #[serde(skip_serializing_if = "is_zero")]
    pub batch: u64,
    /// The record is appended, or the content is read from the log, with checksums.
    #[serde(skip_serializing_if = "is_zero")]
    pub log: u64,
    /// Waits until data is stable on the cache disk: a FLUSH, or a FUA WRITE.
    #[serde(skip_serializing_if = "is_zero")]
    pub sync: u64,
    /// Waits for the store: for content only in the store, or for the commit of a durable FLUSH.
    #[serde(skip_serializing_if = "is_zero")]
    pub store: u64,
    /// The result is counted, and the answer is made.
    #[serde(skip_serializing_if = "is_zero")]
    pub reply: u64,
    /// The worker decides; or the rest of a request with more than 16 steps.
    #[serde(skip_serializing_if = "is_zero")]
    pub other: u64,
}

/// One step of a request's way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceStep {
    /// The part of the way, as in `parts`.
    pub part: String,
    /// Time of the step since the request began.
    pub nanoseconds: u64,
}

/// A request to the store that has ended, with all tries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TracedStoreRequest {
    /// Begin of the request, nanoseconds since 1970-01-01 UTC.
    pub unix_nanoseconds: u64,
    /// `get`, `put`, `list`, `delete` or `head`.
    pub operation: String,
    /// The key of the object, or the folder. Never a credential.
    pub key: String,
    /// Name of the export whose volume the request is about, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub export: Option<String>,
    /// Id of the volume, where the request is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub volume: Option<String>,
    /// Whether the request is for READs, rather than for writeback or maintenance.
    pub is_read: bool,
    /// Bytes of the object that were sent or received; of a PUT that failed, those meant; none of other requests.
    pub bytes: u64,
    /// Number of tries, the first one included.
    pub tries: u32,
    /// `ok`, or a word for another answer: `existed`, `missing`, `refused`, `unreachable`, `given_up`, …
    pub result: String,
    /// From the begin of the request to the end of the last try.
    pub total_nanoseconds: u64,
    /// The part of the total in which the request waited: for its turn among READs, and in pauses between tries.
    pub waited_nanoseconds: u64,
}

/// Counts since the begin of a trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceCounts {
    /// One request in so many is chosen at the moment, on average.
    pub one_in: u32,
    /// Requests that came, of the exports asked for.
    pub requests: u64,
    /// Requests chosen among these, and traced.
    pub sampled: u64,
    /// Requests chosen and not traced, as too many were traced at the same time.
    pub not_traced: u64,
    /// Traces dropped as they came faster than they were read, of requests and of requests to the store.
    pub dropped: u64,
}

/// The end of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceEnd {
    /// `time`: the time asked for, or the most time of a trace, is over. `stopping`: the daemon stops, or hands over.
    pub reason: String,
}

impl TraceParts {
    /// The time in each part, in the order of the way, with the name of the part.
    pub fn each(&self) -> [(&'static str, u64); 11] {
        [
            ("queue", self.queue),
            ("limit", self.limit),
            ("brake", self.brake),
            ("slot", self.slot),
            ("copy", self.copy),
            ("batch", self.batch),
            ("log", self.log),
            ("sync", self.sync),
            ("store", self.store),
            ("reply", self.reply),
            ("other", self.other),
        ]
    }

    /// The time in all parts.
    pub fn sum(&self) -> u64 {
        self.each().iter().fold(0, |sum: u64, (_, nanos)| sum.saturating_add(*nanos))
    }
}
