//! An operation between start and completion.
//!
//! Owns the encoding of an operation, and the meaning of a transfer's result. Does not own the queues,
//! and has no `unsafe`: an entry is harmless until [`super::kernel`] pushes the entry.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use io_uring::types::FsyncFlags;
use io_uring::{opcode, squeue, types};

use super::operation::{Kind, Memory, Op, Target};

/// Set in the `user_data` of operations, clear in the `user_data` of commands.
pub(super) const OPERATION: u64 = 1 << 63;
/// Bytes which the kernel takes in one registered buffer, at most; a multiple of the largest slot, so that no slot is cut in
/// two.
pub const REGISTERED_BYTES_MAX: usize = 1 << 30;

/// The end of an operation.
#[derive(Debug)]
pub struct Completion<C> {
    /// The context given at the start.
    pub context: C,
    /// Bytes moved, or the cause of the failure. Fewer bytes than asked for mean that the file has no more.
    pub result: io::Result<usize>,
    /// The memory given at the start.
    pub memory: Memory,
}

/// A completion of a command or of an operation.
#[derive(Debug)]
pub enum Event<C> {
    /// A command pushed with [`Ring::command`](super::Ring::command) has ended.
    Command {
        /// The token given with the command.
        token: u64,
        /// The kernel's result.
        result: i32,
    },
    /// An operation started with [`Ring::start`](super::Ring::start).
    Operation(Completion<C>),
}

/// An operation the kernel has not completed yet.
pub(super) struct UnderWay<C> {
    pub context: C,
    pub op: Op,
    /// Bytes moved by earlier transfers.
    pub moved: usize,
    /// Addresses of the bytes still to move. The entry of a vectored operation points to these addresses.
    pub pieces: Vec<libc::iovec>,
}

impl<C> UnderWay<C> {
    /// Applies the result of a transfer. Returns the operation's result, or `None` when the rest must be sent again.
    pub(super) fn advance(&mut self, result: i32) -> Option<io::Result<usize>> {
        let reads = self.op.kind == Kind::Read;
        let Ok(bytes) = usize::try_from(result) else {
            let code = result.wrapping_neg();
            return match code {
                // A sync that fails has told of a lost write perhaps, and a second one would not.
                libc::EINTR if self.op.kind != Kind::SyncData => None,
                // A direct read cannot go on from within a block, and only the end of the file can have stopped the read there.
                libc::EINVAL if self.moved > 0 && reads => Some(Ok(self.moved)),
                libc::ECANCELED if self.moved > 0 => Some(Ok(self.moved)),
                _ => Some(Err(io::Error::from_raw_os_error(code))),
            };
        };
        self.moved += bytes;
        if self.moved >= self.op.memory.bytes() {
            return Some(Ok(self.moved));
        }
        match bytes {
            0 if reads => Some(Ok(self.moved)),
            0 => Some(Err(io::ErrorKind::WriteZero.into())),
            _ => None,
        }
    }

    /// The entry for the rest of the operation. The entry points to the memory of `op` and to `pieces`, which must stay until the completion.
    pub(super) fn entry(&mut self, arena: Option<(*const u8, usize)>) -> io::Result<squeue::Entry> {
        let invalid = |why: &'static str| io::Error::new(io::ErrorKind::InvalidInput, why);
        let fd = types::Fd(match &self.op.target {
            Target::Open(file) => file.as_fd().as_raw_fd(),
            Target::Segment(file) => raw(file.fd())?,
            Target::SegmentAppend(file) => raw(file.append_fd())?,
        });
        let offset =
            self.op.offset.checked_add(self.moved as u64).ok_or_else(|| invalid("beyond any file"))?;
        gather(&mut self.op.memory, self.moved, &mut self.pieces);
        let index =
            if self.op.kind == Kind::WritevFixed { registered_index(&self.pieces, arena)? } else { 0 };
        let first = self.pieces.first();
        let start = first.map_or(std::ptr::null_mut(), |piece| piece.iov_base.cast::<u8>());
        let bytes = u32::try_from(first.map_or(0, |piece| piece.iov_len))
            .map_err(|_| invalid("more bytes than one operation can move"))?;
        let count = u32::try_from(self.pieces.len()).map_err(|_| invalid("too many pieces"))?;
        let pieces = self.pieces.as_ptr();
        Ok(match self.op.kind {
            Kind::SyncData => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
            Kind::Read => opcode::Read::new(fd, start, bytes).offset(offset).build(),
            Kind::Writev => opcode::Writev::new(fd, pieces, count).offset(offset).build(),
            Kind::WritevFixed => opcode::WritevFixed::new(fd, pieces, count, index).offset(offset).build(),
        })
    }
}

fn raw(fd: Option<BorrowedFd<'_>>) -> io::Result<RawFd> {
    fd.map(|fd| fd.as_raw_fd()).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Fills `pieces` with the addresses of all bytes but the first `moved`.
fn gather(memory: &mut Memory, moved: usize, pieces: &mut Vec<libc::iovec>) {
    pieces.clear();
    let mut skipped = moved;
    memory.for_each_part(|part| {
        let (done, part) = part.split_at_mut(skipped.min(part.len()));
        skipped -= done.len();
        if !part.is_empty() {
            pieces.push(libc::iovec { iov_base: part.as_mut_ptr().cast(), iov_len: part.len() });
        }
    });
}

/// The number of the registered buffer with all of `pieces`.
fn registered_index(pieces: &[libc::iovec], arena: Option<(*const u8, usize)>) -> io::Result<u16> {
    let refused = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
    let (start, bytes) = arena.ok_or_else(|| refused("the ring has no registered arena"))?;
    let index_of = |piece: &libc::iovec| {
        let offset = piece.iov_base.addr().checked_sub(start.addr()).filter(|&offset| offset < bytes);
        offset.map(|offset| offset / REGISTERED_BYTES_MAX)
    };
    let Some(first) = pieces.first() else { return Ok(0) };
    let index = index_of(first).ok_or_else(|| refused("the slot is not of the registered arena"))?;
    if !pieces.iter().all(|piece| index_of(piece) == Some(index)) {
        return Err(refused("the slots are not of one registered buffer"));
    }
    u16::try_from(index).map_err(|_| refused("the arena is too large"))
}
