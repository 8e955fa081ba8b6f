//! What can be asked of a ring.
//!
//! Owns the description of an operation: kind, file, place, memory, and how it is ordered among others. Does not own how it is
//! encoded ([`super::kernel`]). An operation that makes no sense, such as a window outside its memory, is refused when it is
//! started, and its completion says so.

use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use io_uring::opcode;

use super::memory::{Contiguous, Gathered, Memory, OpBuffer};
use crate::buffer::Slot;
use crate::cache::SegmentFile;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Nop,
    /// Makes what was written to the file survive a power cut.
    Sync {
        /// Only what is needed to read the data again, as `fdatasync` does.
        data_only: bool,
    },
    /// Reads into one piece of memory.
    Read,
    /// Writes one piece of memory.
    Write,
    /// Reads into several pieces of memory.
    Readv,
    /// Writes several pieces of memory.
    Writev,
    /// Reads into a slot of the registered arena.
    ReadFixed,
    /// Writes a slot of the registered arena.
    WriteFixed,
    /// Reads into several slots of the registered arena (Linux 6.15).
    ReadvFixed,
    /// Writes several slots of the registered arena (Linux 6.15).
    WritevFixed,
}

impl Kind {
    /// The kernel's number of it.
    pub(super) fn code(self) -> u8 {
        match self {
            Self::Nop => opcode::Nop::CODE,
            Self::Sync { .. } => opcode::Fsync::CODE,
            Self::Read => opcode::Read::CODE,
            Self::Write => opcode::Write::CODE,
            Self::Readv => opcode::Readv::CODE,
            Self::Writev => opcode::Writev::CODE,
            Self::ReadFixed => opcode::ReadFixed::CODE,
            Self::WriteFixed => opcode::WriteFixed::CODE,
            Self::ReadvFixed => opcode::ReadvFixed::CODE,
            Self::WritevFixed => opcode::WritevFixed::CODE,
        }
    }

    /// Whether it fills memory.
    pub(super) fn reads(self) -> bool {
        matches!(self, Self::Read | Self::Readv | Self::ReadFixed | Self::ReadvFixed)
    }

    /// Whether its memory must be of the registered arena.
    pub(super) fn is_fixed(self) -> bool {
        matches!(self, Self::ReadFixed | Self::WriteFixed | Self::ReadvFixed | Self::WritevFixed)
    }
}

/// The file an operation is for. It is kept open until the completion has been seen.
#[derive(Clone)]
pub enum Target {
    /// No file.
    Nothing,
    /// The file registered at this place of the ring.
    Registered(u32),
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
            Self::Nothing => f.write_str("Nothing"),
            Self::Registered(place) => f.debug_tuple("Registered").field(place).finish(),
            Self::Open(file) => f.debug_tuple("Open").field(&file.as_fd()).finish(),
            Self::Segment(file) => f.debug_tuple("Segment").field(file).finish(),
            Self::SegmentAppend(file) => f.debug_tuple("SegmentAppend").field(file).finish(),
        }
    }
}

impl From<Arc<File>> for Target {
    fn from(file: Arc<File>) -> Self {
        Self::Open(file)
    }
}

impl From<Arc<OwnedFd>> for Target {
    fn from(file: Arc<OwnedFd>) -> Self {
        Self::Open(file)
    }
}

impl From<Arc<dyn SegmentFile>> for Target {
    fn from(file: Arc<dyn SegmentFile>) -> Self {
        Self::Segment(file)
    }
}

/// An operation, ready to be started. `B` is the memory it was given and gives back.
#[derive(Debug)]
#[must_use = "an operation does nothing until it is started on a ring"]
pub struct Op<B> {
    pub(super) kind: Kind,
    pub(super) target: Target,
    pub(super) offset: u64,
    pub(super) buffer: B,
    /// Which bytes of the buffer; all when `None`.
    pub(super) window: Option<Range<usize>>,
    pub(super) whole: bool,
    pub(super) after_all: bool,
}

impl<B> Op<B> {
    fn new(kind: Kind, target: impl Into<Target>, offset: u64, buffer: B) -> Self {
        let target = target.into();
        Self { kind, target, offset, buffer, window: None, whole: false, after_all: false }
    }

    /// Moves only the bytes of `window` of the memory; for several pieces counted over all of them.
    pub fn window(mut self, window: Range<usize>) -> Self {
        self.window = Some(window);
        self
    }

    /// Goes on after a short transfer, until all bytes are moved or the file ends. What is reported is then the sum.
    /// A transfer that stops with an error reports the error, and any part of it may have been done.
    /// Without effect in a chain, which a short transfer breaks.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Starts only after everything that was started on the ring before has completed (`IOSQE_IO_DRAIN`), and holds up
    /// everything that is started later until it has completed itself.
    pub fn after_all(mut self) -> Self {
        self.after_all = true;
        self
    }
}

impl<B: OpBuffer> Op<B> {
    /// The same operation with the type of its memory forgotten, so that different ones can stand in one list.
    pub fn erase(self) -> Op<Memory> {
        let Self { kind, target, offset, buffer, window, whole, after_all } = self;
        Op { kind, target, offset, buffer: buffer.into_memory(), window, whole, after_all }
    }
}

impl Op<()> {
    /// Does nothing, and completes.
    pub fn nop() -> Self {
        Self::new(Kind::Nop, Target::Nothing, 0, ())
    }

    /// Makes writes that have completed survive a power cut, with the file's metadata (`fsync`).
    pub fn sync(target: impl Into<Target>) -> Self {
        Self::new(Kind::Sync { data_only: false }, target, 0, ())
    }

    /// Makes writes that have completed survive a power cut, with as much metadata as reading them needs (`fdatasync`).
    pub fn sync_data(target: impl Into<Target>) -> Self {
        Self::new(Kind::Sync { data_only: true }, target, 0, ())
    }
}

impl<B: Contiguous> Op<B> {
    /// Reads from byte `offset` of the file into `buffer`.
    pub fn read(target: impl Into<Target>, offset: u64, buffer: B) -> Self {
        Self::new(Kind::Read, target, offset, buffer)
    }

    /// Writes `buffer` to the file from byte `offset` on.
    pub fn write(target: impl Into<Target>, offset: u64, buffer: B) -> Self {
        Self::new(Kind::Write, target, offset, buffer)
    }
}

impl<B: Gathered> Op<B> {
    /// Reads from byte `offset` of the file into the pieces of `buffers`, in order.
    pub fn readv(target: impl Into<Target>, offset: u64, buffers: B) -> Self {
        Self::new(Kind::Readv, target, offset, buffers)
    }

    /// Writes the pieces of `buffers`, in order, to the file from byte `offset` on.
    pub fn writev(target: impl Into<Target>, offset: u64, buffers: B) -> Self {
        Self::new(Kind::Writev, target, offset, buffers)
    }
}

impl Op<Slot> {
    /// As [`read`](Self::read), into a slot of the arena that is registered with the ring: the kernel does not have to look
    /// up and pin its pages.
    pub fn read_fixed(target: impl Into<Target>, offset: u64, slot: Slot) -> Self {
        Self::new(Kind::ReadFixed, target, offset, slot)
    }

    /// As [`write`](Self::write), from a slot of the registered arena.
    pub fn write_fixed(target: impl Into<Target>, offset: u64, slot: Slot) -> Self {
        Self::new(Kind::WriteFixed, target, offset, slot)
    }
}

impl Op<Vec<Slot>> {
    /// As [`readv`](Self::readv), into slots of the registered arena. Ask [`Ring::supports`](super::Ring::supports) first.
    pub fn readv_fixed(target: impl Into<Target>, offset: u64, slots: Vec<Slot>) -> Self {
        Self::new(Kind::ReadvFixed, target, offset, slots)
    }

    /// As [`writev`](Self::writev), from slots of the registered arena. Ask [`Ring::supports`](super::Ring::supports) first.
    pub fn writev_fixed(target: impl Into<Target>, offset: u64, slots: Vec<Slot>) -> Self {
        Self::new(Kind::WritevFixed, target, offset, slots)
    }
}
