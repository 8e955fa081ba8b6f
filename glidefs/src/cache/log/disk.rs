//! How the cache reaches its disk and its clock.
//!
//! Owns the traits only. `directory` implements them on a real directory; the crash tests implement them on a disk that
//! tears, loses and fails. Invariant: what [`SegmentFile::sync`] covered survives a power cut; what
//! [`SegmentFile::write_at`] took survives the death of the process.

use std::fmt::Debug;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Keeps every other process out of a cache directory while it, or a copy of its descriptor, lives.
pub trait Lock: Send + Sync {
    /// The descriptor that holds the lock. A ring that has it registered holds the lock for as long as the kernel works for the
    /// ring, which is longer than its process lives: a write under way past the page cache is not ended by `kill -9`.
    fn fd(&self) -> Option<BorrowedFd<'_>>;
}

/// A cache directory: the superblock and the segment files. Calls may block; a worker never makes them.
pub trait Disk: Debug + Send + Sync {
    /// Where this is, for messages.
    fn location(&self) -> String;

    /// Keeps every other process out until the guard is dropped. `None` when another process holds the lock, or the kernel
    /// still works for one that has ended.
    ///
    /// # Errors
    /// `NotFound` when the directory does not exist; `PermissionDenied` or `ReadOnlyFilesystem` when it cannot be written.
    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>>;

    /// The superblock's bytes, or `None` when this is a new cache.
    fn read_superblock(&self) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the superblock: after a crash the old or the new bytes are there, whole; after return, the new ones.
    fn replace_superblock(&self, bytes: &[u8]) -> io::Result<()>;

    /// Segment numbers that have a segment file, in any order.
    fn segments(&self) -> io::Result<Vec<u32>>;

    /// Name of the segment file of `segment`, for messages.
    fn segment_name(&self, number: u32) -> String;

    /// Opens the segment file of `segment`, making it when it is missing, and allocates space until it is `bytes` long; what is
    /// added reads as zeroes. Its entry in the directory and its length survive a power cut once this returns.
    fn open_segment(&self, number: u32, bytes: u64) -> io::Result<Arc<dyn SegmentFile>>;

    /// Removes the segment file of `segment`. It does not come back after a power cut once this returns.
    fn remove_segment(&self, number: u32) -> io::Result<()>;

    /// Bytes that the file system has free for this user.
    fn free_bytes(&self) -> io::Result<u64>;
}

/// One segment file. Offsets and lengths are multiples of 4 KiB.
pub trait SegmentFile: Debug + Send + Sync {
    /// Writes all of `parts` at `offset`, or fails; after a failure any part of them may have been written.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()>;

    /// Fills `buffer` from `offset`, waiting for the disk as long as it takes. `UnexpectedEof` beyond the end of the file.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Fills `buffer`, whole frames, from `offset` with what the disk has: the page cache may have a copy that went wrong, which
    /// is dropped.
    fn read_from_disk(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_at(buffer, offset)
    }

    /// Fills `buffer` from `offset` if that needs no wait for the disk; `false` when it would (the buffer's content is
    /// then undefined).
    fn read_now(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool>;

    /// Makes every write that returned before this call survive a power cut.
    fn sync(&self) -> io::Result<()>;

    /// The file descriptor, for a ring. `None` on a disk that has none; use [`SegmentFile::read_at`] and
    /// [`SegmentFile::sync`] on another thread then.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// The file descriptor for deferred appends: [`SegmentFile::fd`], or one that goes past the page cache.
    fn append_fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd()
    }

    /// Drops what the page cache holds of the file where appends go past it: they would have to do so piece by piece. Called
    /// when everything written is stable; may block.
    fn forget_pages(&self) {}
}

/// Time since some moment before the cache was opened.
pub trait Clock: Debug + Send + Sync {
    /// Never goes back.
    fn now(&self) -> Duration;

    /// Blocks for `time`.
    fn sleep(&self, time: Duration);
}

/// The machine's monotonic clock.
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
