//! Answers about exports, snapshots and the store.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::settings::Limits;
use super::values::rfc3339;
use crate::cache::AtRisk;
use crate::properties::limits::Settings;
use crate::properties::{Durability, OnUnreachable};
use crate::router::{DeviceId, ExportInfo};
use crate::store::format::{Manifest, Sections};
use crate::units::SECTOR_BYTES;

/// The result of writing back an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Flushed {
    /// The name of the export.
    pub name: String,
    /// Every write of the export up to this sequence number is in the store.
    pub sequence_number: u64,
}

/// The result of writing back all exports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Drained {
    /// Number of exports with all data in the store.
    #[schema(format = Int64)]
    pub flushed: usize,
    /// Number of the exports in `flushed` with a device. An export with a device stays with this host.
    #[schema(format = Int64)]
    pub kept: usize,
    /// For each other export: why writing back failed.
    pub failed: Vec<String>,
}

/// A snapshot of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// The name of the export.
    pub export: String,
    /// The name of the snapshot.
    pub name: String,
    /// When the snapshot was created, RFC 3339 in UTC.
    #[schema(format = DateTime)]
    pub created: String,
}

/// A volume in the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredExport {
    /// The name of the volume.
    pub name: String,
    /// Whether this daemon has the volume open.
    pub open_here: bool,
}

/// A volume in the store, as its newest manifest there shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StoredVolume {
    /// The name of the volume.
    pub name: String,
    /// Whether this daemon has the volume open.
    pub open_here: bool,
    /// Size of the volume, bytes.
    pub size_bytes: u64,
    /// The name of the host that has the volume, or had it last if it is released. Left out where that host did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub host: Option<String>,
    /// Whether any host may open the volume without taking it over.
    pub released: bool,
    /// The durability of an acknowledged FLUSH.
    pub durability: Durability,
    /// How a READ behaves that needs a store that is away: wait or fail.
    #[schema(value_type = String, example = "wait")]
    pub on_unreachable: OnUnreachable,
    /// The limits; left out without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limits: Option<Limits>,
    /// The part where exports share.
    pub weight: u16,
}

impl StoredVolume {
    /// The volume called `name`, the newest manifest of which is `newest`.
    pub(in crate::api) fn of(name: String, open_here: bool, newest: &Manifest) -> Self {
        let Sections { holder, properties, .. } = &newest.sections;
        Self {
            name,
            open_here,
            size_bytes: newest.size_sectors.saturating_mul(SECTOR_BYTES),
            host: holder.as_ref().map(|holder| holder.host.to_string()),
            released: holder.as_ref().is_some_and(|holder| holder.released),
            durability: properties.durability,
            on_unreachable: properties.on_unreachable,
            limits: Limits::of(&properties.settings.limits),
            weight: properties.settings.weight,
        }
    }
}

/// A deleted volume that can be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeletedExport {
    /// The name before the deletion.
    pub name: String,
    /// The id of the volume in the store, 32 hex digits.
    pub volume: String,
    /// Size of the volume, bytes.
    pub size_bytes: u64,
    /// When the volume was deleted, RFC 3339 in UTC.
    #[schema(format = DateTime)]
    pub deleted: String,
    /// The volume can surely be restored until then, RFC 3339 in UTC.
    #[schema(format = DateTime)]
    pub kept_until: String,
}

/// An export: parameters, state and device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Export {
    /// The name of the export.
    pub name: String,
    /// The id of the export on this host, never used again.
    pub id: u32,
    /// Size of the export, bytes.
    pub size_bytes: u64,
    /// Whether nothing was ever written to the export: every byte reads as zero. False also where this is not known, as of an export
    /// that is not serving.
    #[serde(default)]
    #[schema(required)]
    pub blank: bool,
    /// Path of the block device; null while the export has none.
    #[schema(required)]
    pub device: Option<String>,
    /// Stable path of the block device, `/dev/glidefs/NAME`: a symlink, which led to the device when the export got the device. Left out
    /// without a device, and without a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub path: Option<String>,
    /// Why the device has no stable path. Left out with a path, and without a device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub no_path: Option<String>,
    /// The state: creating, recovering, waiting, attaching, serving, detaching, detached, failed or deleting.
    pub state: String,
    /// Why the last operation failed, in state failed.
    #[schema(required)]
    pub reason: Option<String>,
    /// Number of queues of the device.
    pub queues: u16,
    /// Most requests in flight per queue.
    pub queue_depth: u16,
    /// When the export was created, RFC 3339 in UTC.
    #[schema(format = DateTime)]
    pub created: String,
    /// The durability of an acknowledged FLUSH.
    #[serde(default)]
    #[schema(required)]
    pub durability: Durability,
    /// How a READ behaves that needs a store that is away: wait or fail.
    #[serde(default)]
    #[schema(required, value_type = String, example = "wait")]
    pub on_unreachable: OnUnreachable,
    /// Only in the answer to an opening, an undeletion or a fork: that neither request nor store named a durability, so that the
    /// usual properties were assumed. Left out otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub assumed: Option<String>,
    /// The limits of the export; left out without any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub limits: Option<Limits>,
    /// The export's part where exports share: twice the weight gets twice as much.
    #[serde(default = "default_weight")]
    #[schema(required)]
    pub weight: u16,
    /// Why the release in the store failed when the export was detached. Another host cannot open the export without taking
    /// over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub unreleased: Option<String>,
    /// Bytes whose content was lost before the store had the content, as of the last writeback. Reads of these bytes fail
    /// until they are written again or discarded. Left out without a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub damaged_bytes: Option<u64>,
    /// The data of the export that is not in the store. Left out if all data is in the store, or without a store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub at_risk: Option<AtRisk>,
    /// The resource for which writes of the export wait: "index", memory for the index, or "log", log space for data that is not
    /// in the store. Left out if writes do not wait for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub waiting_for: Option<String>,
    /// How long requests of the device waited when the daemon took over from a daemon before, seconds. Left out after a start of any
    /// other kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub last_pause_seconds: Option<f64>,
}

/// The weight of an export whose daemon knows no weights.
const fn default_weight() -> u16 {
    Settings::WEIGHT_DEFAULT
}

impl From<ExportInfo> for Export {
    fn from(info: ExportInfo) -> Self {
        let (path, no_path) = match info.path {
            Some(Ok(path)) => (Some(path), None),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, None),
        };
        Self {
            name: info.name.to_string(),
            id: info.id.0,
            size_bytes: info.size_bytes,
            blank: info.is_blank,
            device: info.device.map(DeviceId::path),
            path,
            no_path,
            state: info.state.name().into(),
            reason: info.state.reason().map(Into::into),
            queues: info.queues,
            queue_depth: info.queue_depth,
            created: rfc3339(info.created_unix_millis),
            durability: info.properties.durability,
            on_unreachable: info.properties.on_unreachable,
            assumed: None,
            limits: Limits::of(&info.properties.settings.limits),
            weight: info.properties.settings.weight,
            unreleased: info.unreleased,
            damaged_bytes: info.damaged_bytes,
            at_risk: info.at_risk,
            waiting_for: info.waiting_for.map(|resource| resource.name().into()),
            last_pause_seconds: info.pause.map(|pause| pause.as_secs_f64()),
        }
    }
}

/// The result of a deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Deleted {
    /// The name of the deleted export or snapshot.
    pub name: String,
    /// Whether the export or snapshot existed.
    pub existed: bool,
}
