//! The data plane of one queue: descriptors, the character device, and in bounce mode the tags' buffers.
//!
//! Owns the mappings and the contents of the commands; the worker owns when commands are sent. Invariants: a copy moves all of a
//! request's bytes or fails, because the kernel trusts the result; the mappings live until the driver is dropped, and the worker
//! drops the driver after every tag's last completion.

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use libublk::sys;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

use super::abi;
use super::many::Encoding;
use crate::export::{Export, Operation, Request, RequestError};
use crate::units::{REQUEST_BYTES_MAX, SectorRange};
use crate::worker::driver::TagEvent;
use crate::worker::{Failure, QueueDriver};

/// A memory mapping; dropping the value unmaps the memory.
struct Mapping {
    start: NonNull<u8>,
    len: NonZeroUsize,
}

// SAFETY: a mapping is plain memory of the process; the one thread which owns the value uses the memory.
unsafe impl Send for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: start and len are those of a mapping this value made and alone refers to.
        if let Err(error) = unsafe { munmap(self.start.cast(), self.len.get()) } {
            tracing::error!(error = &error as &dyn std::error::Error, "munmap failed");
        }
    }
}

/// How requests, their data and their answers travel. The device was made for one mode, and keeps the mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A command for each tag; data is copied with system calls.
    UserCopy,
    /// A command and a buffer for each tag.
    Bounce,
}

/// One queue of a ublk device.
pub struct UblkQueue {
    export: Arc<Export>,
    device_id: u32,
    queue_id: u16,
    depth: u16,
    encoding: Encoding,
    char_device: Arc<File>,
    descriptors: Mapping,
    /// One buffer of [`REQUEST_BYTES_MAX`] a tag, in bounce mode.
    stable: Option<Mapping>,
}

impl UblkQueue {
    /// Maps queue `queue_id` of the device behind `char_device`; in bounce mode, gives each tag a buffer of its own.
    pub fn new(
        export: Arc<Export>,
        device_id: u32,
        queue_id: u16,
        depth: u16,
        encoding: Encoding,
        char_device: Arc<File>,
        mode: Mode,
    ) -> io::Result<Self> {
        if queue_id >= abi::QUEUES_MAX || depth == 0 || u32::from(depth) > sys::UBLK_MAX_QUEUE_DEPTH {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("queue {queue_id} of depth {depth}"),
            ));
        }
        let len = usize::from(depth) * size_of::<sys::ublksrv_io_desc>();
        let len = NonZeroUsize::new(len.next_multiple_of(4096)).ok_or(io::ErrorKind::InvalidInput)?;
        let offset = i64::from(sys::UBLKSRV_CMD_BUF_OFFSET)
            + i64::try_from(usize::from(queue_id) * abi::DESCRIPTOR_STRIDE).map_err(io::Error::other)?;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing; the mapping is read only.
        let start = unsafe {
            mmap(
                None,
                len,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED | MapFlags::MAP_POPULATE,
                &*char_device,
                offset,
            )?
        };
        let descriptors = Mapping { start: start.cast(), len };
        let stable = if mode == Mode::Bounce { Some(map_buffers(depth)?) } else { None };
        Ok(Self { export, device_id, queue_id, depth, encoding, char_device, descriptors, stable })
    }

    fn descriptor(&self, tag: u16) -> sys::ublksrv_io_desc {
        assert!(tag < self.depth, "tag {tag} of a queue of depth {}", self.depth);
        // SAFETY: the mapping holds `depth` descriptors and the tag is below `depth`. The kernel writes a descriptor before the
        // completion which announces the request, and not again before the answer; volatile, because the compiler knows nothing
        // of these writes.
        unsafe { self.descriptors.start.cast::<sys::ublksrv_io_desc>().add(usize::from(tag)).read_volatile() }
    }

    fn entry(&self, command: u32, fixed: u32, tag: u16, result: i32) -> io_uring::squeue::Entry {
        let buffer = self.stable_buffer(tag).map_or(0, |buffer| buffer.cast::<u8>().as_ptr() as u64);
        abi::entry(self.encoding.of(command), fixed, self.queue_id, tag, result, buffer)
    }
}

/// Address space for the buffers of `depth` tags; the kernel backs a buffer with memory at the first use.
fn map_buffers(depth: u16) -> io::Result<Mapping> {
    let len = NonZeroUsize::new(usize::from(depth) * REQUEST_BYTES_MAX).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice overlaps nothing.
    let start = unsafe {
        mmap_anonymous(
            None,
            len,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE,
        )?
    };
    Ok(Mapping { start: start.cast(), len })
}

impl QueueDriver for UblkQueue {
    fn export(&self) -> &Arc<Export> {
        &self.export
    }

    fn ids(&self) -> (u32, u16) {
        (self.device_id, self.queue_id)
    }

    fn depth(&self) -> u16 {
        self.depth
    }

    fn char_device(&self) -> RawFd {
        self.char_device.as_raw_fd()
    }

    fn arm(&mut self, tag: u16, fixed: u32) -> io_uring::squeue::Entry {
        self.entry(sys::UBLK_U_IO_FETCH_REQ, fixed, tag, 0)
    }

    fn answer(&mut self, tag: u16, fixed: u32, result: Result<u32, &Failure>) -> io_uring::squeue::Entry {
        self.entry(sys::UBLK_U_IO_COMMIT_AND_FETCH_REQ, fixed, tag, abi::code_of(result))
    }

    fn event(&self, tag: u16, result: i32) -> TagEvent {
        match result {
            abi::RESULT_OK => TagEvent::Request,
            abi::RESULT_ABORT => TagEvent::Gone,
            other => {
                tracing::error!(
                    device_id = self.device_id,
                    queue_id = self.queue_id,
                    tag,
                    error = %io::Error::from_raw_os_error(other.wrapping_neg()),
                    "the kernel refused a queue command; the tag serves no more"
                );
                TagEvent::Gone
            }
        }
    }

    fn request(&self, tag: u16) -> Result<Request, Failure> {
        let descriptor = self.descriptor(tag);
        let code = descriptor.op_flags & 0xff;
        let operation = match code {
            sys::UBLK_IO_OP_READ => Operation::Read,
            sys::UBLK_IO_OP_WRITE => Operation::Write,
            sys::UBLK_IO_OP_FLUSH => Operation::Flush,
            sys::UBLK_IO_OP_DISCARD => Operation::Discard,
            sys::UBLK_IO_OP_WRITE_ZEROES => Operation::WriteZeroes,
            _ => return Err(Failure::Unsupported { code: u8::try_from(code).unwrap_or(u8::MAX) }),
        };
        let sectors = u64::from(descriptor.nr_sectors);
        let range = if operation == Operation::Flush {
            SectorRange::new(0, 0)
        } else {
            SectorRange::new(descriptor.start_sector, sectors)
        };
        let beyond = RequestError::OutOfBounds { end: u64::MAX, sectors: self.export.sectors() };
        Ok(Request {
            operation,
            range: range.ok_or(beyond)?,
            fua: descriptor.op_flags & sys::UBLK_IO_F_FUA != 0,
        })
    }

    fn copy_in(&self, tag: u16, start: usize, buffer: &mut [u8]) -> io::Result<()> {
        let position = abi::copy_position(self.queue_id, tag) + start as u64;
        match self.char_device.read_at(buffer, position)? {
            bytes if bytes == buffer.len() => Ok(()),
            bytes => Err(short(bytes, buffer.len())),
        }
    }

    fn copy_out(&self, tag: u16, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let position = abi::copy_position(self.queue_id, tag);
        let moved = match parts {
            [part] => self.char_device.write_at(part, position)?,
            parts => {
                let position = libc::off_t::try_from(position).map_err(io::Error::other)?;
                nix::sys::uio::pwritev(&*self.char_device, parts, position)?
            }
        };
        match parts.iter().map(|part| part.len()).sum() {
            bytes if bytes == moved => Ok(()),
            bytes => Err(short(moved, bytes)),
        }
    }

    fn stable_buffer(&self, tag: u16) -> Option<NonNull<[u8]>> {
        let stable = self.stable.as_ref()?;
        assert!(tag < self.depth, "tag {tag} of a queue of depth {}", self.depth);
        // SAFETY: the mapping holds `depth` buffers and the tag is below `depth`.
        let start = unsafe { stable.start.add(usize::from(tag) * REQUEST_BYTES_MAX) };
        Some(NonNull::slice_from_raw_parts(start, REQUEST_BYTES_MAX))
    }
}

fn short(moved: usize, wanted: usize) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("the kernel moved {moved} of {wanted} bytes"))
}
