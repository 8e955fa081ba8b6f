//! Packs uploaded a moment ago, in memory: merging reads new packs first.
//!
//! Owns which packs stay in memory: the newest, within a bound. Does not own the content of packs. Invariant: a block from here
//! was checked like a fetched block; every other block is fetched from the store.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;

use crate::locks::MutexExt;
use crate::store::format::{EncodedPack, IndexEntry, PackIndex, decode_block};
use crate::store::ids::PackId;

#[derive(Debug)]
pub(in crate::store::volume) struct RecentPacks {
    bytes_max: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    packs: HashMap<PackId, Parts>,
    /// Oldest first. May name packs that were forgotten already.
    order: VecDeque<PackId>,
    bytes: u64,
}

/// One pack: parts of its bytes, in order.
#[derive(Debug)]
struct Parts {
    /// Offset of each part in the pack, bytes.
    starts: Vec<u64>,
    parts: Vec<Bytes>,
    bytes: u64,
}

impl RecentPacks {
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, inner: Mutex::default() }
    }

    /// Keeps a pack that is in the store, as long as the pack is among the newest. Returns the index of the pack, unless the pack
    /// is too long to be kept.
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

    /// Memory of all packs, bytes.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Frees the memory of a pack.
    pub fn forget(&self, pack: PackId) {
        let mut inner = self.lock();
        let forgotten = inner.remove(pack);
        if forgotten.is_some() {
            inner.order.retain(|other| *other != pack);
        }
        drop(inner);
        drop(forgotten);
    }

    /// The data of an entry of `pack`; `None` when the pack is not here, or the data does not match the entry.
    pub fn block(&self, pack: PackId, entry: &IndexEntry) -> Option<Bytes> {
        let stored = self.lock().packs.get(&pack)?.slice(entry.block())?;
        decode_block(entry, &stored).ok()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock_whole()
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

    /// The bytes of the pack in `range`, which must lie inside one part. The pack builder puts every block and the index into a
    /// part of its own.
    fn slice(&self, range: std::ops::Range<u64>) -> Option<Bytes> {
        let at = self.starts.partition_point(|start| *start <= range.start).checked_sub(1)?;
        let (part, start) = (self.parts.get(at)?, *self.starts.get(at)?);
        let from = usize::try_from(range.start.checked_sub(start)?).ok()?;
        let until = usize::try_from(range.end.checked_sub(start)?).ok()?;
        (from <= until && until <= part.len()).then(|| part.slice(from..until))
    }
}
