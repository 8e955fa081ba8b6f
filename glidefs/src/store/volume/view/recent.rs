//! Packs uploaded a moment ago, in memory: merging reads new packs first.
//!
//! Owns which packs stay in memory: the newest, within a bound. Does not own the content of packs. Invariant: a block from here
//! was checked like a fetched block; every other block is fetched from the store.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Mutex;

use bytes::Bytes;

use crate::locks::MutexExt;
use crate::store::format::{Codec, EncodedPack, IndexEntry, PackIndex, decode_block};
use crate::store::ids::PackId;

#[derive(Debug)]
pub(in crate::store::volume) struct RecentPacks {
    bytes_max: u64,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Each pack in one piece of memory, which goes back to the kernel with the pack. Parts of packs between values that live shorter
    /// would keep the allocator from giving memory back.
    packs: HashMap<PackId, Bytes>,
    /// Oldest first. May name packs that were forgotten already.
    order: VecDeque<PackId>,
    bytes: u64,
}

impl RecentPacks {
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, inner: Mutex::default() }
    }

    /// Keeps a pack that is in the store, as long as the pack is among the newest. All packs together take at most the bytes given to
    /// [`Self::new`] and the answer of `bytes_max`, bytes. Returns the index of the pack, unless the pack is too long to be kept.
    pub fn put(&self, pack: EncodedPack, bytes_max: impl Fn() -> u64) -> Option<PackIndex> {
        let place = pack.pack;
        let bytes: usize = pack.parts.iter().map(Bytes::len).sum();
        if bytes as u64 > self.bytes_max.min(bytes_max()) {
            return None;
        }
        let mut whole = Vec::with_capacity(bytes);
        for part in pack.parts {
            whole.extend_from_slice(&part);
        }
        let whole = Bytes::from(whole);
        let index = PackIndex::decode(&slice(&whole, place.index())?, &place).ok();
        let mut inner = self.inner.lock_whole();
        inner.bytes += whole.len() as u64;
        inner.order.push_back(place.pack);
        let before = inner.packs.insert(place.pack, whole);
        // `bytes_max` is asked under the lock: whoever takes memory for packs afterwards calls `shrink_to`.
        let forgotten = inner.shrink_to(self.bytes_max.min(bytes_max()));
        drop(inner);
        drop((before, forgotten));
        index
    }

    /// Forgets the oldest packs as long as all together take more than the answer of `bytes_max`, bytes.
    pub fn shrink_to(&self, bytes_max: impl Fn() -> u64) {
        // The memory is freed after the lock.
        let forgotten = self.inner.lock_whole().shrink_to(bytes_max());
        drop(forgotten);
    }

    /// Memory of all packs, bytes.
    pub fn bytes(&self) -> u64 {
        self.inner.lock_whole().bytes
    }

    /// Frees the memory of a pack.
    pub fn forget(&self, pack: PackId) {
        let mut inner = self.inner.lock_whole();
        let forgotten = inner.remove(pack);
        if forgotten.is_some() {
            inner.order.retain(|other| *other != pack);
        }
        drop(inner);
        drop(forgotten);
    }

    /// Whether `pack` is here.
    pub fn has(&self, pack: PackId) -> bool {
        self.inner.lock_whole().packs.contains_key(&pack)
    }

    /// The data of an entry of `pack`; `None` when the pack is not here, or the data does not match the entry.
    pub fn block(&self, pack: PackId, entry: &IndexEntry) -> Option<Bytes> {
        let stored = slice(self.inner.lock_whole().packs.get(&pack)?, entry.block())?;
        let block = decode_block(entry, &stored).ok()?;
        // An uncompressed block is a slice, and would keep the pack in memory.
        Some(if entry.codec == Codec::Stored { Bytes::copy_from_slice(&block) } else { block })
    }
}

impl Inner {
    fn remove(&mut self, pack: PackId) -> Option<Bytes> {
        let whole = self.packs.remove(&pack)?;
        self.bytes = self.bytes.saturating_sub(whole.len() as u64);
        Some(whole)
    }

    fn shrink_to(&mut self, bytes_max: u64) -> Vec<Option<Bytes>> {
        let mut forgotten = Vec::new();
        while self.bytes > bytes_max
            && let Some(oldest) = self.order.pop_front()
        {
            forgotten.push(self.remove(oldest));
        }
        forgotten
    }
}

/// The bytes of `pack` in `range`.
fn slice(pack: &Bytes, range: Range<u64>) -> Option<Bytes> {
    let from = usize::try_from(range.start).ok()?;
    let until = usize::try_from(range.end).ok()?;
    (from <= until && until <= pack.len()).then(|| pack.slice(from..until))
}
