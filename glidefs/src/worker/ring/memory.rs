//! The kinds of memory an operation can own.
//!
//! Owns the closed list of kinds: the ring relies on bytes which stay where they are when the owner is moved. Invariant:
//! [`Memory::for_each_part`] visits the same bytes in the same order every time, until the memory is given back.

use crate::buffer::Slot;

/// Memory of an operation under way: taken at the start, and given back with the completion.
#[derive(Debug)]
pub enum Memory {
    /// No memory, as for a sync.
    None,
    /// The bytes of a vector. A read fills the bytes of the vector and does not make the vector longer.
    Heap(Vec<u8>),
    /// Several slots of a pool, one after the other.
    Slots(Vec<Slot>),
}

impl Memory {
    /// Length in bytes, of all parts together.
    pub fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Heap(bytes) => bytes.len(),
            Self::Slots(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }

    /// Shows each part to `visit`, in order.
    pub(super) fn for_each_part(&mut self, mut visit: impl FnMut(&mut [u8])) {
        match self {
            Self::None => {}
            Self::Heap(bytes) => visit(bytes),
            Self::Slots(parts) => parts.iter_mut().for_each(|part| visit(part)),
        }
    }
}

impl From<()> for Memory {
    fn from((): ()) -> Self {
        Self::None
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Heap(bytes)
    }
}

impl From<Vec<Slot>> for Memory {
    fn from(slots: Vec<Slot>) -> Self {
        Self::Slots(slots)
    }
}
