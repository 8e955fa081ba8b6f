//! The memory of READs that need data of packs.
//!
//! Owns how many READs look for data in the store at once, and how much memory the blocks of READs take. Does not own blocks that a
//! cache keeps, nor GETs. Invariant: the blocks of all READs take at most the configured bytes, and what the last READ took beyond the
//! part for READs from the store, or beyond the part for READs from this host.
//!
//! A READ with all blocks on this host takes memory from a part kept for such READs, and makes no request while it has the memory. So
//! READs whose GETs are not answered never delay it. Any other READ takes a place first: only a READ with a place opens packs, so a
//! READ without one is small. Then the READ takes memory for all of its blocks at once, with the packs closed during the wait, and keeps
//! place and memory during its GETs. The bytes of the READ take memory until the worker has copied them. Nobody with memory waits for a
//! place or for memory, so READs do not wait in a circle. A READ that waits until the store is reachable again has neither.

use std::sync::Arc;

use bytes::Bytes;

use crate::store::turns::{Reader, Turn, Turns};

/// READs at once that look for data in the store: enough for all GETs at once, and for READs which wait for memory meanwhile.
const PLACES: u64 = 256;
/// One part of so many is for READs with all blocks on this host.
const LOCAL_PART: u64 = 4;

/// The memory of all READs.
#[derive(Debug)]
pub(in crate::store::volume) struct ReadMemory {
    places: Arc<Turns>,
    /// Bytes, for blocks of which some come from the store.
    remote: Arc<Turns>,
    /// Bytes, for blocks on this host.
    local: Arc<Turns>,
}

impl ReadMemory {
    /// Memory for blocks of `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> Self {
        let local = bytes_max / LOCAL_PART;
        Self { places: Turns::new(PLACES), remote: Turns::new(bytes_max - local), local: Turns::new(local) }
    }

    /// Memory taken by READs, bytes.
    pub fn bytes(&self) -> u64 {
        self.remote.taken().saturating_add(self.local.taken())
    }

    /// READs that look for data in the store.
    #[cfg(test)]
    pub fn places_taken(&self) -> u64 {
        self.places.taken()
    }

    /// Waits for a place, which a READ keeps until its bytes are here.
    pub async fn place(&self, reader: Reader) -> Turn {
        self.places.take(reader, 1).await
    }

    /// Waits for memory for blocks of `bytes`, of which some come from the store.
    pub async fn remote(&self, reader: Reader, bytes: u64) -> Turn {
        self.remote.take(reader, bytes).await
    }

    /// As [`Self::remote`], if nobody waits.
    pub fn try_remote(&self, reader: Reader, bytes: u64) -> Option<Turn> {
        self.remote.try_take(reader.volume, bytes)
    }

    /// Waits for memory for blocks of `bytes`, all on this host.
    pub async fn local(&self, reader: Reader, bytes: u64) -> Turn {
        self.local.take(reader, bytes).await
    }

    /// As [`Self::local`], if nobody waits.
    pub fn try_local(&self, reader: Reader, bytes: u64) -> Option<Turn> {
        self.local.try_take(reader.volume, bytes)
    }
}

/// `bytes`, which take as much of `memory` as long as they live. The rest of `memory` is given back.
pub(in crate::store::volume) fn holding(bytes: Bytes, mut memory: Turn) -> Bytes {
    memory.shrink_to(bytes.len() as u64);
    Bytes::from_owner(Held { bytes, _memory: memory })
}

struct Held {
    bytes: Bytes,
    _memory: Turn,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
