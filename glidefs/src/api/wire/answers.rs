//! Answers about exports, snapshots and the store, and refusals.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::values::{Durability, OnUnreachable, rfc3339};
use crate::cache;
use crate::config;
use crate::router::{DeviceId, ExportInfo};

/// What became of a request to flush.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Flushed {
    /// The export.
    pub name: String,
    /// Every write up to this one of its history is in the store.
    pub sequence_number: u64,
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
            device: info.device.map(DeviceId::path),
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
