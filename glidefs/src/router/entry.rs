//! One export in memory, and the right to change it.
//!
//! Owns the pairing of state and record. Invariants: only who holds an [`Entry`] as a [`Held`] changes it; the record in
//! memory is never ahead of the one in the catalog.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedMutexGuard, OwnedRwLockReadGuard};

use super::catalog::Catalog;
use super::name::ExportName;
use super::record::{Desired, Record};
use super::state::{Event, ForbiddenTransition, State};
use super::{CatalogError, ExportInfo};
use crate::cache::Volume;
use crate::export::Export;
use crate::store::volume::Loss;

/// One export.
#[derive(Debug)]
pub(super) struct Entry {
    name: ExportName,
    export: Arc<Export>,
    operation: Arc<tokio::sync::Mutex<()>>,
    status: Mutex<Status>,
}

#[derive(Debug)]
struct Status {
    state: State,
    record: Record,
    /// Why the store could not be told that this host gives the export up.
    unreleased: Option<String>,
    /// Whether the store, though it is there, does not say whose the export is.
    silent: bool,
    /// Whether the export has left the router; who waited for it looks its name up again.
    gone: bool,
}

/// The right to change an export: its operation lock, and a part in the daemon's life.
#[derive(Debug)]
pub(super) struct Held {
    entry: Arc<Entry>,
    _operation: OwnedMutexGuard<()>,
    gate: OwnedRwLockReadGuard<bool>,
}

impl Entry {
    fn new(name: ExportName, record: Record, volume: Arc<Volume>, state: State) -> Arc<Self> {
        volume.set_durability(record.durability());
        volume.set_on_unreachable(record.on_unreachable());
        let export = Export::new(record.export_id(), record.name.clone(), record.size_bytes, volume);
        Arc::new(Self {
            name,
            export: Arc::new(export),
            operation: Arc::default(),
            status: Mutex::new(Status { state, record, unreleased: None, silent: false, gone: false }),
        })
    }

    /// Its name.
    pub fn name(&self) -> &ExportName {
        &self.name
    }

    /// The export itself.
    pub fn export(&self) -> &Arc<Export> {
        &self.export
    }

    /// The snapshot that it is on its way back to.
    pub fn rolls_back_to(&self) -> Option<String> {
        self.status().record.rolls_back_to.clone()
    }

    /// Whether the export may be released in the store.
    pub fn may_be_released(&self) -> bool {
        self.status().record.may_be_released
    }

    /// Notes that the store, though it is there, does not say whose the export is.
    pub fn set_silent(&self) {
        self.status().silent = true;
    }

    /// Whether the export waits for the store, and not only for what the store has of this one export.
    pub fn waits_for_store(&self) -> bool {
        let status = self.status();
        status.state == State::Waiting && !status.silent
    }

    /// What it is doing.
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
            unreleased: status.unreleased.clone(),
            damaged_bytes: self.export.volume().damaged_bytes(),
            at_risk: self.export.volume().at_risk(),
        }
    }

    /// The state to show when another host has the export, or another history of it: the device fails all requests.
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
                "{why}. Here are sequence numbers up to {}, and {} bytes that were not stored, which stay in this host's cache \
                 until the export is deleted here. {}",
                figures.last_seq.0,
                figures.dirty_bytes,
                ways_out(name),
            ),
        })
    }

    fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the user can do about an export that was lost.
pub(super) fn ways_out(name: &impl std::fmt::Display) -> String {
    format!(
        "`glidefs export open {name} --discard-local` goes on with what is in the store; `glidefs export fork {name} NEW --local` \
         makes an export of what is here, `glidefs export fork {name} NEW` one of what is in the store"
    )
}

impl Held {
    /// Waits until nobody else changes `entry`.
    pub async fn wait(entry: Arc<Entry>, gate: OwnedRwLockReadGuard<bool>) -> Self {
        let operation = Arc::clone(&entry.operation).lock_owned().await;
        Self { entry, _operation: operation, gate }
    }

    /// A new export that is about to get its first device.
    pub fn created(
        name: ExportName,
        record: Record,
        volume: Arc<Volume>,
        gate: OwnedRwLockReadGuard<bool>,
    ) -> Self {
        let entry = Entry::new(name, record, volume, State::Creating);
        Self::at_once(entry, gate)
    }

    /// The same export with other data, which takes the place of this one; it has no device.
    pub fn replaced(self, record: Record, volume: Arc<Volume>) -> Self {
        let entry = Entry::new(self.entry.name.clone(), record, volume, State::Detached);
        self.mark_gone();
        Self::at_once(entry, self.gate)
    }

    /// An export from the catalog, in the state of what is to be done about it.
    pub fn loaded(
        name: ExportName,
        record: Record,
        volume: Arc<Volume>,
        gate: OwnedRwLockReadGuard<bool>,
    ) -> Self {
        let state = match record.desired {
            Desired::Attached => State::Recovering,
            Desired::Detached => State::Detaching,
            Desired::Deleted => State::Deleting,
        };
        Self::at_once(Entry::new(name, record, volume, state), gate)
    }

    /// Holds an entry that nobody else can know of yet.
    fn at_once(entry: Arc<Entry>, gate: OwnedRwLockReadGuard<bool>) -> Self {
        let operation = Arc::clone(&entry.operation);
        #[expect(clippy::expect_used, reason = "the lock was made a moment ago and nobody else has it")]
        let operation = operation.try_lock_owned().expect("a lock nobody else knows of is free");
        Self { entry, _operation: operation, gate }
    }

    /// The export that is held.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// What the catalog says.
    pub fn record(&self) -> Record {
        self.entry.status().record.clone()
    }

    /// Whether the export left the router while this was waited for.
    pub fn is_gone(&self) -> bool {
        self.entry.status().gone
    }

    /// Notes why the store could not be told that this host gives the export up, if it could not.
    pub fn set_unreleased(&self, reason: Option<String>) {
        self.entry.status().unreleased = reason;
    }

    /// Says that the export has left the router.
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
        change: impl FnOnce(&mut Record),
    ) -> Result<(), CatalogError> {
        let mut record = self.record();
        change(&mut record);
        if record != self.entry.status().record {
            catalog.put(record.clone()).await?;
            self.entry.status().record = record;
        }
        Ok(())
    }
}
