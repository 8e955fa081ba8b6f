//! How an export comes into being: created, opened from the store, undeleted, forked, rescued.
//!
//! Owns the order of steps: the volume is created or opened in the store, then the export is written to the catalog, then the
//! device is made, unless the export is to be detached. Does not own devices (`operations`) nor volumes (`storage`). Invariants:
//! nothing is left of an export that certainly got no device, unless the store may have a change that only the catalog explains;
//! a volume left by a creation that stopped is changed only when the catalog has the export.

use std::sync::Arc;

use tokio::sync::OwnedRwLockReadGuard;

use super::background::finish;
use super::catalog::change::Change;
use super::catalog::record::{Desired, DeviceRecord, ExportRecord};
use super::devices::DeviceError;
use super::entry::{ExportInfo, HeldExport};
use super::error::RouterError;
use super::size::ExportSize;
use super::state::{Event, State};
use super::storage::InitialContent;
use super::{ExportName, QUEUE_DEPTH_MAX, QUEUES_MAX, Router, RouterOptions};
use crate::locks::RwLockExt;
use crate::properties::limits::OutOfBounds;
use crate::properties::{Durability, Properties, PropertiesChange};
use crate::store::volume::Resume;
use crate::units::{SECTOR_BYTES, unix_millis};

/// The parameters of a new export.
#[derive(Clone, Debug)]
pub struct CreateExport {
    /// The export's name.
    pub name: ExportName,
    /// The content that the export begins with, which determines the size.
    pub content: InitialContent,
    /// Changes to the defaults (a blank export) or to the volume's own (all others).
    pub properties: PropertiesChange,
    /// Queues of the device; one when not given.
    pub queues: Option<u64>,
    /// Most requests in flight per queue; the configured default when not given.
    pub queue_depth: Option<u64>,
    /// Whether the export gets no device before the first attach.
    pub detached: bool,
}

/// The data that a new export begins with.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own about the new export")]
struct InitialState {
    size: ExportSize,
    /// The state of the volume in the store; `None` without a store.
    resume: Option<Resume>,
    /// Whether another host may open the volume.
    is_released: bool,
    /// Whether the export begins with zeroes.
    is_blank: bool,
    /// Whether the volume was created for this export, rather than opened.
    is_new: bool,
    properties: Properties,
    /// Whether the store has other properties of the volume.
    has_other_properties: bool,
    /// True if the volume is not blank, the store names no properties, and the request no durability.
    is_assumed: bool,
}

impl InitialState {
    /// Whether the store has the size and the properties.
    fn is_known_to_store(&self) -> bool {
        let has_size = |resume: &Resume| resume.size_sectors == self.size.bytes() / SECTOR_BYTES;
        self.resume.as_ref().is_none_or(has_size) && !self.has_other_properties
    }
}

/// The result of [`Router::create`].
#[derive(Clone, Debug)]
pub struct CreatedExport {
    /// The export.
    pub info: ExportInfo,
    /// Whether the export existed before, with the same parameters.
    pub existed: bool,
    /// Whether the properties are the usual ones only because neither request nor store names others. The store names none of a
    /// volume with the usual ones, nor of one that a glidefs without properties in its manifests has made.
    pub is_assumed: bool,
}

/// The catalog record of a new export.
fn new_record(
    id: u32,
    number: u32,
    request: &CreateExport,
    initial: &InitialState,
    options: &RouterOptions,
) -> ExportRecord {
    // Checked against bounds that fit.
    let narrow = |value: Option<u64>| value.and_then(|value| u16::try_from(value).ok());
    let mut record = ExportRecord {
        id,
        name: request.name.to_string(),
        size_bytes: initial.size.bytes(),
        queues: narrow(request.queues).unwrap_or(1),
        queue_depth: narrow(request.queue_depth).unwrap_or(options.queue_depth_default),
        desired: if request.detached { Desired::Detached } else { Desired::Attached },
        device: DeviceRecord {
            number,
            boot_id: (!request.detached).then(|| options.boot_id.clone()),
            size_bytes: initial.size.bytes(),
        },
        created_unix_millis: unix_millis(),
        flush_waits_for_store: false,
        bound: None,
        reads_fail_after_millis: None,
        limits: None,
        weight: None,
        rolls_back_to: None,
        // Before the first device a manifest is made, and then the store has the properties.
        may_be_released: initial.is_released || initial.has_other_properties,
    };
    record.set_properties(&initial.properties);
    record
}

impl Router {
    /// Creates an export and its device, or only the export if it is to be detached. An existing export of the same name and
    /// parameters is the answer; if an earlier attempt at its device had failed, the device is made now.
    pub async fn create(self: &Arc<Self>, request: CreateExport) -> Result<CreatedExport, RouterError> {
        check_parameter("queues", request.queues, QUEUES_MAX)?;
        check_parameter("queue_depth", request.queue_depth, QUEUE_DEPTH_MAX)?;
        request.properties.check()?;
        let router = Arc::clone(self);
        finish(request.name.to_string(), async move { router.create_now(request).await }).await
    }

    async fn create_now(self: Arc<Self>, request: CreateExport) -> Result<CreatedExport, RouterError> {
        // Two creations at once would take the volume in the store from each other.
        let lock = self.name_locks.of(&request.name);
        let _lock = lock.lock().await;
        loop {
            let gate = self.enter().await?;
            let Some(entry) = self.entry(request.name.as_str()) else {
                self.exports.read_whole().check_room()?;
                let initial = self.begin(&request).await?;
                // The name is still free: only a creation, which has the lock of the name, gives it to an export.
                let held = self.add(&request, &initial, gate)?;
                self.bring_into_being(&held, &initial).await?;
                let is_assumed = initial.is_assumed;
                return Ok(CreatedExport { info: held.entry.info(), existed: false, is_assumed });
            };
            let held = HeldExport::wait(entry, gate).await;
            if !held.is_gone() {
                self.answer_existing(&held, &request).await?;
                return Ok(CreatedExport { info: held.entry.info(), existed: true, is_assumed: false });
            }
        }
    }

    /// Checks that an existing export is the one that `request` asks for, and makes its device if an earlier attempt failed.
    async fn answer_existing(&self, held: &HeldExport, request: &CreateExport) -> Result<(), RouterError> {
        let record = held.record();
        let compared = compare(&record, request);
        let opens_volume = request.content.opens_volume();
        if opens_volume || compared.is_err() {
            // An export that another host has is not to be compared with, let alone changed.
            self.store_confirms(&held.entry).await?;
        }
        compared?;
        if matches!(request.content, InitialContent::Deleted { .. }) {
            return Err(RouterError::NameInUse { name: record.name });
        }
        if opens_volume && !held.entry.is_stored() {
            return Err(RouterError::NotInStore { name: record.name });
        }
        let failed = matches!(held.entry.state(), State::Failed { .. });
        if failed && record.desired != Desired::Detached {
            if record.desired == Desired::Attached {
                self.may_serve(held, true).await?;
            }
            self.attach_held(held).await?;
        }
        Ok(())
    }

    /// Creates or opens the volume of a new export in the store, if there is a store.
    async fn begin(&self, request: &CreateExport) -> Result<InitialState, RouterError> {
        let mut origin = None;
        if let InitialContent::Fork { of, snapshot } = &request.content
            && let Some(entry) = self.entry(of.as_str())
            && !entry.is_lost()
        {
            // Another host may give the name to another volume meanwhile.
            origin = entry.volume_id();
            if snapshot.is_none() {
                self.unless_stopping(self.write_back(of.as_str())).await?;
            }
        }
        let blank = request.properties.applied_to(&Properties::default());
        let begun = if let InitialContent::Local { of, manifest } = &request.content {
            Some(self.unless_stopping(self.rescue(&request.name, of, *manifest)).await?)
        } else {
            let (name, content) = (request.name.clone(), request.content.clone());
            let begin = self.storage.begin(name, content, origin, blank, request.detached);
            self.ask(request.name.as_str(), begin).await?
        };
        let is_released = begun.as_ref().is_some_and(|begun| begun.is_released);
        let is_blank = matches!(request.content, InitialContent::Blank(_));
        let in_store = begun.as_ref().map(|begun| begun.properties);
        let properties = match in_store {
            Some(in_store) if !is_blank => request.properties.applied_to(&in_store),
            _ => blank,
        };
        let resume = begun.map(|begun| begun.resume);
        if properties.durability != Durability::Local && resume.is_none() {
            return Err(RouterError::NoStore);
        }
        let is_assumed = !is_blank
            && !matches!(request.content, InitialContent::Local { .. })
            && in_store == Some(Properties::default())
            && request.properties.durability.is_none();
        if is_assumed {
            tracing::info!(export = %request.name, "the store names no properties of a volume: the usual ones are assumed");
        }
        let size = match (&request.content, &resume) {
            (InitialContent::Blank(size), _) => *size,
            (_, Some(resume)) => ExportSize::new(resume.size_sectors.saturating_mul(SECTOR_BYTES))?,
            (_, None) => return Err(RouterError::NoStore),
        };
        Ok(InitialState {
            size,
            resume,
            is_released,
            is_blank,
            is_new: !request.content.opens_volume()
                && !matches!(request.content, InitialContent::Deleted { .. }),
            properties,
            has_other_properties: in_store.is_some_and(|in_store| in_store != properties),
            is_assumed,
        })
    }

    /// Adds a new export, whose name is not in use, to the exports in memory.
    fn add(
        &self,
        request: &CreateExport,
        initial: &InitialState,
        gate: OwnedRwLockReadGuard<bool>,
    ) -> Result<HeldExport, RouterError> {
        let mut exports = self.exports.write_whole();
        exports.check_room()?;
        let id = exports.take_id()?;
        let number = exports.numbers.take_lowest();
        let record = new_record(id, number, request, initial, &self.options);
        let held =
            HeldExport::new(request.name.clone(), record, initial.resume.clone(), State::Creating, gate);
        // Only an export that begins with zeroes and gets no device needs nothing but the record.
        if !(request.detached && initial.is_blank && initial.is_known_to_store()) {
            self.open(&held.entry);
        }
        exports.insert(Arc::clone(&held.entry));
        Ok(held)
    }

    /// Writes a new export to the catalog, and makes its device if the export is to have one.
    async fn bring_into_being(&self, held: &HeldExport, initial: &InitialState) -> Result<(), RouterError> {
        if let Err(error) = self.catalog.change(Change::Create(held.record(), initial.resume.clone())).await {
            self.forget(held);
            return Err(error.into());
        }
        if held.record().desired == Desired::Attached {
            return self.first_attach(held, initial).await;
        }
        held.step(Event::NoDevice)?;
        tracing::info!(export = %held.entry.name, "export created, without a device");
        // A volume left by an earlier creation may have another size.
        if !(initial.is_released && initial.is_known_to_store()) {
            self.release(held).await;
        }
        Ok(())
    }

    /// Makes the device of a new export. Removes the export again if there is certainly no device.
    async fn first_attach(&self, held: &HeldExport, initial: &InitialState) -> Result<(), RouterError> {
        // An earlier creation may have left the volume to any host.
        if let Err(error) = self.take_back(held).await {
            let is_lost = matches!(error, RouterError::Lost { .. });
            if is_lost && self.catalog.change(Change::Remove(held.record().export_id())).await.is_ok() {
                self.forget(held);
                return Err(error);
            }
            // The store may have a second manifest, which refuses a creation without a record.
            return held.failed(error);
        }
        let Err(error) = self.make_device(held).await else {
            tracing::info!(export = %held.entry.name, device_id = held.record().device.number, "export created");
            return Ok(());
        };
        let nothing_made = matches!(
            &error,
            RouterError::Device {
                source: DeviceError::NoDriver
                    | DeviceError::NoPermission
                    | DeviceError::LimitReached
                    | DeviceError::BrokenKernel { .. }
                    | DeviceError::Stuck { .. },
                ..
            }
        );
        // A volume that was opened existed before, and stays; this host has it no more once its catalog does not.
        let may_go = nothing_made && (initial.is_new || self.obstacle(held).await.is_none());
        if may_go && self.catalog.change(Change::Remove(held.record().export_id())).await.is_ok() {
            if initial.is_new
                && let Err(source) = self.storage.delete(Arc::clone(self.open(&held.entry).volume())).await
            {
                let error = &source as &dyn std::error::Error;
                tracing::warn!(export = %held.entry.name, error, "a new volume stays in the store");
            }
            self.forget(held);
            return Err(error);
        }
        held.failed(error)
    }
}

/// Refuses a value that is 0 or above `max`.
pub(super) fn check_parameter(
    parameter: &'static str,
    value: Option<u64>,
    max: u16,
) -> Result<(), OutOfBounds> {
    let max = max.into();
    match value {
        Some(value) if value == 0 || value > max => Err(OutOfBounds { parameter, value, min: 1, max }),
        _ => Ok(()),
    }
}

/// Checks that the existing export has the parameters of `request`. A parameter not given fits any value.
fn compare(record: &ExportRecord, request: &CreateExport) -> Result<(), RouterError> {
    let size = match request.content {
        InitialContent::Blank(size) => Some(size.bytes()),
        _ => None,
    };
    let pairs = [
        ("size", record.size_bytes, size),
        ("queues", record.queues.into(), request.queues),
        ("queue_depth", record.queue_depth.into(), request.queue_depth),
    ];
    request.properties.compare(&record.name, &record.properties())?;
    for (parameter, existing, wanted) in pairs {
        if let Some(wanted) = wanted
            && wanted != existing
        {
            return Err(RouterError::OtherParameter {
                name: record.name.clone(),
                parameter,
                existing,
                wanted,
            });
        }
    }
    Ok(())
}
