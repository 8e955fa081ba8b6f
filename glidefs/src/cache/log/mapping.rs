//! A segment file in the memory of this process, to be read there.
//!
//! Owns the address range and the lock on its pages. Does not own what is mapped (`keeper/mapped`). Invariant: bytes are given out only
//! of pages locked into memory before, and stay locked as long as anybody may look at them. Of such a page
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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::sys::mman::{MapFlags, ProtFlags, mlock, mmap, munlock, munmap};

use super::heat::Stretches;
use crate::units::FRAME_BYTES;

/// A segment file, of which some stretches are locked into memory. A stretch leaves by a mapping [`Self::without`] it in the place of this one,
/// and is unlocked when nobody has this one any more.
#[derive(Debug)]
pub struct Mapping {
    pages: Arc<Pages>,
    /// The stretches given out, a bit each: all are locked.
    locked: AtomicU64,
}

/// The address range of a segment file.
#[derive(Debug)]
struct Pages {
    start: NonNull<c_void>,
    bytes: NonZero<usize>,
    stretches: Stretches,
    /// The stretches that somebody looked at since the keeper asked, a bit each.
    used: AtomicU64,
    /// No frame is given out any more.
    given_up: AtomicBool,
}

// SAFETY: a mapping belongs to the process, not to a thread; the fields that change are atomic.
unsafe impl Send for Pages {}
// SAFETY: as above; the bytes are only read.
unsafe impl Sync for Pages {}

impl Mapping {
    /// Maps the first `bytes` of `file`, and locks nothing.
    pub fn of(file: BorrowedFd<'_>, bytes: u64) -> io::Result<Self> {
        let frames = u32::try_from(bytes / FRAME_BYTES as u64).map_err(|_| io::ErrorKind::InvalidInput)?;
        let bytes = usize::try_from(bytes).ok().and_then(NonZero::new).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel chooses the addresses, so no memory in use is replaced; nobody writes through the mapping.
        let start = unsafe { mmap(None, bytes, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, file, 0)? };
        let (stretches, used, given_up) = (Stretches::of(frames), AtomicU64::new(0), AtomicBool::new(false));
        let pages = Arc::new(Pages { start, bytes, stretches, used, given_up });
        Ok(Self { pages, locked: AtomicU64::new(0) })
    }

    /// Locks a stretch into memory. May wait for the disk. One caller at a time.
    pub fn lock(&self, stretch: u32) -> io::Result<()> {
        let (start, bytes) = self.pages.stretch(stretch).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: the stretch is in the address range.
        if let Err(error) = unsafe { mlock(start, bytes) } {
            // Pages of the stretch are locked, and those that can be had later would be.
            self.pages.unlock(stretch);
            return Err(error.into());
        }
        self.locked.fetch_or(1 << stretch, Ordering::Release);
        Ok(())
    }

    /// The same file without some of the stretches.
    pub fn without(&self, stretches: u64) -> Self {
        Self { pages: Arc::clone(&self.pages), locked: AtomicU64::new(self.locked() & !stretches) }
    }

    /// Has the pages of a stretch leave memory when the kernel likes. No other mapping of these pages may give out the stretch.
    pub fn unlock(&mut self, stretch: u32) {
        *self.locked.get_mut() &= !(1 << stretch);
        self.pages.unlock(stretch);
    }

    /// The stretches that are given out, a bit each.
    pub fn locked(&self) -> u64 {
        self.locked.load(Ordering::Acquire)
    }

    /// Whether both have the same pages.
    pub fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.pages, &other.pages)
    }

    /// Whether somebody looked at the stretch since the last such question.
    pub fn take_used(&self, stretch: u32) -> bool {
        self.pages.used.fetch_and(!(1 << stretch), Ordering::Relaxed) & (1 << stretch) != 0
    }

    /// Gives out no frame any more, because one has other bytes than were acknowledged. The keeper then unmaps the file, so that the
    /// page can leave memory.
    pub fn give_up(&self) {
        self.pages.given_up.store(true, Ordering::Release);
    }

    pub fn is_given_up(&self) -> bool {
        self.pages.given_up.load(Ordering::Acquire)
    }

    /// The bytes of the frames `first..first + count`; `None` where one is not locked.
    ///
    /// # Safety
    /// As long as the bytes are in use, the segment is pinned, and the frames are those of records appended to the segment.
    pub unsafe fn frames(&self, first: u32, count: u32) -> Option<&[u8]> {
        let Pages { start, stretches, used, .. } = &*self.pages;
        let needed = stretches.of_frames(first, count)?;
        if self.is_given_up() || self.locked() & needed != needed {
            return None;
        }
        if used.load(Ordering::Relaxed) & needed != needed {
            used.fetch_or(needed, Ordering::Relaxed);
        }
        // SAFETY: stretches that are locked are in the address range, which lives as long as `self`. Nobody writes to appended frames of a
        // pinned segment, but with the same bytes.
        Some(unsafe {
            let start = start.cast::<u8>().add(first as usize * FRAME_BYTES);
            std::slice::from_raw_parts(start.as_ptr(), count as usize * FRAME_BYTES)
        })
    }
}

impl Pages {
    fn unlock(&self, stretch: u32) {
        if let Some((start, bytes)) = self.stretch(stretch) {
            // SAFETY: the stretch is in the address range.
            let unlocked = unsafe { munlock(start, bytes) };
            debug_assert!(unlocked.is_ok(), "a stretch that is mapped can be unlocked: {unlocked:?}");
        }
    }

    /// Start and length of a stretch; `None` of one that the file does not have.
    fn stretch(&self, stretch: u32) -> Option<(NonNull<c_void>, usize)> {
        let bytes = self.stretches.frames() as usize * FRAME_BYTES;
        let start = bytes.checked_mul(stretch as usize)?;
        let bytes =
            self.bytes.get().checked_sub(start).filter(|left| *left > 0 && stretch < u64::BITS)?.min(bytes);
        // SAFETY: `start` was compared with the length of the address range.
        Some((unsafe { self.start.byte_add(start) }, bytes))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: `start` and `bytes` are those of the mapping, and slices of it cannot outlive the last `Mapping` of it.
        let unmapped = unsafe { munmap(self.start, self.bytes.get()) };
        debug_assert!(unmapped.is_ok(), "a whole mapping can be unmapped: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// A file of 128 frames, so with stretches of 2 frames, each frame full of its number.
    fn file() -> (std::fs::File, Vec<u8>) {
        let file = tempfile::tempfile().unwrap();
        let frames: Vec<u8> = (0..128_u8).flat_map(|frame| [frame; FRAME_BYTES]).collect();
        file.write_all_at(&frames, 0).unwrap();
        (file, frames)
    }

    #[test]
    fn frames_are_given_out_once_they_are_locked_and_with_the_bytes_of_the_file() {
        let (file, frames) = file();
        let mapping = Mapping::of(file.as_fd(), frames.len() as u64).unwrap();
        // SAFETY: nobody writes to the file any more.
        let look = |first, count| unsafe { mapping.frames(first, count) };
        assert_eq!(look(2, 1), None);
        mapping.lock(1).unwrap();
        mapping.lock(2).unwrap();
        assert!(look(3, 3) == Some(&frames[3 * FRAME_BYTES..6 * FRAME_BYTES]));
        assert_eq!(look(3, 4), None);
        assert_eq!(look(u32::MAX, 2), None);
        assert_eq!(look(3, 0), None);
        assert!(mapping.lock(64).is_err(), "a segment has 64 stretches");
        mapping.give_up();
        assert_eq!(look(3, 1), None);
    }

    #[test]
    fn a_stretch_leaves_with_the_mapping_that_had_it() {
        let (file, frames) = file();
        let mut before = Mapping::of(file.as_fd(), frames.len() as u64).unwrap();
        before.lock(0).unwrap();
        before.lock(1).unwrap();
        let after = before.without(1);
        assert!(after.is_of(&before));
        // SAFETY: nobody writes to the file any more.
        let (old, new) = unsafe { (before.frames(0, 1), after.frames(0, 1)) };
        assert!(old.is_some() && new.is_none());
        assert_eq!((before.locked(), after.locked()), (0b11, 0b10));
        before.unlock(0);
        drop(before);
        // SAFETY: as above.
        assert!(unsafe { after.frames(2, 2) } == Some(&frames[2 * FRAME_BYTES..4 * FRAME_BYTES]));
    }

    #[test]
    fn a_stretch_counts_as_used_until_the_keeper_has_asked() {
        let (file, frames) = file();
        let mapping = Mapping::of(file.as_fd(), frames.len() as u64).unwrap();
        mapping.lock(0).unwrap();
        mapping.lock(1).unwrap();
        // SAFETY: nobody writes to the file any more.
        assert!(unsafe { mapping.frames(1, 1) }.is_some());
        assert!(!mapping.take_used(1));
        assert!(mapping.take_used(0));
        assert!(!mapping.take_used(0));
    }
}
