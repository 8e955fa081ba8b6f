//! The kinds of memory an operation can own.
//!
//! Owns the closed list of kinds: the ring relies on bytes which stay where they are when the owner is moved. Invariant:
//! [`Memory::for_each_part`] visits the same bytes in the same order every time, until the memory is given back.

use crate::buffer::Slot;

/// Memory of an operation under way.
#[derive(Debug)]
pub enum Memory {
    /// No memory, as for a sync.
    None,
    /// The bytes of a vector. A read fills the bytes of the vector and does not make the vector longer.
    Heap(Vec<u8>),
    /// A slot of a pool.
    Slot(Slot),
    /// The bytes of several vectors, one after the other.
    Heaps(Vec<Vec<u8>>),
    /// Several slots, one after the other.
    Slots(Vec<Slot>),
}

impl Memory {
    /// Length in bytes, of all parts together.
    pub fn bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Heap(bytes) => bytes.len(),
            Self::Slot(slot) => slot.len(),
            Self::Heaps(parts) => parts.iter().map(Vec::len).sum(),
            Self::Slots(parts) => parts.iter().map(|part| part.len()).sum(),
        }
    }

    /// Shows each part to `visit`, in order.
    pub(super) fn for_each_part(&mut self, mut visit: impl FnMut(&mut [u8])) {
        match self {
            Self::None => {}
            Self::Heap(bytes) => visit(bytes),
            Self::Slot(slot) => visit(slot),
            Self::Heaps(parts) => parts.iter_mut().for_each(|part| visit(part)),
            Self::Slots(parts) => parts.iter_mut().for_each(|part| visit(part)),
        }
    }
}

/// A type of memory which an operation takes at the start and gives back with the completion.
pub trait OpBuffer: Sized {
    fn into_memory(self) -> Memory;

    /// Takes the memory back; `None` when `memory` is of another kind.
    #[cfg(test)]
    fn from_memory(memory: Memory) -> Option<Self>;
}

/// Memory in one piece, for plain reads and writes.
pub trait Contiguous: OpBuffer {}

/// Memory in several pieces, for vectored reads and writes.
pub trait Gathered: OpBuffer {}

impl Contiguous for Vec<u8> {}
impl Contiguous for Slot {}
impl Gathered for Vec<Vec<u8>> {}
impl Gathered for Vec<Slot> {}

impl OpBuffer for Memory {
    fn into_memory(self) -> Memory {
        self
    }

    #[cfg(test)]
    fn from_memory(memory: Memory) -> Option<Self> {
        Some(memory)
    }
}

/// No memory, as for a sync.
impl OpBuffer for () {
    fn into_memory(self) -> Memory {
        Memory::None
    }

    #[cfg(test)]
    fn from_memory(memory: Memory) -> Option<Self> {
        matches!(memory, Memory::None).then_some(())
    }
}

macro_rules! buffer {
    ($type:ty, $variant:ident) => {
        impl OpBuffer for $type {
            fn into_memory(self) -> Memory {
                Memory::$variant(self)
            }

            #[cfg(test)]
            fn from_memory(memory: Memory) -> Option<Self> {
                match memory {
                    Memory::$variant(buffer) => Some(buffer),
                    _ => None,
                }
            }
        }
    };
}

buffer!(Vec<u8>, Heap);
buffer!(Slot, Slot);
buffer!(Vec<Vec<u8>>, Heaps);
buffer!(Vec<Slot>, Slots);
