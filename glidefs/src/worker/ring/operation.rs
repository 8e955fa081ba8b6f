//! Operations for which a ring can be asked.
//!
//! Owns the description of an operation: kind, file, offset, memory, and the order among others. Does not own the encoding
//! ([`super::under_way`]). An operation which makes no sense, such as a slot of another arena, is refused at the start: the completion
//! says so. The list of kinds of memory is closed: the ring relies on bytes which stay where they are when the owner is moved. Invariant:
//! [`Memory::for_each_part`] visits the same bytes in the same order every time, until the memory is given back.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::buffer::Slot;
use crate::cache::SegmentFile;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Makes the data written to the file survive a power cut, with the metadata needed to read the data again (`fdatasync`).
    SyncData,
    /// Reads into one piece of memory.
    Read,
    /// Writes several pieces of memory.
    Writev,
    /// Writes several slots of the registered arena (Linux 6.15). Ask [`Ring::has_writev_fixed`](super::Ring::has_writev_fixed) first.
    WritevFixed,
}

/// The file of an operation, kept open until the completion has been seen.
#[derive(Clone)]
pub enum Target {
    /// A file, pipe or the like.
    Open(Arc<dyn AsFd>),
    /// A file of the cache.
    Segment(Arc<dyn SegmentFile>),
    /// A file of the cache, the way appends go.
    SegmentAppend(Arc<dyn SegmentFile>),
}

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

/// An operation, ready to be started: moves all of the memory's bytes, unless the file ends before. When a transfer fails, the result is
/// the error, and any part of the data may have been moved.
#[must_use = "an operation does nothing until it is started on a ring"]
pub struct Op {
    pub kind: Kind,
    pub target: Target,
    /// Where the bytes are in the file.
    pub offset: u64,
    /// Given back with the completion. A read takes one piece.
    pub memory: Memory,
}

impl Op {
    pub fn new(kind: Kind, target: Target, offset: u64, memory: Memory) -> Self {
        Self { kind, target, offset, memory }
    }
}
