//! What ties a volume to its counterpart in the store.
//!
//! Owns the wish list of what to flush and the fetching of ranges on the control threads. Does not own the flushing
//! (`engine`). Invariant: a volume that has something to flush is on the list, or the engine watches it.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, oneshot};

use super::crowding::Crowding;
use super::{Bound, Durability};
use crate::cache::disk::Clock;
use crate::cache::error::IoError;
use crate::store;
use crate::store::volume::Loss;
use crate::units::{ExportId, SECTOR_BYTES, SectorRange};

/// Ranges fetched at the same time, at most. Each takes the memory of a request.
const FETCHES_MAX: usize = 64;

/// What all volumes that are tied to one store share.
pub struct Link {
    runtime: tokio::runtime::Handle,
    clock: Arc<dyn Clock>,
    list: Mutex<List>,
    changed: Notify,
    fetches: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct List {
    announced: HashSet<ExportId>,
    /// Somebody waits for these.
    asked: HashSet<ExportId>,
    /// Their writes are slowed until packs are merged.
    crowded: HashSet<ExportId>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl Link {
    pub(in crate::cache) fn new(runtime: tokio::runtime::Handle, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            runtime,
            clock,
            list: Mutex::default(),
            changed: Notify::new(),
            fetches: Arc::new(Semaphore::new(FETCHES_MAX)),
        })
    }

    fn list(&self) -> MutexGuard<'_, List> {
        // A set is whole between its own calls.
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was announced and asked for since the last call: `true` with those that somebody waits for.
    pub(super) fn take(&self) -> HashMap<ExportId, bool> {
        let mut list = self.list();
        let (announced, asked) = (std::mem::take(&mut list.announced), std::mem::take(&mut list.asked));
        drop(list);
        let mut taken: HashMap<_, _> = announced.into_iter().map(|id| (id, false)).collect();
        taken.extend(asked.into_iter().map(|id| (id, true)));
        taken
    }

    /// Which volumes began crowded since the last call.
    pub(super) fn take_crowded(&self) -> HashSet<ExportId> {
        std::mem::take(&mut self.list().crowded)
    }

    /// Returns when something was put on the list since the last return.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// A volume's side of the link.
pub(in crate::cache) struct Tie {
    pub(super) remote: store::volume::Volume,
    link: Arc<Link>,
    /// Size of the export, and the size that the store knows, sectors.
    size_sectors: AtomicU64,
    stored_sectors: AtomicU64,
    /// Told whenever a cut has reached the store or the volume was lost to another writer.
    progress: Notify,
    /// What a FLUSH survives; said once, before the first request.
    durability: OnceLock<Durability>,
    /// The volume is not this writer's any more.
    fenced: Arc<AtomicBool>,
    /// The last cut could not be read, and how many could not.
    unreadable: AtomicBool,
    unreadable_cuts: AtomicU64,
    crowding: Crowding,
}

impl fmt::Debug for Tie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tie").finish_non_exhaustive()
    }
}

/// Bytes that were fetched from the store for a READ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill {
    range: SectorRange,
    bytes: Bytes,
    /// What of the range was in the store only when it was asked for. What lies between was newer here, and may have left
    /// for the store after these bytes were read there.
    missing: Vec<SectorRange>,
}

impl Fill {
    /// The bytes of `range`, which are `bytes`, good for `missing` of it; `None` when there are not as many.
    pub fn new(range: SectorRange, bytes: Bytes, missing: Vec<SectorRange>) -> Option<Self> {
        (range.bytes() == Some(bytes.len() as u64)).then_some(Self { range, bytes, missing })
    }

    /// The bytes of `range`, if all of them are good.
    pub(in crate::cache) fn part(&self, range: SectorRange) -> Option<&[u8]> {
        let within = |good: &SectorRange| good.start() <= range.start() && range.end() <= good.end();
        self.missing.iter().find(|good| within(good))?;
        let skipped = range.start().checked_sub(self.range.start())?.checked_mul(SECTOR_BYTES)?;
        let start = usize::try_from(skipped).ok()?;
        let len = usize::try_from(range.bytes()?).ok()?;
        self.bytes.get(start..start.checked_add(len)?)
    }
}

impl Tie {
    /// Ties an export of `size_sectors`, of which the store knows `stored_sectors`.
    pub fn new(
        remote: store::volume::Volume,
        link: Arc<Link>,
        size_sectors: u64,
        stored_sectors: u64,
    ) -> Self {
        let crowding = Crowding::default();
        crowding.set(remote.crowd().unwrap_or_default());
        Self {
            remote,
            link,
            crowding,
            size_sectors: AtomicU64::new(size_sectors),
            stored_sectors: AtomicU64::new(stored_sectors),
            progress: Notify::new(),
            durability: OnceLock::new(),
            fenced: Arc::default(),
            unreadable: AtomicBool::new(false),
            unreadable_cuts: AtomicU64::new(0),
        }
    }

    pub fn remote(&self) -> &store::volume::Volume {
        &self.remote
    }

    /// Puts the volume on the list of those that have something to flush.
    pub fn announce(&self, id: ExportId) {
        self.link.list().announced.insert(id);
        self.link.changed.notify_one();
    }

    /// How crowded the volume is.
    pub fn crowding(&self) -> &Crowding {
        &self.crowding
    }

    /// Has packs of a volume merged that begins crowded: its writes, and so its flushes, may have to wait for that.
    pub fn merge_if_crowded(&self, id: ExportId) {
        if self.crowding.is_slow() {
            self.link.list().crowded.insert(id);
            self.link.changed.notify_one();
        }
    }

    /// Has the volume flushed as soon as possible.
    pub fn ask(&self, id: ExportId) {
        self.link.list().asked.insert(id);
        self.link.changed.notify_one();
    }

    /// Size of the export, sectors.
    pub fn size_sectors(&self) -> u64 {
        self.size_sectors.load(Ordering::Acquire)
    }

    /// Notes the export's new size, sectors.
    pub fn set_size(&self, size_sectors: u64) {
        self.size_sectors.store(size_sectors, Ordering::Release);
    }

    /// Notes that the store knows this size, sectors.
    pub fn stored_size(&self, size_sectors: u64) {
        self.stored_sectors.store(size_sectors, Ordering::Release);
    }

    /// Whether the store knows another size.
    pub fn has_new_size(&self) -> bool {
        self.size_sectors() != self.stored_sectors.load(Ordering::Acquire)
    }

    /// Says what a FLUSH survives, and how much may be lost.
    pub fn set_durability(&self, durability: Durability) {
        let said = *self.durability.get_or_init(|| durability);
        debug_assert_eq!(said, durability, "said twice");
    }

    /// Whether FLUSH waits for the store.
    pub fn waits(&self) -> bool {
        self.durability.get() == Some(&Durability::Store)
    }

    /// How much may be at risk, where that is bounded.
    pub fn bound(&self) -> Option<Bound> {
        match self.durability.get() {
            Some(Durability::Bounded(bound)) => Some(*bound),
            _ => None,
        }
    }

    /// The time, by the clock that risk is measured with.
    pub fn now(&self) -> Duration {
        self.link.clock.now()
    }

    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Why nothing of the volume may be served any more, if so.
    pub fn lost(&self) -> Option<IoError> {
        self.is_fenced().then(|| match self.remote.loss() {
            Some(Loss::Diverged(_)) => IoError::Diverged,
            _ => IoError::Fenced,
        })
    }

    pub fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
        self.progress.notify_waiters();
    }

    /// Notes whether the last cut could be read.
    pub(super) fn set_unreadable(&self, unreadable: bool) {
        self.unreadable.store(unreadable, Ordering::Release);
        self.unreadable_cuts.fetch_add(u64::from(unreadable), Ordering::AcqRel);
    }

    /// How many cuts could not be read: who waits gives up when it grows.
    pub fn unreadable_cuts(&self) -> u64 {
        self.unreadable_cuts.load(Ordering::Acquire)
    }

    pub fn is_unreadable(&self) -> bool {
        self.unreadable.load(Ordering::Acquire)
    }

    pub fn advanced(&self) {
        self.progress.notify_waiters();
    }

    pub fn progress(&self) -> &Notify {
        &self.progress
    }

    /// Whether the store may have anything of `range`: where it has not, there are zeroes.
    pub fn covers(&self, range: SectorRange) -> bool {
        self.remote.covers(range)
    }

    /// Fetches `range`, which begins and ends with something of `missing`, on the control threads. The answer may be awaited
    /// anywhere; there is none when the daemon stops.
    pub fn fetch(
        &self,
        range: SectorRange,
        missing: Vec<SectorRange>,
        export: ExportId,
    ) -> oneshot::Receiver<Result<Fill, IoError>> {
        let (sender, receiver) = oneshot::channel();
        let (remote, fetches) = (self.remote.clone(), Arc::clone(&self.link.fetches));
        let fenced = Arc::clone(&self.fenced);
        self.link.runtime.spawn(async move {
            // Never closed.
            let _permit = fetches.acquire_owned().await;
            let fetched = match remote.read(range).await {
                Ok(bytes) => Fill::new(range, bytes, missing).ok_or(IoError::Store),
                // Nobody is told: the kernel asks the next daemon again.
                Err(error) if error.is_stopping() => return,
                Err(error) => {
                    tracing::error!(
                        export = export.0,
                        first_sector = range.start(),
                        sectors = range.count(),
                        error = &error as &dyn std::error::Error,
                        "reading from the store failed"
                    );
                    fenced.fetch_or(error.is_fatal(), Ordering::AcqRel);
                    Err(IoError::Store)
                }
            };
            // A request that is gone needs no answer.
            let _ = sender.send(fetched);
        });
        receiver
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_gives_what_it_has_and_nothing_else() {
        let range = |start, count| SectorRange::new(start, count).unwrap();
        let bytes: Vec<u8> = (0..4u8).flat_map(|sector| [sector; 512]).collect();
        assert_eq!(Fill::new(range(10, 3), Bytes::from(bytes.clone()), vec![range(10, 3)]), None);
        let fill = Fill::new(range(10, 4), Bytes::from(bytes.clone()), vec![range(10, 4)]).unwrap();
        assert_eq!(fill.part(range(12, 2)).unwrap()[0], 2);
        assert_eq!(fill.part(range(10, 4)).map(<[u8]>::len), Some(2048));
        let holed = Fill::new(range(10, 4), Bytes::from(bytes), vec![range(10, 1), range(12, 2)]).unwrap();
        assert_eq!(holed.part(range(10, 1)).unwrap()[0], 0);
        assert_eq!(holed.part(range(13, 1)).unwrap()[0], 3);
        assert_eq!(holed.part(range(11, 1)), None, "it was newer here");
        assert_eq!(holed.part(range(10, 4)), None);
        assert_eq!(fill.part(range(9, 1)), None);
        assert_eq!(fill.part(range(13, 2)), None);
    }
}
