//! Export name → export → device: names, life cycle, catalog.
//!
//! Owns which exports exist, what state each is in and which device shows it. Does not own their data (`cache`), how a device
//! is made (`ublk`, reached through [`Devices`]) nor how users ask (`api`, `cli`).
//!
//! Invariants:
//! - What the user wants is in the catalog before anything is done about it; [`Router::start`] finishes what a crash cut
//!   short, so that no device is without an export and no export lost.
//! - Operations on one export run one after the other; those on different exports in parallel.
//! - An operation that has begun is finished even if its caller goes away.
//! - One export's failure never stops another.
//!
//! | File | What it owns |
//! |---|---|
//! | `name`, `size` | which names and sizes are allowed |
//! | `state` | the life cycle: states, events, the transition function |
//! | `record`, `catalog`, `notes` | what is remembered on disk |
//! | `numbers` | which device numbers are spoken for |
//! | `entry` | one export in memory, and the right to change it |
//! | `create` | how an export comes into being |
//! | `operations` | attach, resize |
//! | `removal` | detach, delete |
//! | `lost` | the ways out for an export that another host has, or with two histories |
//! | `recovery` | what happens at start |
//! | `confirm` | asking the store whose exports are, before and while they are served |
//! | `left` | what goes on when its caller has gone away |
//! | `release` | giving exports up in the store, and taking them back |
//! | `devices`, `volumes` | the traits through which the router reaches devices and data |

mod book;
mod catalog;
mod confirm;
mod create;
pub mod devices;
mod entry;
mod error;
mod history;
mod left;
mod lost;
mod name;
mod notes;
mod numbers;
mod operations;
mod record;
mod recovery;
mod release;
mod removal;
mod rollback;
mod size;
mod state;
mod stored;
#[cfg(test)]
pub(crate) mod tests;
mod volumes;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;

use tokio::sync::{Notify, OwnedRwLockReadGuard, watch};

pub use self::book::Book;
pub use self::catalog::{Catalog, CatalogError, CatalogHealth};
use self::create::{Beginning, new_record};
pub use self::create::{CreateExport, Created};
pub use self::devices::{DeviceError, DeviceId, DeviceOptions, Devices, FoundDevice};
use self::entry::{Entry, Held};
pub use self::error::RouterError;
use self::left::Left;
pub use self::name::{ExportName, NAME_CHARS_MAX, NameError};
use self::numbers::Numbers;
pub use self::operations::Deleted;
use self::record::Record;
pub use self::recovery::Recovery;
pub use self::release::Drain;
pub use self::size::{EXPORT_BYTES_MAX, ExportSize, SizeError};
pub use self::state::{Event, ForbiddenTransition, State};
pub use self::volumes::{Source, Volumes};
use crate::cache::{AtRisk, Durability, OnUnreachable};
use crate::export::Export;
use crate::observe::repeat::Repeat;
use crate::store::volume::Resume;
use crate::units::ExportId;

/// Most queues a device may be asked to have.
pub const QUEUES_MAX: u16 = 128;
/// Most requests in flight a queue may be asked to have: the kernel's limit.
pub const QUEUE_DEPTH_MAX: u16 = 4096;

/// What the router needs to be told.
#[derive(Clone, Debug)]
pub struct RouterOptions {
    /// Exports that may exist at the same time.
    pub exports_max: usize,
    /// Queues of a new export that does not say.
    pub queues_default: u16,
    /// Queue depth of a new export that does not say.
    pub queue_depth_default: u16,
    /// What a READ of a new export that does not say does while the store is away.
    pub on_unreachable_default: OnUnreachable,
    /// Devices that are recovered, or removed at the end, at the same time.
    pub parallel_max: usize,
    /// How long the store is waited for to say whose an export is.
    pub confirm_patience: Duration,
    /// Whether exports are served at the start although the store cannot be asked whose they are.
    pub serve_unconfirmed: bool,
    /// Identity of this boot of the kernel: devices do not outlive it. See [`kernel_boot_id`].
    pub boot_id: String,
}

/// Identity of this boot of the kernel.
pub fn kernel_boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

/// One export as users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Identity in the cache.
    pub id: ExportId,
    /// Name.
    pub name: ExportName,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Queues of its device.
    pub queues: u16,
    /// Requests in flight a queue, at most.
    pub queue_depth: u16,
    /// The device, where there is one.
    pub device: Option<DeviceId>,
    /// What the export is doing.
    pub state: State,
    /// When it was created, milliseconds since 1970-01-01 UTC.
    pub created_unix_millis: u64,
    /// What a FLUSH survives.
    pub durability: Durability,
    /// What a READ does while the store is away.
    pub on_unreachable: OnUnreachable,
    /// Why the store could not be told that this host gives the export up, after it was detached.
    pub unreleased: Option<String>,
    /// Bytes whose content was lost before the store had it, as of the last flush; `None` where there is no store.
    pub damaged_bytes: Option<u64>,
    /// What of it is not in the store, where there is a store.
    pub at_risk: Option<AtRisk>,
}

/// All exports of the daemon.
pub struct Router {
    catalog: Catalog,
    devices: Arc<dyn Devices>,
    volumes: Arc<dyn Volumes>,
    options: RouterOptions,
    exports: RwLock<Exports>,
    /// Whether new operations are refused. Every operation holds it for reading until it ends.
    stopping: Arc<tokio::sync::RwLock<bool>>,
    /// Who may create an export of a name at the moment.
    turns: Turns,
    /// Whether [`Router::stop`] was called; ends waits for the store.
    stops: watch::Sender<bool>,
    /// Exports of which the store has not said whose they are, those with waiting requests first.
    unasked: Mutex<Vec<Arc<Entry>>>,
    /// Told when there is one more of them.
    to_ask: Notify,
    /// Drains and snapshots whose callers have gone away.
    left: Left,
    /// What lets one of many log lines pass about a store that cannot be asked.
    away: Repeat,
    /// Exports from the catalog, held so that operations on them wait until [`Router::start`] has dealt with them.
    loaded: Mutex<Vec<Held>>,
}

/// The exports in memory.
#[derive(Debug, Default)]
struct Exports {
    by_name: BTreeMap<ExportName, Arc<Entry>>,
    numbers: Numbers,
    next_id: u32,
}

/// A lock for each name that somebody has or waits for.
#[derive(Debug, Default)]
struct Turns(Mutex<BTreeMap<ExportName, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    fn of(&self, name: &ExportName) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        turns.retain(|_, turn| turn.strong_count() > 0);
        if let Some(turn) = turns.get(name).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.insert(name.clone(), Arc::downgrade(&turn));
        turn
    }
}

/// What became of an attempt to add an export.
enum Added {
    /// It is new, and held by who added it.
    New(Held),
    /// There was one of its name.
    Existing(Arc<Entry>, OwnedRwLockReadGuard<bool>),
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Router {
    /// A router over the exports in `catalog`. They are listed at once as recovering; [`Router::start`] gives them their
    /// devices, and operations on them wait for it. New exports may be created meanwhile.
    pub fn new(
        mut catalog: Catalog,
        devices: Arc<dyn Devices>,
        volumes: Arc<dyn Volumes>,
        options: RouterOptions,
    ) -> Arc<Self> {
        let records = catalog.take_loaded();
        let mut exports = Exports { next_id: catalog.next_export_id(), ..Exports::default() };
        let stopping = Arc::new(tokio::sync::RwLock::new(false));
        let mut loaded = Vec::with_capacity(records.len());
        for (name, record) in records {
            // Nobody can be stopping a router that is not made yet.
            let Ok(gate) = Arc::clone(&stopping).try_read_owned() else { continue };
            exports.numbers.take(record.device.number);
            let volume = volumes.volume(record.export_id(), record.size_bytes, None);
            let held = Held::loaded(name.clone(), record, volume, gate);
            exports.by_name.insert(name, Arc::clone(held.entry()));
            loaded.push(held);
        }
        Arc::new(Self {
            catalog,
            devices,
            volumes,
            options,
            exports: RwLock::new(exports),
            stopping,
            turns: Turns::default(),
            stops: watch::Sender::new(false),
            unasked: Mutex::default(),
            to_ask: Notify::new(),
            left: Left::default(),
            away: Repeat::default(),
            loaded: Mutex::new(loaded),
        })
    }

    /// Every export, by name.
    pub fn list(&self) -> Vec<ExportInfo> {
        self.entries().iter().map(|entry| entry.info()).collect()
    }

    /// One export.
    pub fn show(&self, name: &str) -> Result<ExportInfo, RouterError> {
        self.entry(name).map(|entry| entry.info()).ok_or_else(|| RouterError::NotFound { name: name.into() })
    }

    /// The exports themselves, by name, for their counters.
    pub fn exports(&self) -> Vec<Arc<Export>> {
        self.entries().iter().map(|entry| Arc::clone(entry.export())).collect()
    }

    /// Whether the catalog can be written.
    pub fn catalog_health(&self) -> &CatalogHealth {
        self.catalog.health()
    }

    /// Limits and defaults in force.
    pub fn options(&self) -> &RouterOptions {
        &self.options
    }

    /// Refuses operations from now on and returns when those under way have ended. Devices stay as they are.
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
            // The sender is as old as the router.
            _ = stops.wait_for(|stops| *stops) => Err(RouterError::Stopping),
        }
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        exports.by_name.values().cloned().collect()
    }

    fn entry(&self, name: &str) -> Option<Arc<Entry>> {
        self.exports.read().unwrap_or_else(PoisonError::into_inner).by_name.get(name).cloned()
    }

    /// Takes part in the daemon's life: [`Router::stop`] waits until the guard is dropped.
    async fn enter(&self) -> Result<OwnedRwLockReadGuard<bool>, RouterError> {
        let guard = Arc::clone(&self.stopping).read_owned().await;
        if *guard { Err(RouterError::Stopping) } else { Ok(guard) }
    }

    /// The right to change an existing export, or the reason why there is none.
    async fn hold(&self, name: &str) -> Result<Held, RouterError> {
        loop {
            let entry = self.entry(name).ok_or_else(|| RouterError::NotFound { name: name.into() })?;
            let held = Held::wait(entry, self.enter().await?).await;
            if !held.is_gone() {
                return Ok(held);
            }
        }
    }

    /// Whether there is room for another export at the moment.
    fn may_add(&self) -> Result<(), RouterError> {
        let exports = self.exports.read().unwrap_or_else(PoisonError::into_inner);
        if exports.by_name.len() < self.options.exports_max {
            return Ok(());
        }
        Err(RouterError::TooMany { max: self.options.exports_max })
    }

    /// Adds an export that is not in the catalog yet, or gives the one that has its name.
    fn add(
        &self,
        request: &CreateExport,
        beginning: &Beginning,
        gate: OwnedRwLockReadGuard<bool>,
    ) -> Result<Added, RouterError> {
        let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = exports.by_name.get(&request.name) {
            return Ok(Added::Existing(Arc::clone(entry), gate));
        }
        if exports.by_name.len() >= self.options.exports_max {
            return Err(RouterError::TooMany { max: self.options.exports_max });
        }
        let id = exports.next_id;
        exports.next_id = id.checked_add(1).ok_or(RouterError::IdsExhausted)?;
        let number = exports.numbers.take_lowest();
        let record = new_record(id, number, request, beginning.size, &self.options);
        let volume = self.volumes.volume(ExportId(id), record.size_bytes, beginning.counterpart.as_ref());
        let held = Held::created(request.name.clone(), record, volume, gate);
        exports.by_name.insert(request.name.clone(), Arc::clone(held.entry()));
        Ok(Added::New(held))
    }

    /// Puts `record`, with its data from `counterpart` on, in the place of an export that has no device.
    async fn replace(
        &self,
        held: Held,
        counterpart: Resume,
        change: impl FnOnce(&mut Record),
    ) -> Result<Held, RouterError> {
        let mut record = held.record();
        let old = record.export_id();
        {
            let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
            record.id = exports.next_id;
            exports.next_id = record.id.checked_add(1).ok_or(RouterError::IdsExhausted)?;
        }
        change(&mut record);
        self.catalog.replace(old, record.clone(), counterpart.clone()).await?;
        let volume = self.volumes.volume(record.export_id(), record.size_bytes, Some(&counterpart));
        // Nobody finds the old entry once it counts as gone.
        let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        let replaced = held.replaced(record, volume);
        exports.by_name.insert(replaced.entry().name().clone(), Arc::clone(replaced.entry()));
        drop(exports);
        self.volumes.remove(old);
        Ok(replaced)
    }

    /// Takes an export out of memory, with its data. It is in the catalog no more.
    fn forget(&self, held: &Held) {
        let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        exports.by_name.remove(held.entry().name());
        exports.numbers.release(held.record().device.number);
        drop(exports);
        held.mark_gone();
        self.volumes.remove(held.entry().export().id());
    }

    /// Remembers that an export's device has another number than it was asked to have.
    fn renumber(&self, from: u32, to: u32) {
        let mut exports = self.exports.write().unwrap_or_else(PoisonError::into_inner);
        exports.numbers.take(to);
        exports.numbers.release(from);
    }
}
