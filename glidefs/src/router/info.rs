//! One export as users see it.

use std::time::Duration;

use super::ExportName;
use super::devices::DeviceId;
use super::state::State;
use crate::cache::{AtRisk, Resource};
use crate::export::Export;
use crate::properties::Properties;
use crate::properties::limits::Limits;
use crate::store::volume::Loss;
use crate::units::ExportId;

/// One export as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Identity of the export in the cache.
    pub id: ExportId,
    pub name: ExportName,
    pub size_bytes: u64,
    /// Nothing was ever written, as far as known: only an export in service is known.
    pub is_blank: bool,
    pub queues: u16,
    /// Most requests in flight per queue.
    pub queue_depth: u16,
    /// The device; `None` without one.
    pub device: Option<DeviceId>,
    /// The stable path of the device, or why there is none; `None` without a device.
    pub path: Option<Result<String, String>>,
    /// The state of the life cycle; `Failed` for an export lost to another host or history.
    pub state: State,
    /// When the export was created, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
    pub properties: Properties,
    /// Why a detached export could not be released in the store.
    pub unreleased: Option<String>,
    /// Bytes whose content was lost before the store had them, as of the last writeback; `None` without a store.
    pub damaged_bytes: Option<u64>,
    /// Data at risk; `None` without a store.
    pub at_risk: Option<AtRisk>,
    /// The resource for which writes have to wait.
    pub waiting_for: Option<Resource>,
    /// How long requests of the device waited for the last start; known of an upgrade only.
    pub pause: Option<Duration>,
}

/// One export for the figures of a scrape.
#[derive(Clone, Debug)]
pub struct Glance<'a> {
    pub name: &'a str,
    pub size_bytes: u64,
    /// The name of the state in [`ExportInfo`].
    pub state: &'static str,
    /// Whether there may be a device: the export is not detached.
    pub may_have_device: bool,
    /// Whether the export has a volume in the store.
    pub is_stored: bool,
    /// Why the export was lost to another host or history, if so.
    pub loss: Option<Loss>,
    pub limits: Limits,
    /// Memory of the export, without the index of the volume, bytes.
    pub memory_bytes: u64,
    /// The parts that I/O needs; `None` for an export at rest, of which all data is in the store.
    pub export: Option<&'a Export>,
}
