//! Export name → export → device: names, life cycle, catalog.
//!
//! Owns which exports exist, the state of each and the device of each. Does not own the data of exports (`cache`, `store`,
//! reached through [`Storage`]), how a device is made (`ublk`, reached through [`Devices`]) nor how users ask (`api`, `cli`).
//!
//! Invariants:
//! - The wish of the user is in the catalog before anything is done about the wish. [`Router::start`] finishes the operations
//!   that a crash interrupted, so that no device is without an export and no export is lost.
//! - Operations on one export run one after the other; operations on different exports run in parallel.
//! - An operation that has begun is finished even if its caller goes away.
//! - The failure of one export never stops another.
//!
//! | File | What it owns |
//! |---|---|
//! | `size` | which sizes are allowed |
//! | `state` | the life cycle: states, events, the transition function |
//! | `catalog` | the database of exports on disk |
//! | `entry` | one export in memory, what users see of it, and the right to change it |
//! | `exports` | the exports in memory, and the device numbers in use |
//! | `create` | how an export comes into being |
//! | `operations` | attach, resize |
//! | `deaths` | of which exports the daemon has died |
//! | `stranded` | when an export is tried again whose device is not in service |
//! | `strays` | which devices an export has, also under a number that the catalog does not know |
//! | `settings` | limits and weight |
//! | `removal` | detach, delete |
//! | `history`, `rollback` | writeback on request, snapshots, and going back to a snapshot |
//! | `release` | giving exports up in the store, and taking exports back |
//! | `loss` | the ways out for an export that another host has, or with two histories |
//! | `bring` | bringing exports to a store that was configured later |
//! | `confirm` | asking the store whose exports are, before and while exports are served |
//! | `tenure` | the exports that stay this host's over an upgrade |
//! | `recovery` | the start of the daemon, and the removal of devices at its end |
//! | `starting` | the order in which a start deals with the exports |
//! | `background` | work that goes on when its caller has gone away |
//! | `error` | why an operation failed |
//! | `devices`, `storage` | the traits through which the router reaches devices and data |

mod background;
mod bring;
mod catalog;
mod confirm;
mod create;
mod deaths;
pub(crate) mod devices;
mod entry;
mod error;
mod exports;
mod history;
mod loss;
mod operations;
mod recovery;
mod release;
mod removal;
mod rollback;
mod settings;
mod size;
mod starting;
mod state;
mod storage;
mod stranded;
mod strays;
mod tenure;
mod testing;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, RwLock};
use std::time::{self, Duration};

use tokio::sync::{Notify, OwnedRwLockReadGuard, Semaphore, watch};
use tokio::time::Instant;

use self::background::{Background, finish};
pub use self::catalog::Catalog;
use self::catalog::change::Change;
use self::catalog::record::{Desired, ExportRecord};
pub(crate) use self::catalog::{CatalogGlance, CatalogHandle, error::CatalogError, health::CatalogHealth};
use self::confirm::Unasked;
pub use self::create::{CreateExport, CreatedExport};
pub use self::deaths::Deaths;
pub use self::devices::{DeviceError, DeviceId, DeviceOptions, Devices, FoundDevice};
use self::entry::{ExportEntry, HeldExport};
pub(crate) use self::entry::{ExportInfo, Glance};
pub(crate) use self::error::RouterError;
use self::exports::Exports;
pub(crate) use self::removal::Users;
pub use self::size::ExportSize;
pub(crate) use self::state::State;
pub use self::storage::{Begun, InitialContent, Storage};
use crate::export::Export;
use crate::locks::{LocksByKey, RwLockExt};
use crate::observe::repeat::Repeat;
pub(crate) use crate::store::NameError;
/// The name of an export: the store has volumes and snapshots by the same names.
pub use crate::store::StoreName as ExportName;
pub(crate) use crate::store::ids::NAME_CHARS_MAX;
use crate::store::volume::{Resume, VolumeError};
use crate::units::ExportId;

/// Most queues of a device.
pub const QUEUES_MAX: u16 = 128;
/// Most requests in flight per queue: the kernel's limit.
pub const QUEUE_DEPTH_MAX: u16 = 4096;

/// Exports, each with the epoch in which this host has the volume.
pub type Tenures = HashMap<ExportId, u64>;

/// Limits and defaults of the router.
#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// Most exports at the same time.
    pub exports_max: usize,
    /// Queue depth of a new export whose creation names no depth.
    pub queue_depth_default: u16,
    /// Devices that are recovered at the start, or removed at the end, at the same time.
    pub parallel_max: usize,
    /// How long an answer of the store to the question whose an export is, is waited for.
    pub confirm_patience: Duration,
    /// Whether exports are served at the start although the store cannot be asked whose they are.
    pub serve_unconfirmed: bool,
    /// When the requests of devices began to wait for a start by an upgrade; `None` for any other start.
    pub waiting_since: Option<time::Instant>,
    /// The exports that the program before served until the upgrade; none for any other start.
    pub tenures: Tenures,
    /// The exports of which daemons before have died.
    pub deaths: Arc<Deaths>,
    /// Identity of this boot of the kernel: devices end with the boot.
    pub boot_id: String,
}

/// All exports of the daemon.
pub struct Router {
    catalog: Catalog,
    devices: Arc<dyn Devices>,
    storage: Arc<dyn Storage>,
    /// Limits and defaults in force.
    pub(crate) options: RouterOptions,
    exports: RwLock<Exports>,
    /// Whether new operations are refused. Every operation holds the lock for reading until the operation ends.
    stopping: Arc<tokio::sync::RwLock<bool>>,
    /// Who may create an export of a name at the moment.
    name_locks: LocksByKey<ExportName>,
    /// Whether [`Router::stop`] was called, which ends waiting for the store.
    stops: watch::Sender<bool>,
    /// Exports about which the store has not answered whose they are, exports with waiting requests first.
    unasked: Mutex<Unasked>,
    /// Told when `unasked` grows.
    to_ask: Notify,
    /// Places for tries of exports without their device in service.
    tries: Semaphore,
    /// Drains and snapshots whose callers have gone away.
    background: Background,
    /// When the store last turned out to be away while an export was released.
    store_away: watch::Sender<Option<Instant>>,
    /// Limits the log lines about a store that cannot be asked.
    away: Repeat,
    /// Exports from the catalog, held so that operations on them wait until [`Router::start`] has dealt with them.
    loaded: Mutex<Vec<HeldExport>>,
}

crate::units::debug_by_name!(Router);

impl Router {
    /// A router over the exports in `catalog`. These exports are listed at once as recovering; [`Router::start`] gives each of
    /// them its device, and operations on them wait for the start. New exports may be created meanwhile.
    pub fn new(
        mut catalog: Catalog,
        devices: Arc<dyn Devices>,
        storage: Arc<dyn Storage>,
        options: RouterOptions,
    ) -> Arc<Self> {
        let records = catalog.take_loaded();
        let mut exports = Exports::new(catalog.next_export_id(), options.exports_max);
        let stopping = Arc::new(tokio::sync::RwLock::new(false));
        let mut loaded = Vec::with_capacity(records.len());
        for (name, record, resume) in records {
            // Always succeeds: nobody else has the lock before the router exists.
            let Ok(gate) = Arc::clone(&stopping).try_read_owned() else { continue };
            exports.numbers.take(record.device.number);
            let rests = storage.is_at_rest(record.export_id(), record.size_bytes, resume.as_ref());
            // The state of the step that the wish in the record asks for.
            let state = match record.desired {
                Desired::Attached => State::Recovering,
                Desired::Detached => State::Detaching,
                Desired::Deleted => State::Deleting,
            };
            let held = HeldExport::new(name, record, resume, state, gate);
            if !(rests && held.entry.is_settled()) {
                let is_held_back = options.deaths.holds_back(held.entry.id).is_some();
                held.entry.open(&*storage).volume().hold_back(is_held_back);
            }
            exports.insert(Arc::clone(&held.entry));
            loaded.push(held);
        }
        let tries = Semaphore::new(options.parallel_max.max(1));
        Arc::new(Self {
            catalog,
            devices,
            storage,
            options,
            exports: RwLock::new(exports),
            stopping,
            name_locks: LocksByKey::default(),
            stops: watch::Sender::new(false),
            unasked: Mutex::default(),
            to_ask: Notify::new(),
            tries,
            background: Background::default(),
            store_away: watch::Sender::new(None),
            away: Repeat::default(),
            loaded: Mutex::new(loaded),
        })
    }

    /// Every export, by name, each as of the moment when the iterator gets there.
    pub fn infos(&self) -> impl Iterator<Item = ExportInfo> {
        self.entries().into_iter().map(|entry| entry.info())
    }

    /// At most `max` exports behind the name `after`, by name, each as of the moment when the iterator gets there. `after` need not exist.
    pub fn infos_after(&self, after: Option<&str>, max: usize) -> impl Iterator<Item = ExportInfo> + use<> {
        let entries = self.exports.read_whole().after(after, max);
        entries.into_iter().map(|entry| entry.info())
    }

    /// One export.
    pub fn show(&self, name: &str) -> Result<ExportInfo, RouterError> {
        self.entry(name).map(|entry| entry.info()).ok_or_else(|| RouterError::NotFound { name: name.into() })
    }

    /// Calls `visit` with every export, by name. Takes a fraction of the time of [`Self::list`].
    pub fn visit(&self, mut visit: impl FnMut(Glance<'_>)) {
        for entry in self.entries() {
            visit(entry.glance());
        }
    }

    /// Calls `visit` with the export of this name, if there is one.
    pub fn visit_one(&self, name: &str, visit: impl FnOnce(Glance<'_>)) {
        if let Some(entry) = self.entry(name) {
            visit(entry.glance());
        }
    }

    /// Memory of all exports, without the indexes of their volumes, bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.entries().iter().map(|entry| entry.glance().memory_bytes).sum()
    }

    /// How long the requests of devices waited for the last start, if that was an upgrade: a time a device.
    pub fn pauses(&self) -> Vec<Duration> {
        self.entries().iter().filter_map(|entry| entry.pause()).collect()
    }

    /// The names of the exports that are not served because the daemon has died of them.
    pub fn held_back(&self) -> Vec<String> {
        let is_held_back = |entry: &&Arc<ExportEntry>| {
            self.options.deaths.holds_back(entry.id).is_some()
                && matches!(entry.state(), State::Failed { .. })
        };
        self.entries().iter().filter(is_held_back).map(|entry| entry.name.to_string()).collect()
    }

    /// Whether the catalog can be written.
    pub fn catalog_health(&self) -> &CatalogHealth {
        self.catalog.health()
    }

    /// Refuses new operations, and returns when the running ones have ended. Devices stay as they are.
    pub async fn stop(&self) {
        self.stops.send_replace(true);
        *self.stopping.write().await = true;
    }

    /// The result of `work`, which waits for the store, unless the daemon stops first.
    async fn unless_stopping<T>(
        &self,
        work: impl Future<Output = Result<T, RouterError>>,
    ) -> Result<T, RouterError> {
        let mut stops = self.stops.subscribe();
        tokio::select! {
            done = work => done,
            // Ends only with `true`: the sender lives as long as the router.
            _ = stops.wait_for(|stops| *stops) => Err(RouterError::Stopping),
        }
    }

    /// The store's answer about export `name`, unless the daemon stops first.
    async fn ask<T>(
        &self,
        name: &str,
        answer: impl Future<Output = Result<T, VolumeError>>,
    ) -> Result<T, RouterError> {
        let failed = |source| RouterError::Store { name: name.into(), source };
        self.unless_stopping(async { answer.await.map_err(failed) }).await
    }

    fn entries(&self) -> Vec<Arc<ExportEntry>> {
        self.exports.read_whole().all()
    }

    /// The parts of an export that I/O needs, made now if the export is at rest.
    fn open<'a>(&self, entry: &'a ExportEntry) -> &'a Arc<Export> {
        entry.open(&*self.storage)
    }

    /// The export of this name, with the parts that I/O needs.
    #[cfg(test)]
    pub(crate) fn export_for_io(&self, name: &str) -> Option<Arc<Export>> {
        self.entry(name).map(|entry| Arc::clone(self.open(&entry)))
    }

    fn entry(&self, name: &str) -> Option<Arc<ExportEntry>> {
        self.exports.read_whole().find(name)
    }

    /// Refuses an operation while the daemon stops. [`Router::stop`] waits until the guard is dropped.
    async fn enter(&self) -> Result<OwnedRwLockReadGuard<bool>, RouterError> {
        let guard = Arc::clone(&self.stopping).read_owned().await;
        if *guard { Err(RouterError::Stopping) } else { Ok(guard) }
    }

    /// The right to change an existing export.
    async fn hold(&self, name: &str) -> Result<HeldExport, RouterError> {
        loop {
            let entry = self.entry(name).ok_or_else(|| RouterError::NotFound { name: name.into() })?;
            let held = HeldExport::wait(entry, self.enter().await?).await;
            if !held.is_gone() {
                return Ok(held);
            }
        }
    }

    /// Runs `work` with the right to change the export called `name`, to the end also when the caller goes away.
    async fn on_held<T, W, F>(self: &Arc<Self>, name: &str, work: W) -> Result<T, RouterError>
    where
        T: Send + 'static,
        W: FnOnce(Arc<Self>, HeldExport) -> F + Send + 'static,
        F: Future<Output = Result<T, RouterError>> + Send,
    {
        let (router, name) = (Arc::clone(self), name.to_owned());
        finish(name.clone(), async move {
            let held = router.hold(&name).await?;
            work(router, held).await
        })
        .await
    }

    /// Replaces an export without a device by an export of the same name with a new id. The new export has the `change`d
    /// record, no data in the cache, and goes on from `resume` in the store.
    async fn replace(
        &self,
        held: HeldExport,
        resume: Resume,
        change: impl FnOnce(&mut ExportRecord),
    ) -> Result<HeldExport, RouterError> {
        let mut record = held.record();
        let old = record.export_id();
        record.id = self.exports.write_whole().take_id()?;
        change(&mut record);
        self.catalog.change(Change::Replace(old, record.clone(), resume.clone())).await?;
        // Marked as gone and replaced under one lock: whoever waits for the old entry and looks the name up again finds the new
        // one.
        let mut exports = self.exports.write_whole();
        let replaced = held.replaced(record, resume);
        exports.insert(Arc::clone(&replaced.entry));
        drop(exports);
        self.open(&replaced.entry);
        self.storage.remove(old);
        Ok(replaced)
    }

    /// Removes an export from memory, with its data. The catalog has no record of the export any more.
    fn forget(&self, held: &HeldExport) {
        // Made before the cache forgets the export: whoever still has the entry must not begin a volume after the removal.
        self.open(&held.entry);
        let mut exports = self.exports.write_whole();
        exports.remove(&held.entry.name, held.record().device.number);
        drop(exports);
        held.mark_gone();
        self.storage.remove(held.entry.id);
    }
}
