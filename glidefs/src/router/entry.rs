//! One export in memory, what users see of it, and the right to change it.
//!
//! Owns the pairing of state and record, and when the parts that I/O needs are made: an export *at rest* is a record, a state and
//! the position in the store, and has neither an [`Export`] nor a volume in the cache. Invariants: an [`ExportEntry`] is changed
//! only through a [`HeldExport`]; the record in memory is never ahead of the record in the catalog; an export has an [`Export`]
//! from the first operation on that needs one, and then until the export is removed from memory.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard};

use super::ExportName;
use super::catalog::Catalog;
use super::catalog::change::Change;
use super::catalog::error::CatalogError;
use super::catalog::record::{Desired, ExportRecord};
use super::devices::{DeviceError, DeviceId, PATHS_FOLDER};
use super::error::{RouterError, ways_out};
use super::state::{Event, ForbiddenTransition, State};
use super::storage::Storage;
use crate::cache::{AtRisk, Resource};
use crate::export::Export;
use crate::locks::MutexExt;
use crate::observe::chain;
use crate::observe::memory::heap_bytes;
use crate::properties::Properties;
use crate::store::VolumeId;
use crate::store::volume::{Loss, Resume};
use crate::units::ExportId;

/// One export in memory.
#[derive(Debug)]
pub(super) struct ExportEntry {
    pub id: ExportId,
    pub name: ExportName,
    /// Set under the lock of `status`; unset while the export is at rest.
    export: OnceLock<Arc<Export>>,
    operation: Arc<tokio::sync::Mutex<()>>,
    status: Mutex<Status>,
}

#[derive(Debug)]
struct Status {
    state: State,
    record: ExportRecord,
    /// The state of the volume in the store, for the volume's writer to go on from. `None` without a store, and once the export is
    /// not at rest: the writer knows newer states.
    resume: Option<Box<Resume>>,
    /// Devices of the export, or perhaps of the export, under other numbers than the record's.
    strays: Vec<DeviceId>,
    /// Whether the device has its stable path, or why not; `None` before the device is made.
    path: Option<Result<(), Box<str>>>,
    /// Why the export could not be released in the store.
    unreleased: Option<String>,
    /// How long requests of the device waited for an upgrade.
    pause: Option<Duration>,
    /// Whether the store answers other questions, but not whose this export is.
    silent: bool,
    /// Whether the export was removed from memory. Whoever waited for the right to change the export looks the name up again.
    gone: bool,
}

/// The right to change an export: the operation lock, and a guard that delays the end of the daemon.
#[derive(Debug)]
pub(super) struct HeldExport {
    pub entry: Arc<ExportEntry>,
    _operation: OwnedMutexGuard<()>,
    gate: OwnedRwLockReadGuard<bool>,
}

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
    /// Memory of the export, without the index of the volume, bytes.
    pub memory_bytes: u64,
    /// The parts that I/O needs; `None` for an export at rest, of which all data is in the store.
    pub export: Option<&'a Export>,
}

impl ExportEntry {
    /// An export at rest.
    fn new(name: ExportName, record: ExportRecord, resume: Option<Resume>, state: State) -> Arc<Self> {
        let id = record.export_id();
        let resume = resume.map(|resume| Box::new(Resume { manifest: None, ..resume }));
        let status = Status {
            state,
            record,
            resume,
            strays: Vec::new(),
            path: None,
            unreleased: None,
            pause: None,
            silent: false,
            gone: false,
        };
        Arc::new(Self {
            id,
            name,
            export: OnceLock::new(),
            operation: Arc::default(),
            status: Mutex::new(status),
        })
    }

    /// The parts that I/O needs; `None` for an export at rest.
    pub fn export(&self) -> Option<&Arc<Export>> {
        self.export.get()
    }

    /// The parts that I/O needs, made now if the export is at rest.
    pub fn open(&self, storage: &dyn Storage) -> &Arc<Export> {
        if let Some(export) = self.export.get() {
            return export;
        }
        // Under the lock, so that whoever changes the record meanwhile finds the export made with the old record.
        let mut status = self.status();
        let export = self.export.get_or_init(|| {
            let record = &status.record;
            let properties = record.properties();
            let volume = storage.volume(self.id, record.size_bytes, status.resume.as_deref());
            volume.set_properties(&properties, false);
            let export = Export::new(self.id, record.name.clone(), record.size_bytes, volume);
            export.set_settings(&properties.settings);
            Arc::new(export)
        });
        status.resume = None;
        export
    }

    /// Whether the export has a volume in the store.
    pub fn is_stored(&self) -> bool {
        self.volume_id().is_some()
    }

    /// The export's volume in the store.
    pub fn volume_id(&self) -> Option<VolumeId> {
        // An export is made before the state of its volume goes, both under the lock.
        let resumable = self.status().resume.as_ref().map(|resume| resume.volume);
        resumable.or_else(|| Some(self.export()?.volume().remote()?.id()))
    }

    /// Whether another host or history is known to have the export.
    pub fn is_lost(&self) -> bool {
        self.export().is_some_and(|export| export.volume().lost().is_some())
    }

    /// Data at risk. An export at rest has none.
    fn at_risk(&self) -> Option<AtRisk> {
        self.export()?.volume().at_risk()
    }

    /// Whether the export needs no step at the start, and no parts for I/O: no device, as the user wants, and all data in the
    /// store.
    pub fn is_settled(&self) -> bool {
        let is_detached = {
            let Status { record, strays, .. } = &*self.status();
            record.desired == Desired::Detached && record.device.boot_id.is_none() && strays.is_empty()
        };
        is_detached && self.at_risk().is_none()
    }

    /// The snapshot of an unfinished rollback.
    pub fn rolls_back_to(&self) -> Option<String> {
        self.status().record.rolls_back_to.clone()
    }

    /// Whether the export may have been released in the store.
    pub fn may_be_released(&self) -> bool {
        self.status().record.may_be_released
    }

    /// Notes that the store answers other questions, but not whose this export is.
    pub fn set_silent(&self) {
        self.status().silent = true;
    }

    /// Whether the export waits because the store is away. `false` for an export that waits although the store answers other
    /// questions.
    pub fn waits_for_store(&self) -> bool {
        let status = self.status();
        status.state == State::Waiting && !status.silent
    }

    pub fn state(&self) -> State {
        self.status().state.clone()
    }

    /// The export as users see it.
    pub fn info(&self) -> ExportInfo {
        let (is_stored, volume) = (self.is_stored(), self.export().map(|export| export.volume()));
        let damaged_bytes = match volume {
            Some(volume) => volume.damaged_bytes(),
            // With damage the export would not be at rest.
            None => is_stored.then_some(0),
        };
        let is_blank = volume.is_some_and(|volume| volume.is_blank());
        let status = self.status();
        let record = &status.record;
        let device =
            (status.state.has_device() && record.device.boot_id.is_some()).then(|| record.device_id());
        let path = || match status.path.as_ref()? {
            Ok(()) => Some(Ok(format!("{PATHS_FOLDER}/{}", self.name))),
            Err(reason) => Some(Err(reason.to_string())),
        };
        let state = self.lost().unwrap_or_else(|| status.state.clone());
        ExportInfo {
            id: self.id,
            name: self.name.clone(),
            size_bytes: record.size_bytes,
            is_blank: is_blank && state == State::Serving,
            queues: record.queues,
            queue_depth: record.queue_depth,
            device,
            path: device.and_then(|_| path()),
            state,
            created_unix_millis: record.created_unix_millis,
            properties: record.properties(),
            unreleased: status.unreleased.clone(),
            damaged_bytes,
            at_risk: self.at_risk(),
            waiting_for: self.export().and_then(|export| export.volume().waits_for()),
            pause: status.pause,
        }
    }

    /// The export for one scrape: takes short locks, one after the other, and allocates nothing.
    pub fn glance(&self) -> Glance<'_> {
        let status = self.status();
        // Read under the lock: with the beginning of the export the state of the volume leaves the status.
        let export = self.export();
        let mut glance = Glance {
            name: self.name.as_str(),
            size_bytes: status.record.size_bytes,
            state: status.state.name(),
            may_have_device: status.state != State::Detached,
            is_stored: status.resume.is_some(),
            loss: None,
            memory_bytes: self.own_bytes(&status),
            export: export.map(Arc::as_ref),
        };
        drop(status);
        let Some(export) = export else { return glance };
        let volume = export.volume();
        if let Some(remote) = volume.remote() {
            glance.is_stored = true;
            // The writer may notice a loss before the volume does, at a release for example.
            glance.loss = remote.loss();
        }
        if glance.loss.is_some() && volume.lost().is_some() {
            glance.state = State::FAILED;
        }
        glance.memory_bytes = glance.memory_bytes.saturating_add(export.memory_bytes());
        glance
    }

    /// How long requests of the device waited for an upgrade.
    pub fn pause(&self) -> Option<Duration> {
        self.status().pause
    }

    /// Memory of the export without the parts that I/O needs, bytes.
    fn own_bytes(&self, status: &Status) -> u64 {
        let record = &status.record;
        let boot_id = record.device.boot_id.as_ref().map_or(0, |id| heap_bytes(id.len()));
        let strings = heap_bytes(record.name.len()) + heap_bytes(self.name.as_str().len()) + boot_id;
        // The router's map has a name and a pointer for each export, in nodes half to wholly full.
        let in_map = (size_of::<ExportName>() + size_of::<Arc<Self>>()) * 3 / 2;
        let resume = status.resume.as_ref().map_or(0, |_| heap_bytes(size_of::<Resume>()));
        let no_path = status.path.as_ref().and_then(|path| path.as_ref().err());
        let own = heap_bytes(size_of::<Self>())
            + heap_bytes(size_of::<tokio::sync::Mutex<()>>())
            + strings
            + no_path.map_or(0, |reason| heap_bytes(reason.len()))
            + in_map;
        (own + resume) as u64
    }

    /// The state to show for an export lost to another host or history: the device fails all requests.
    fn lost(&self) -> Option<State> {
        let volume = self.export()?.volume();
        let why = match (volume.lost()?, volume.remote()?.loss()?) {
            (_, Loss::Diverged(both)) => {
                format!("the store and this host have two histories of the export: {both}")
            }
            (_, Loss::Deleted) => "the export was deleted from the store".into(),
            (_, Loss::Fenced(taker)) => format!("another host has taken the export over ({taker})"),
        };
        let figures = volume.figures();
        let name = &self.name;
        Some(State::Failed {
            reason: format!(
                "{why}. Here are sequence numbers up to {}, and {} bytes that were not written back, which stay in this host's \
                 cache. {}",
                figures.last_seq.0,
                figures.dirty_bytes,
                ways_out(name),
            ),
        })
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock_whole()
    }
}

impl HeldExport {
    /// Waits for the right to change `entry`.
    pub async fn wait(entry: Arc<ExportEntry>, gate: OwnedRwLockReadGuard<bool>) -> Self {
        let operation = Arc::clone(&entry.operation).lock_owned().await;
        Self { entry, _operation: operation, gate }
    }

    /// The right to change `entry`, unless somebody else has the right.
    pub fn try_now(entry: Arc<ExportEntry>, gate: OwnedRwLockReadGuard<bool>) -> Option<Self> {
        let operation = Arc::clone(&entry.operation).try_lock_owned().ok()?;
        Some(Self { entry, _operation: operation, gate })
    }

    /// The right to change a new export at rest, which nobody else knows yet.
    pub fn new(
        name: ExportName,
        record: ExportRecord,
        resume: Option<Resume>,
        state: State,
        gate: OwnedRwLockReadGuard<bool>,
    ) -> Self {
        let entry = ExportEntry::new(name, record, resume, state);
        let operation = Arc::clone(&entry.operation);
        #[expect(clippy::expect_used, reason = "the lock was made a moment ago and nobody else has it")]
        let operation = operation.try_lock_owned().expect("a lock nobody else knows of is free");
        Self { entry, _operation: operation, gate }
    }

    /// The entry of a replaced export without a device. The old entry is marked as gone.
    pub fn replaced(self, record: ExportRecord, resume: Resume) -> Self {
        self.mark_gone();
        Self::new(self.entry.name.clone(), record, Some(resume), State::Detached, self.gate)
    }

    /// The name, for an error.
    pub fn name(&self) -> String {
        self.entry.name.to_string()
    }

    /// The record in the catalog.
    pub fn record(&self) -> ExportRecord {
        self.entry.status().record.clone()
    }

    /// As [`Self::record`], of an export whose deletion has not begun.
    pub fn living_record(&self) -> Result<ExportRecord, RouterError> {
        let record = self.record();
        if record.desired == Desired::Deleted {
            return Err(RouterError::HalfDeleted { name: record.name });
        }
        Ok(record)
    }

    /// Devices of the export under other numbers than the record's (`strays`).
    pub fn strays(&self) -> Vec<DeviceId> {
        self.entry.status().strays.clone()
    }

    /// Notes a device of the export of which the catalog may know nothing.
    pub fn note_stray(&self, device: DeviceId) {
        let mut status = self.entry.status();
        if status.record.device_id() != device && !status.strays.contains(&device) {
            status.strays.push(device);
        }
    }

    /// Drops a device that is gone, or that the catalog knows now.
    pub fn forget_stray(&self, device: DeviceId) {
        self.entry.status().strays.retain(|&stray| stray != device);
    }

    /// Whether the export was removed from memory while the right was waited for.
    pub fn is_gone(&self) -> bool {
        self.entry.status().gone
    }

    /// Notes how long requests of the device have waited, once only: later waits have other reasons.
    pub fn set_pause(&self, pause: Duration) {
        self.entry.status().pause.get_or_insert(pause);
    }

    /// Notes whether the device has its stable path, or why not.
    pub fn set_path(&self, path: Result<(), String>) {
        self.entry.status().path = Some(path.map_err(String::into_boxed_str));
    }

    /// Notes why the export could not be released in the store; `None` after a release.
    pub fn set_unreleased(&self, reason: Option<String>) {
        self.entry.status().unreleased = reason;
    }

    /// Marks the export as removed from memory.
    pub fn mark_gone(&self) {
        self.entry.status().gone = true;
    }

    /// Moves to the state that follows `event`.
    pub fn step(&self, event: Event) -> Result<(), ForbiddenTransition> {
        let mut status = self.entry.status();
        status.state = status.state.after(event)?;
        Ok(())
    }

    /// Changes the record, in the catalog first and then in memory.
    pub async fn write(
        &self,
        catalog: &Catalog,
        change: impl FnOnce(&mut ExportRecord),
    ) -> Result<(), CatalogError> {
        let mut record = self.record();
        change(&mut record);
        if record != self.entry.status().record {
            catalog.change(Change::Put(record.clone())).await?;
            self.entry.status().record = record;
        }
        Ok(())
    }

    /// Moves to the failed state because of `error`, logs the error, and gives the error back.
    pub fn failed<T>(&self, error: RouterError) -> Result<T, RouterError> {
        let reason = chain(&error);
        tracing::error!(export = %self.entry.name, error = %reason, "operation on an export failed");
        self.step(Event::Fail { reason })?;
        Err(error)
    }

    /// The error of `action` on the export's device.
    pub fn device_error(&self, action: &'static str, source: DeviceError) -> RouterError {
        RouterError::Device { action, name: self.name(), source }
    }
}
