//! A segment file in the memory of this process, to be read there.
//!
//! Owns the address range and the lock on its pages. Does not own which segments are mapped (`keeper/mapped`). Invariant: bytes are given
//! out only of pages locked into memory before. Of such a page
//!
//! - nobody waits for the disk, or gets SIGBUS where the disk fails, because the kernel never takes a locked page away, and fails a
//!   write of the page to the disk without dropping the page (the kernel may move a page to another place in memory: a look at it then
//!   waits for the copy);
//! - nobody sees other bytes between two looks, because the kernel has no reason to read the page again, and a segment's records are
//!   not written a second time while anybody may read the records, but with the same bytes.
//!
//! A file made shorter by another program would take its pages away all the same, and end this process with SIGBUS; so does an error of
//! the memory itself, as in any other memory of the process.

use std::ffi::c_void;
use std::io;
use std::num::NonZero;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mlock, mmap, munmap};

use crate::units::FRAME_BYTES;

/// All of a segment file, of which the first frames are locked into memory.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<c_void>,
    bytes: NonZero<usize>,
    /// Number of frames locked, from the first frame on.
    locked: AtomicU32,
    /// No frame is given out any more.
    given_up: AtomicBool,
}

// SAFETY: a mapping belongs to the process, not to a thread; the fields that change are atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above; the bytes are only read.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of `file`, and locks nothing.
    pub fn of(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).ok().and_then(NonZero::new).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel chooses the addresses, so no memory in use is replaced; nobody writes through the mapping.
        let start = unsafe { mmap(None, bytes, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, 0)? };
        Ok(Self { start, bytes, locked: AtomicU32::new(0), given_up: AtomicBool::new(false) })
    }

    /// Locks the frames before `end` into memory. May wait for the disk. One caller at a time.
    pub fn lock(&self, end: u32) -> io::Result<()> {
        let from = self.locked() as usize * FRAME_BYTES;
        let to = end as usize * FRAME_BYTES;
        let Some(bytes) = to.checked_sub(from).filter(|bytes| *bytes > 0) else { return Ok(()) };
        if to > self.bytes.get() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the range is in the mapping: `to` was compared with the mapping's length.
        unsafe { mlock(self.start.byte_add(from), bytes)? };
        self.locked.store(end, Ordering::Release);
        Ok(())
    }

    /// Number of frames locked, from the first frame on.
    pub fn locked(&self) -> u32 {
        self.locked.load(Ordering::Acquire)
    }

    /// Gives out no frame any more, because one has other bytes than were acknowledged. The keeper then unmaps the file, so that the
    /// page can leave memory.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// The bytes of the frames `first..first + count`; `None` where one is not locked.
    ///
    /// # Safety
    /// As long as the bytes are in use, the segment is pinned, and the frames are those of records appended to the segment.
    pub unsafe fn frames(&self, first: u32, count: u32) -> Option<&[u8]> {
        if self.is_given_up() || first.checked_add(count)? > self.locked() {
            return None;
        }
        // SAFETY: locked frames are in the mapping, which lives as long as `self`. Nobody writes to appended frames of a pinned
        // segment, but with the same bytes.
        Some(unsafe {
            let start = self.start.cast::<u8>().add(first as usize * FRAME_BYTES);
            std::slice::from_raw_parts(start.as_ptr(), count as usize * FRAME_BYTES)
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are those of the mapping, and slices of it cannot outlive `self`.
        let unmapped = unsafe { munmap(self.start, self.bytes.get()) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn frames_are_given_out_once_they_are_locked_and_with_the_bytes_of_the_file() {
        let file = tempfile::tempfile().unwrap();
        let frames: Vec<u8> = (0..4u8).flat_map(|frame| [frame; FRAME_BYTES]).collect();
        file.write_all_at(&frames, 0).unwrap();
        let mapping = Mapping::of(file.as_fd(), 4 * FRAME_BYTES as u64).unwrap();
        // SAFETY: nobody writes to the file any more.
        let look = |first, count| unsafe { mapping.frames(first, count) };
        assert_eq!(look(0, 1), None);
        mapping.lock(3).unwrap();
        assert!(look(1, 2) == Some(&frames[FRAME_BYTES..3 * FRAME_BYTES]));
        assert_eq!(look(1, 3), None);
        assert_eq!(look(u32::MAX, 2), None);
        assert!(mapping.lock(5).is_err(), "the file has no fifth frame");
        mapping.lock(2).unwrap();
        assert_eq!(mapping.locked(), 3, "what is locked stays locked");
        mapping.give_up();
        assert_eq!(look(1, 2), None);
    }
}
