//! One export in memory, and the right to change the export.
//!
//! Owns the pairing of state and record. Invariants: an [`ExportEntry`] is changed only through a [`HeldExport`]; the record in
//! memory is never ahead of the record in the catalog.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard};

use super::catalog::Catalog;
use super::catalog::error::CatalogError;
use super::catalog::record::{Desired, ExportRecord};
use super::devices::DeviceError;
use super::error::{RouterError, ways_out};
use super::info::{ExportInfo, Glance};
use super::name::ExportName;
use super::state::{Event, ForbiddenTransition, State};
use crate::cache::Volume;
use crate::export::Export;
use crate::locks::MutexExt;
use crate::observe::chain;
use crate::observe::memory::heap_bytes;
use crate::store::volume::Loss;

/// One export in memory.
#[derive(Debug)]
pub(super) struct ExportEntry {
    name: ExportName,
    export: Arc<Export>,
    operation: Arc<tokio::sync::Mutex<()>>,
    status: Mutex<Status>,
}

#[derive(Debug)]
struct Status {
    state: State,
    record: ExportRecord,
    /// Why the export could not be released in the store.
    unreleased: Option<String>,
    /// Whether the store answers other questions, but not whose this export is.
    silent: bool,
    /// Whether the export was removed from memory. Whoever waited for the right to change the export looks the name up again.
    gone: bool,
}

/// The right to change an export: the operation lock, and a guard that delays the end of the daemon.
#[derive(Debug)]
pub(super) struct HeldExport {
    entry: Arc<ExportEntry>,
    _operation: OwnedMutexGuard<()>,
    gate: OwnedRwLockReadGuard<bool>,
}

impl ExportEntry {
    fn new(name: ExportName, record: ExportRecord, volume: Arc<Volume>, state: State) -> Arc<Self> {
        volume.set_durability(record.durability());
        volume.set_on_unreachable(record.on_unreachable());
        let export = Export::new(record.export_id(), record.name.clone(), record.size_bytes, volume);
        export.set_settings(&record.settings());
        Arc::new(Self {
            name,
            export: Arc::new(export),
            operation: Arc::default(),
            status: Mutex::new(Status { state, record, unreleased: None, silent: false, gone: false }),
        })
    }

    pub fn name(&self) -> &ExportName {
        &self.name
    }

    pub fn export(&self) -> &Arc<Export> {
        &self.export
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
        let status = self.status();
        let record = &status.record;
        ExportInfo {
            id: record.export_id(),
            name: self.name.clone(),
            size_bytes: record.size_bytes,
            queues: record.queues,
            queue_depth: record.queue_depth,
            device: (status.state.has_device() && record.device.boot_id.is_some())
                .then(|| record.device_id()),
            state: self.lost().unwrap_or_else(|| status.state.clone()),
            created_unix_millis: record.created_unix_millis,
            durability: record.durability(),
            on_unreachable: record.on_unreachable(),
            settings: record.settings(),
            unreleased: status.unreleased.clone(),
            damaged_bytes: self.export.volume().damaged_bytes(),
            at_risk: self.export.volume().at_risk(),
            is_index_full: self.export.volume().index_figures().is_full,
        }
    }

    /// Memory of the export, without the index of the volume, bytes.
    pub fn memory_bytes(&self) -> u64 {
        let names = heap_bytes(self.status().record.name.len()) + heap_bytes(self.name.as_str().len());
        // The router's map has a name and a pointer for each export, in nodes half to wholly full.
        let in_map =
            heap_bytes(self.name.as_str().len()) + (size_of::<ExportName>() + size_of::<Arc<Self>>()) * 3 / 2;
        let own =
            heap_bytes(size_of::<Self>()) + heap_bytes(size_of::<tokio::sync::Mutex<()>>()) + names + in_map;
        self.export.memory_bytes().saturating_add(own as u64)
    }

    /// The part of [`Self::info`] that is made without an allocation.
    pub fn glance(&self) -> Glance {
        let volume = self.export.volume();
        let is_lost =
            volume.lost().is_some() && volume.remote().is_some_and(|remote| remote.loss().is_some());
        let status = self.status();
        let state = if is_lost { State::FAILED } else { status.state.name() };
        Glance { state, may_have_device: status.state != State::Detached }
    }

    /// The state to show for an export lost to another host or history: the device fails all requests.
    fn lost(&self) -> Option<State> {
        let volume = self.export.volume();
        let why = match (volume.lost()?, volume.remote()?.loss()?) {
            (_, Loss::Diverged(both)) => {
                format!("the store and this host have two histories of the export: {both}")
            }
            (_, Loss::Deleted) => "the export was deleted from the store".into(),
            (_, Loss::Fenced(fence)) => format!("another host has taken the export over ({fence})"),
        };
        let figures = volume.figures();
        let name = &self.name;
        Some(State::Failed {
            reason: format!(
                "{why}. Here are sequence numbers up to {}, and {} bytes that were not written back, which stay in this host's cache \
                 until the export is deleted here. {}",
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

    /// A new export, in the state before the first device.
    pub fn created(
        name: ExportName,
        record: ExportRecord,
        volume: Arc<Volume>,
        gate: OwnedRwLockReadGuard<bool>,
    ) -> Self {
        let entry = ExportEntry::new(name, record, volume, State::Creating);
        Self::at_once(entry, gate)
    }

    /// The entry of a replaced export without a device. The old entry is marked as gone.
    pub fn replaced(self, record: ExportRecord, volume: Arc<Volume>) -> Self {
        let entry = ExportEntry::new(self.entry.name.clone(), record, volume, State::Detached);
        self.mark_gone();
        Self::at_once(entry, self.gate)
    }

    /// An export from the catalog, in the state of the step that the wish in the record asks for.
    pub fn loaded(
        name: ExportName,
        record: ExportRecord,
        volume: Arc<Volume>,
        gate: OwnedRwLockReadGuard<bool>,
    ) -> Self {
        let state = match record.desired {
            Desired::Attached => State::Recovering,
            Desired::Detached => State::Detaching,
            Desired::Deleted => State::Deleting,
        };
        Self::at_once(ExportEntry::new(name, record, volume, state), gate)
    }

    /// Holds a new entry, which nobody else knows yet.
    fn at_once(entry: Arc<ExportEntry>, gate: OwnedRwLockReadGuard<bool>) -> Self {
        let operation = Arc::clone(&entry.operation);
        #[expect(clippy::expect_used, reason = "the lock was made a moment ago and nobody else has it")]
        let operation = operation.try_lock_owned().expect("a lock nobody else knows of is free");
        Self { entry, _operation: operation, gate }
    }

    pub fn entry(&self) -> &Arc<ExportEntry> {
        &self.entry
    }

    /// The record in the catalog.
    pub fn record(&self) -> ExportRecord {
        self.entry.status().record.clone()
    }

    /// Whether the export was removed from memory while the right was waited for.
    pub fn is_gone(&self) -> bool {
        self.entry.status().gone
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
            catalog.put(record.clone()).await?;
            self.entry.status().record = record;
        }
        Ok(())
    }

    /// Moves to the failed state because of `error`, logs the error, and gives the error back.
    pub fn failed<T>(&self, error: RouterError) -> Result<T, RouterError> {
        let reason = chain(&error);
        tracing::error!(export = %self.entry.name(), error = %reason, "operation on an export failed");
        self.step(Event::Fail { reason })?;
        Err(error)
    }

    /// The error of `action` on the export's device.
    pub fn device_error(&self, action: &'static str, source: DeviceError) -> RouterError {
        RouterError::Device { action, name: self.entry.name().to_string(), source }
    }
}
