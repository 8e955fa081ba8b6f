//! Reading at start from a disk that may come back.
//!
//! Owns how long a start waits for failing reads. Does not own the meaning of a read that goes on failing. Invariant: all reads
//! of the log wait no longer together than [`PAUSES_MS`] say, however many fail, on however many threads: reads that fail at the same
//! time share a pause, and no read fails for good while another waits in a pause. A start that tried a checkpoint in vain reads the
//! log once more, with all pauses again.

use std::io::{self, IoSlice, Read};
use std::os::fd::BorrowedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::cache::log::disk::{Clock, SegmentFile};
use crate::locks::MutexExt;

/// Pauses before further tries, two seconds in all: the path to a disk is back by then after a failover.
const PAUSES_MS: [u64; 6] = [20, 80, 200, 400, 600, 700];

/// The pauses left to a reading of the log.
#[derive(Debug)]
pub(super) struct Patience<'a> {
    clock: &'a dyn Clock,
    /// Number of pauses that have ended.
    ended: AtomicUsize,
    /// Held by the thread that pauses.
    pausing: Mutex<()>,
}

impl<'a> Patience<'a> {
    pub fn new(clock: &'a dyn Clock) -> Self {
        Self { clock, ended: AtomicUsize::new(0), pausing: Mutex::default() }
    }

    /// `file`, with each failed read tried again after each pause still left.
    pub fn with<'f>(&'f self, file: &'f dyn SegmentFile) -> Patient<'f> {
        Patient { file, patience: self }
    }

    /// `source`, with each failed read tried again after each pause still left.
    pub fn with_source<'f>(&'f self, source: Box<dyn Read + Send>) -> Box<dyn Read + Send + 'f> {
        Box::new(PatientSource { source, patience: self })
    }

    /// Calls `read` until `read` succeeds, or no pause is left.
    pub fn again<R>(&self, mut read: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        // Neither the end of a file nor an interruption passes by waiting.
        let passes = |error: &io::Error| {
            !matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::Interrupted)
        };
        loop {
            let ended = self.ended.load(Ordering::Acquire);
            match read() {
                Err(error) if passes(&error) && self.pause(ended) => {}
                read => return read,
            }
        }
    }

    /// Waits before another try of a read that began when `ended` pauses had ended; `false` when no pause is left. A pause that has
    /// ended since, of another read, serves as well.
    fn pause(&self, ended: usize) -> bool {
        let _pausing = self.pausing.lock_whole();
        if self.ended.load(Ordering::Acquire) > ended {
            return true;
        }
        let pause = PAUSES_MS.get(ended);
        if let Some(pause) = pause {
            self.clock.sleep(Duration::from_millis(*pause));
            self.ended.store(ended + 1, Ordering::Release);
        }
        pause.is_some()
    }
}

/// A file read from the beginning to the end, whose failed reads are tried again.
struct PatientSource<'a> {
    source: Box<dyn Read + Send>,
    patience: &'a Patience<'a>,
}

impl Read for PatientSource<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.patience.again(|| self.source.read(buffer))
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
        self.patience.again(|| self.file.read_at(buffer, offset))
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
