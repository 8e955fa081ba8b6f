//! Packs that were uploaded a moment ago, as bytes: merging reads new packs first.
//!
//! Owns which packs stay in memory: the newest, within a bound. Does not own what is in a pack. Invariant: a block that is found
//! here was checked as one that is fetched; whatever is not here is fetched from the store.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::store::format::{EncodedPack, IndexEntry, PackIndex, decode_block};
use crate::store::ids::PackId;

/// The packs that are kept.
#[derive(Debug)]
pub(in crate::store::volume) struct RecentPacks {
    bytes_max: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    packs: HashMap<PackId, Parts>,
    /// Oldest first; some may be forgotten already.
    order: VecDeque<PackId>,
    bytes: u64,
}

/// A pack in memory.
#[derive(Debug)]
struct Parts {
    /// Where each part begins, bytes from the start of the pack.
    starts: Vec<u64>,
    parts: Vec<Bytes>,
    bytes: u64,
}

impl RecentPacks {
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, inner: Mutex::default() }
    }

    /// Keeps a pack that is in the store, for as long as it is among the newest. Its index, unless the pack is too long.
    pub fn put(&self, pack: EncodedPack) -> Option<PackIndex> {
        let place = pack.trailer.pack;
        let parts = Parts::of(pack.parts);
        if parts.bytes > self.bytes_max {
            return None;
        }
        let index = PackIndex::decode(&parts.slice(place.index())?, &place).ok();
        let mut inner = self.lock();
        inner.bytes += parts.bytes;
        inner.order.push_back(place.pack);
        let mut left = vec![inner.packs.insert(place.pack, parts)];
        while inner.bytes > self.bytes_max
            && let Some(oldest) = inner.order.pop_front()
        {
            left.push(inner.remove(oldest));
        }
        drop(inner);
        drop(left);
        index
    }

    /// Lets go of a pack.
    pub fn forget(&self, pack: PackId) {
        let mut inner = self.lock();
        let forgotten = inner.remove(pack);
        if forgotten.is_some() {
            inner.order.retain(|other| *other != pack);
        }
        drop(inner);
        drop(forgotten);
    }

    /// The data of an entry of `pack`, if it is here, and what it should be.
    pub fn block(&self, pack: PackId, entry: &IndexEntry) -> Option<Bytes> {
        let stored = self.lock().packs.get(&pack)?.slice(entry.block())?;
        decode_block(entry, &stored).ok()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn remove(&mut self, pack: PackId) -> Option<Parts> {
        let parts = self.packs.remove(&pack)?;
        self.bytes = self.bytes.saturating_sub(parts.bytes);
        Some(parts)
    }
}

impl Parts {
    fn of(parts: Vec<Bytes>) -> Self {
        let mut bytes = 0;
        let starts = parts.iter().map(|part| {
            bytes += part.len() as u64;
            bytes - part.len() as u64
        });
        Self { starts: starts.collect(), parts, bytes }
    }

    /// Some bytes of the pack. A builder puts blocks and index into one part each.
    fn slice(&self, range: std::ops::Range<u64>) -> Option<Bytes> {
        let at = self.starts.partition_point(|start| *start <= range.start).checked_sub(1)?;
        let (part, start) = (self.parts.get(at)?, *self.starts.get(at)?);
        let from = usize::try_from(range.start.checked_sub(start)?).ok()?;
        let until = usize::try_from(range.end.checked_sub(start)?).ok()?;
        (from <= until && until <= part.len()).then(|| part.slice(from..until))
    }
}
