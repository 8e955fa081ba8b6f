//! The memory of READs that need data of packs.
//!
//! Owns how many READs look for data in the store at once, and how much memory the blocks of READs take. Does not own blocks that a
//! cache keeps, nor GETs. Invariant: the blocks of all READs take at most the configured bytes, but for the last READ of each of the two
//! parts, for READs from the store and for READs from this host, which may exceed the part. Indexes that are being fetched and decoded
//! take as many bytes at most beside these, but for the last one.
//!
//! A READ with all blocks on this host takes memory from a part kept for such READs, and makes no request while the READ has the memory.
//! So READs whose GETs are not answered never delay such a READ. Any other READ takes a *place* first. Only a READ with a place loads
//! indexes of packs, so a READ that waits for a place is small. Then the READ takes memory for all of its blocks at once, without the
//! indexes during the wait, and keeps place and memory during its GETs. The bytes of the READ take memory until the worker has copied
//! the bytes. No READ with memory waits for a place or for more memory, so READs do not wait in a circle. A READ that waits until the
//! store is reachable again has neither place nor memory. The load of an index, for READs, merges and all else, takes memory last: it
//! waits for nothing but the store then.

use std::sync::Arc;

use bytes::Bytes;

use crate::store::turns::{Turn, Turns};

/// Most READs at once that look for data in the store: four for each GET under way, as some wait for memory meanwhile.
const PLACES: u64 = 256;
/// One of so many parts of the memory is for READs with all blocks on this host.
const LOCAL_PART: u64 = 4;

/// The memory of all READs.
#[derive(Debug)]
pub(in crate::store::volume) struct ReadMemory {
    /// One for each READ that looks for data in the store, which keeps it until the bytes of the READ are here.
    pub places: Arc<Turns>,
    /// Bytes, for blocks of which some come from the store.
    pub remote: Arc<Turns>,
    /// Bytes, for blocks on this host.
    pub local: Arc<Turns>,
    /// Bytes, for indexes being fetched and decoded.
    pub indexes: Arc<Turns>,
}

impl ReadMemory {
    /// Memory of `bytes_max` bytes for the blocks of all READs.
    pub fn new(bytes_max: u64) -> Self {
        let local = bytes_max / LOCAL_PART;
        let [places, remote, local, indexes] = [PLACES, bytes_max - local, local, bytes_max].map(Turns::new);
        Self { places, remote, local, indexes }
    }

    /// Memory taken by READs, bytes.
    pub fn bytes(&self) -> u64 {
        self.remote.taken().saturating_add(self.local.taken())
    }
}

/// `bytes`, which keep their length of `memory` until the drop of the last reference. Gives the rest of `memory` back at once.
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
