//! Reading at start from a disk that may come back.
//!
//! Owns how long a start waits for failing reads. Does not own the meaning of a read that goes on failing. Invariant: all reads
//! of the log wait no longer together than [`PAUSES_MS`] say, however many fail; a start without the checkpoint that the start tried
//! reads the log twice.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::cache::log::disk::{Clock, SegmentFile};

/// Pauses before further tries, two seconds in all: the path to a disk is back by then after a failover.
const PAUSES_MS: [u64; 6] = [20, 80, 200, 400, 600, 700];

/// The pauses left to a reading of the log.
#[derive(Debug)]
pub(super) struct Patience<'a> {
    clock: &'a dyn Clock,
    taken: AtomicUsize,
}

impl<'a> Patience<'a> {
    pub fn new(clock: &'a dyn Clock) -> Self {
        Self { clock, taken: AtomicUsize::new(0) }
    }

    /// `file`, with each failed read tried again after each pause still left.
    pub fn with<'f>(&'f self, file: &'f dyn SegmentFile) -> Patient<'f> {
        Patient { file, patience: self }
    }

    /// Waits before another try; `false` when no pause is left.
    fn pause(&self) -> bool {
        let pause = PAUSES_MS.get(self.taken.fetch_add(1, Ordering::Relaxed));
        if let Some(pause) = pause {
            self.clock.sleep(Duration::from_millis(*pause));
        }
        pause.is_some()
    }
}

/// A segment file whose failed reads are tried again.
#[derive(Debug)]
pub(super) struct Patient<'a> {
    file: &'a dyn SegmentFile,
    patience: &'a Patience<'a>,
}

impl SegmentFile for Patient<'_> {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_at(parts, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        loop {
            match self.file.read_at(buffer, offset) {
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof && self.patience.pause() => {}
                read => return read,
            }
        }
    }

    fn read_from_disk(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        // A failed read past the page cache is not tried again.
        self.file.read_from_disk(buffer, offset)
    }

    fn read_now(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        self.file.read_now(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.file.fd()
    }
}
