//! What goes over the wire: requests and answers as JSON. The command line reads and writes the same types.
//!
//! Invariant: fields are added, never renamed; requests with fields that are not known are refused.

#![allow(unused_qualifications, reason = "the derived schema of an optional struct has one")]

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};

use super::timestamp::rfc3339;
use crate::cache::{self, Bound};
use crate::config::{self, ByteSize};
use crate::router::ExportInfo;

/// A size in a request: bytes as a number, or text with a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Size(pub ByteSize);

impl utoipa::PartialSchema for Size {
    fn schema() -> RefOr<Schema> {
        let bytes = ObjectBuilder::new().schema_type(Type::Integer).description(Some("bytes"));
        let text = ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("a number with KiB, MiB, GiB or TiB"))
            .examples([serde_json::json!("10GiB")]);
        OneOfBuilder::new().item(bytes).item(text).into()
    }
}

impl ToSchema for Size {}

/// What an acknowledged FLUSH survives, and how much may be lost with the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Durability {
    /// Loss of power.
    #[default]
    Local,
    /// Loss of the host: FLUSH waits for the store.
    Store,
    /// Loss of power; and no more than this is lost with the host: writes are slowed, and wait, before it could be.
    Bounded {
        /// Bytes that are not in the store, at most.
        max_bytes: u64,
        /// No write is acknowledged while one that was acknowledged so many seconds ago is not in the store.
        max_age_seconds: u64,
    },
}

impl From<Durability> for cache::Durability {
    fn from(durability: Durability) -> Self {
        match durability {
            Durability::Local => Self::Local,
            Durability::Store => Self::Store,
            Durability::Bounded { max_bytes, max_age_seconds } => {
                Self::Bounded(Bound { max_bytes, max_age: Duration::from_secs(max_age_seconds) })
            }
        }
    }
}

impl From<cache::Durability> for Durability {
    fn from(durability: cache::Durability) -> Self {
        match durability {
            cache::Durability::Local => Self::Local,
            cache::Durability::Store => Self::Store,
            cache::Durability::Bounded(Bound { max_bytes, max_age }) => {
                Self::Bounded { max_bytes, max_age_seconds: max_age.as_secs() }
            }
        }
    }
}

/// What a READ does that needs a store that is away: "wait", or the time after which it fails, such as "30s".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OnUnreachable(pub config::OnUnreachable);

/// Asks for a new export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// Its name: a letter or digit, then letters, digits, '.', '_' and '-'; 128 characters at most.
    pub name: String,
    /// Its size: a positive multiple of 512 bytes.
    pub size: Size,
    /// What an acknowledged FLUSH survives; "local" when left out.
    #[serde(default)]
    pub durability: Durability,
    /// What a READ does that needs a store that is away; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub on_unreachable: Option<OnUnreachable>,
    /// Queues of its device; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u64>,
    /// Requests in flight a queue, at most; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u64>,
    /// Whether it gets no device before it is attached.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub detached: bool,
}

/// Asks for an export that was deleted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UndeleteRequest {
    /// Its new name; the one it had when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What an acknowledged FLUSH survives; "local" when left out.
    #[serde(default)]
    pub durability: Durability,
    /// What a READ does that needs a store that is away; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub on_unreachable: Option<OnUnreachable>,
    /// Queues of its device; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u64>,
    /// Requests in flight a queue, at most; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u64>,
}

/// Asks for an export whose content is in the store already.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenRequest {
    /// Whether to give up what is only here of an export that another host has taken over, or that has two histories; durability
    /// and device stay as they are then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub discard_local: bool,
    /// Whether it is taken over from a host that has not released it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub take_over: bool,
    /// What an acknowledged FLUSH survives; "local" when left out.
    #[serde(default)]
    pub durability: Durability,
    /// What a READ does that needs a store that is away; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub on_unreachable: Option<OnUnreachable>,
    /// Queues of its device; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u64>,
    /// Requests in flight a queue, at most; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u64>,
}

/// Asks for a new export with the content of another one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ForkRequest {
    /// Name of the new export.
    pub name: String,
    /// Snapshot of the other one; its newest state when left out. What it has not flushed is flushed first if it is served here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Whether to begin with what is here of an export that another host has taken over, or that has two histories.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local: bool,
    /// What an acknowledged FLUSH survives; "local" when left out.
    #[serde(default)]
    pub durability: Durability,
    /// What a READ does that needs a store that is away; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "30s")]
    pub on_unreachable: Option<OnUnreachable>,
    /// Queues of its device; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u64>,
    /// Requests in flight a queue, at most; the configured default when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_depth: Option<u64>,
}

/// What became of a request to flush.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Flushed {
    /// The export.
    pub name: String,
    /// Every write up to this one of its history is in the store.
    pub sequence_number: u64,
}

/// How to attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AttachQuery {
    /// Whether a store that cannot be asked whose the export is does not matter.
    pub unconfirmed: bool,
}

/// Asks for a device to be removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoveQuery {
    /// Whether to remove it although it is mounted, or held in another way.
    pub force: bool,
}

/// How to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlushQuery {
    /// Whether the answer waits until all of it is in the store.
    pub wait: bool,
}

impl Default for FlushQuery {
    fn default() -> Self {
        Self { wait: true }
    }
}

/// What became of flushing everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drained {
    /// Exports all of which is in the store.
    pub flushed: usize,
    /// Those of them that have a device, and so stay this host's.
    #[serde(default)]
    pub kept: usize,
    /// Why others are not.
    pub failed: Vec<String>,
}

/// Asks for an export to go back to a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollbackRequest {
    /// The snapshot.
    pub snapshot: String,
}

/// Asks for a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Its name, by the rule for exports.
    pub name: String,
}

/// A snapshot of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The export.
    pub export: String,
    /// The snapshot.
    pub name: String,
    /// When it was created, RFC 3339 in UTC.
    pub created: String,
}

/// Asks for garbage collection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct GcRequest {
    /// Change nothing, say what would go.
    #[serde(default)]
    pub dry_run: bool,
    /// How long something stays that is not in use, seconds; a day when left out, six hours at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u64>,
}

/// What garbage collection found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GcAnswer {
    /// Whether nothing was changed.
    pub dry_run: bool,
    /// Volumes that are not deleted.
    pub volumes: u64,
    /// Packs in use.
    pub packs_in_use: u64,
    /// Their length, bytes.
    pub bytes_in_use: u64,
    /// Packs that are not in use, and wait for the end of the grace period, or for the next manifest of their volume.
    pub packs_waiting: u64,
    /// Their length, bytes.
    pub bytes_waiting: u64,
    /// Packs that were removed, or would be.
    pub packs_removed: u64,
    /// Their length, bytes.
    pub bytes_removed: u64,
    /// Other objects that were removed, or would be.
    pub objects_removed: u64,
    /// Keys of manifests and snapshots that cannot be read: what they may list is kept.
    #[serde(default)]
    pub damaged: Vec<String>,
    /// Keys of the objects that would be removed. Only of a dry run.
    pub would_remove: Vec<String>,
}

/// A volume in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredExport {
    /// Its name.
    pub name: String,
    /// Whether this daemon has it open.
    pub open_here: bool,
}

/// A volume that was deleted and can be had back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeletedExport {
    /// The name it had.
    pub name: String,
    /// Its identity in the store, 32 hex digits.
    pub volume: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// When it was deleted, RFC 3339 in UTC.
    pub deleted: String,
    /// Until when it can be had back for sure, RFC 3339 in UTC.
    pub kept_until: String,
}

/// Asks for an export to grow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeRequest {
    /// Its new size: a multiple of 512 bytes, no less than it has.
    pub size: Size,
}

/// One export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Its identity on this host, never used again.
    pub id: u32,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Path of its block device, while it has one.
    pub device: Option<String>,
    /// creating, recovering, attaching, serving, detaching, detached, failed or deleting.
    pub state: String,
    /// Why the last operation failed, in state failed.
    pub reason: Option<String>,
    /// Queues of its device.
    pub queues: u16,
    /// Requests in flight a queue, at most.
    pub queue_depth: u16,
    /// When it was created, RFC 3339 in UTC.
    pub created: String,
    /// What an acknowledged FLUSH survives.
    #[serde(default)]
    pub durability: Durability,
    /// What a READ does that needs a store that is away.
    #[serde(default)]
    #[schema(value_type = String, example = "wait")]
    pub on_unreachable: OnUnreachable,
    /// Why the store could not be told, when the export was detached, that another host may open it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreleased: Option<String>,
    /// Bytes whose content was lost before the store had it, as of the last flush: they fail until they are written again or
    /// discarded. Left out where there is no store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub damaged_bytes: Option<u64>,
    /// What of it is not in the store; left out where all of it is, or there is no store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_risk: Option<AtRisk>,
}

/// What is not in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AtRisk {
    /// Bytes of data.
    pub bytes: u64,
    /// For how many seconds the oldest data has been so.
    pub seconds: u64,
    /// What is in the way, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<cache::AtRisk> for AtRisk {
    fn from(cache::AtRisk { bytes, age, why }: cache::AtRisk) -> Self {
        Self { bytes, seconds: age.as_secs(), reason: why }
    }
}

impl From<ExportInfo> for Export {
    fn from(info: ExportInfo) -> Self {
        Self {
            name: info.name.to_string(),
            id: info.id.0,
            size_bytes: info.size_bytes,
            device: info.device.map(crate::router::DeviceId::path),
            state: info.state.name().into(),
            reason: info.state.reason().map(Into::into),
            queues: info.queues,
            queue_depth: info.queue_depth,
            created: rfc3339(info.created_unix_millis),
            durability: info.durability.into(),
            on_unreachable: OnUnreachable(config::OnUnreachable(info.on_unreachable)),
            unreleased: info.unreleased,
            damaged_bytes: info.damaged_bytes,
            at_risk: info.at_risk.map(AtRisk::from),
        }
    }
}

/// What became of a request to delete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deleted {
    /// The export.
    pub name: String,
    /// Whether there was one.
    pub existed: bool,
}

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

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// What it is about.
    pub error: ErrorDetail,
}

/// What a refusal is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// A word for machines.
    pub code: String,
    /// A sentence for people, which says what to do.
    pub message: String,
}
