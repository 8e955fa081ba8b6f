//! Operations for which a ring can be asked.
//!
//! Owns the description of an operation: kind, file, offset, memory, and the order among others. Does not own the encoding
//! ([`super::under_way`]). An operation which makes no sense, such as a slot of another arena, is refused at the start: the completion
//! says so.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use io_uring::opcode;

use super::memory::Memory;
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
    /// Writes several slots of the registered arena (Linux 6.15).
    WritevFixed,
}

impl Kind {
    /// The kernel's number of the kind.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::SyncData => opcode::Fsync::CODE,
            Self::Read => opcode::Read::CODE,
            Self::Writev => opcode::Writev::CODE,
            Self::WritevFixed => opcode::WritevFixed::CODE,
        }
    }

    /// Whether the operation fills memory.
    pub(super) fn reads(self) -> bool {
        self == Self::Read
    }

    /// Whether the memory must be of the registered arena.
    pub(super) fn is_fixed(self) -> bool {
        self == Self::WritevFixed
    }
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

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(file) => f.debug_tuple("Open").field(&file.as_fd()).finish(),
            Self::Segment(file) => f.debug_tuple("Segment").field(file).finish(),
            Self::SegmentAppend(file) => f.debug_tuple("SegmentAppend").field(file).finish(),
        }
    }
}

impl From<Arc<dyn SegmentFile>> for Target {
    fn from(file: Arc<dyn SegmentFile>) -> Self {
        Self::Segment(file)
    }
}

/// An operation, ready to be started. `B` is the memory, given back with the completion.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is started on a ring"]
pub struct Op<B> {
    pub(super) kind: Kind,
    pub(super) target: Target,
    pub(super) offset: u64,
    pub(super) buffer: B,
    pub(super) whole: bool,
}

impl<B> Op<B> {
    fn new(kind: Kind, target: impl Into<Target>, offset: u64, buffer: B) -> Self {
        let target = target.into();
        Self { kind, target, offset, buffer, whole: false }
    }

    /// Goes on after a short transfer, until all bytes are moved or the file ends. The result is then the sum. When a transfer
    /// fails, the result is the error, and any part of the data may have been moved.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }
}

impl<B: Into<Memory>> Op<B> {
    /// The same operation without the type of the memory.
    pub fn erase(self) -> Op<Memory> {
        let Self { kind, target, offset, buffer, whole } = self;
        Op { kind, target, offset, buffer: buffer.into(), whole }
    }

    /// Reads from byte `offset` of the file into `buffer`, which is in one piece.
    pub fn read(target: impl Into<Target>, offset: u64, buffer: B) -> Self {
        Self::new(Kind::Read, target, offset, buffer)
    }
}

impl Op<()> {
    /// Makes completed writes survive a power cut, with the metadata needed to read them (`fdatasync`).
    pub fn sync_data(target: impl Into<Target>) -> Self {
        Self::new(Kind::SyncData, target, 0, ())
    }
}

impl Op<Vec<Slot>> {
    /// Writes `slots`, in order, to the file from byte `offset` on.
    pub fn writev(target: impl Into<Target>, offset: u64, slots: Vec<Slot>) -> Self {
        Self::new(Kind::Writev, target, offset, slots)
    }

    /// As [`writev`](Self::writev), from slots of the registered arena. Ask [`Ring::supports`](super::Ring::supports) first.
    pub fn writev_fixed(target: impl Into<Target>, offset: u64, slots: Vec<Slot>) -> Self {
        Self::new(Kind::WritevFixed, target, offset, slots)
    }
}
