//! How the cache reaches the disk and the clock.
//!
//! Owns the traits only. `directory` implements the disk on a real directory; the crash tests implement a disk that tears, loses
//! and fails. Invariant: bytes that [`SegmentFile::sync`] covered survive a power cut; bytes that [`SegmentFile::write_at`] took
//! survive the death of the process.

use std::fmt::Debug;
use std::io::{self, IoSlice, Read};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::mapping::Mapping;

/// Keeps every other process out of a cache directory while the lock, or a copy of the lock's descriptor, lives.
pub trait Lock: Debug + Send + Sync {
    /// The descriptor that holds the lock. A ring with the descriptor registered holds the lock for as long as the kernel works
    /// for the ring, and so longer than the process lives: `kill -9` does not end a write that is under way past the page cache.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A cache directory: the superblock and the segment files. Calls may block; a worker never makes them.
pub trait Disk: Debug + Send + Sync {
    /// Name of the directory, for messages.
    fn location(&self) -> String;

    /// Keeps every other process out until the guard is dropped. `None` when another process holds the lock, or when the kernel
    /// still works for a process that has ended.
    ///
    /// # Errors
    /// `NotFound` when the directory does not exist; `PermissionDenied` or `ReadOnlyFilesystem` when the directory cannot be
    /// written.
    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>>;

    /// The superblock's bytes, or `None` in a new cache.
    fn read_superblock(&self) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the superblock: after a crash either the old or the new bytes are there, whole; after return, the new bytes.
    fn replace_superblock(&self, bytes: &[u8]) -> io::Result<()>;

    /// Numbers of all segments that have a file, in any order.
    fn segments(&self) -> io::Result<Vec<u32>>;

    /// Tells that about `count` segments are opened next, and stay open. Changes nothing but the time.
    fn expect_segments(&self, _count: usize) {}

    /// Name of the file of segment `number`, for messages.
    fn segment_name(&self, number: u32) -> String;

    /// Opens the file of segment `number`, and allocates space until the file is `bytes` long; added space reads as zeroes. A missing
    /// file is created, unless `bytes` is 0. The file's directory entry and length survive a power cut once this call returns.
    fn open_segment(&self, number: u32, bytes: u64) -> io::Result<Arc<dyn SegmentFile>>;

    /// Removes the file of segment `number`. The file does not come back after a power cut once this call returns.
    fn remove_segment(&self, number: u32) -> io::Result<()>;

    /// Bytes that the file system has free for this user.
    fn free_bytes(&self) -> io::Result<u64>;

    /// The bytes of the checkpoint, from the first one on; `None` without a checkpoint.
    fn read_checkpoint(&self) -> io::Result<Option<Box<dyn Read + Send>>>;

    /// Takes the checkpoint away, if there is one. No checkpoint from before comes back after a power cut once this call returns.
    fn remove_checkpoint(&self) -> io::Result<()>;

    /// Begins a checkpoint beside the present one, which stays until [`CheckpointFile::finish`].
    fn begin_checkpoint(&self) -> io::Result<Box<dyn CheckpointFile>>;
}

/// A checkpoint while the checkpoint is written. Dropping the value gives the checkpoint up.
pub trait CheckpointFile: Debug + Send {
    /// Adds `bytes` at the end.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Puts the checkpoint in the place of the one before: after a crash either the old or the new checkpoint is there, whole; after
    /// return, the new one.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// One segment file. Offsets and lengths are multiples of 4 KiB.
pub trait SegmentFile: Debug + Send + Sync {
    /// Writes all of `parts` at `offset`, or fails. After a failure any part of the bytes may have been written.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Fills `buffer` from `offset`, and waits for the disk as long as necessary. `UnexpectedEof` beyond the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills `buffer`, whole frames, from `offset` with the disk's own bytes, because the page cache may have a wrong copy. The
    /// copy is dropped from the page cache.
    fn read_from_disk(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buffer, offset)
    }

    /// Fills `buffer` from `offset` if no wait for the disk is necessary. `false` when the call would have to wait; the buffer's
    /// content is then undefined.
    fn read_now(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool>;

    /// Makes every write that returned before this call survive a power cut.
    fn sync(&self) -> io::Result<()>;

    /// The file descriptor, for a ring. `None` on a disk without descriptors: then [`SegmentFile::read_at`] and
    /// [`SegmentFile::sync`] have to be called on another thread.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// The file descriptor for deferred appends: either [`SegmentFile::fd`], or a descriptor that goes past the page cache.
    fn append_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd()
    }

    /// Writes all of `parts` at `offset` as a deferred append is written, on the calling thread, or fails.
    fn append_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.write_at(parts, offset)
    }

    /// The same file, with appends ([`SegmentFile::append_fd`], [`SegmentFile::append_at`]) that survive a power cut as soon as they have
    /// ended. `None` where the disk has no such writes.
    fn stable(&self) -> io::Result<Option<Arc<dyn SegmentFile>>> {
        Ok(None)
    }

    /// The first `bytes` of the file in memory; `None` where the file cannot be mapped, or appends go past the page cache.
    fn map(&self, _bytes: u64) -> io::Result<Option<Mapping>> {
        Ok(None)
    }

    /// Drops the file's pages from the page cache where appends go past the page cache: otherwise each append would have to drop
    /// pages piece by piece. Called when everything written is stable; may block.
    fn forget_pages(&self) {}
}

/// Time since some moment before the cache was opened.
pub trait Clock: Debug + Send + Sync {
    /// The time now; never less than an earlier answer.
    fn now(&self) -> Duration;

    /// Blocks the calling thread for `time`.
    fn sleep(&self, time: Duration);
}

/// The machine's monotonic clock, counted from the creation of this value.
#[derive(Debug)]
pub struct MonotonicClock(Instant);

impl Default for MonotonicClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
