//! The faults of the disk for tests, and the clock which makes some of them pass.
//!
//! Does not own the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cache::MonotonicClock;
use crate::cache::log::disk::Clock;

/// The machine's clock without sleep. [`Faults::away`] says how much sleep makes the disk come back.
#[derive(Debug)]
pub(super) struct Sleepless {
    pub machine: MonotonicClock,
    pub faults: Arc<Faults>,
}

impl Clock for Sleepless {
    fn now(&self) -> Duration {
        let mut slept = self.faults.slept.lock().unwrap();
        *slept += *self.faults.tick.lock().unwrap();
        self.machine.now() + *slept
    }

    fn sleep(&self, time: Duration) {
        *self.faults.slept.lock().unwrap() += time;
        self.faults.count_sleep();
        let mut away = self.faults.away.lock().unwrap();
        *away = away.saturating_sub(time);
    }
}

/// The faults of the disk.
#[derive(Debug, Default)]
pub struct Faults {
    /// How often somebody read what the page cache has. No fault.
    pub reads_now: AtomicU32,
    pub syncs: AtomicBool,
    /// Frames which cannot be read until the next write of the frame.
    pub frames: Mutex<BTreeSet<(u32, u64)>>,
    /// The frames in `frames` stay bad: a write of one succeeds, and the next sync of the file fails.
    pub stay: AtomicBool,
    /// The page cache has the content written to frames that stay bad.
    pub copies_of_bad: AtomicBool,
    /// Reads fail until somebody has slept for so long.
    pub away: Mutex<Duration>,
    /// Frames in the page cache only, with the content of the disk: the next sync of the file fails and costs the page cache's
    /// content.
    pub unstable: Mutex<BTreeMap<(u32, u64), Vec<u8>>>,
    /// Syncs of a file with unstable frames that succeed beforehand.
    pub unstable_after: AtomicU32,
    /// Frames that stay bad, with a copy in the page cache.
    pub copied: Mutex<BTreeSet<(u32, u64)>>,
    /// Files with a failing next sync.
    pub(super) failing: Mutex<BTreeSet<u32>>,
    /// Frames with a wrong copy in the page cache.
    pub wrong_copies: Mutex<BTreeSet<(u32, u64)>>,
    /// Wrong copies stay until the frames are written: the kernel does not drop the copies.
    pub copies_stay: AtomicBool,
    pub footers: AtomicBool,
    /// The page cache has nothing.
    pub cold: AtomicBool,
    /// Only the page cache can be read: the disk is away, or no file can be opened.
    pub only_copies: AtomicBool,
    /// How many more writes to segments succeed.
    pub writes_left: Mutex<Option<u32>>,
    /// No file can be made longer: the file system is full.
    pub full: AtomicBool,
    /// The file system has no room for another superblock either.
    pub superblock_full: AtomicBool,
    /// The next record gets to the disk, and the write fails; every later write of the file fails without effect.
    pub breaks: AtomicBool,
    pub(super) broken: Mutex<BTreeSet<u32>>,
    /// Time passed in sleeps and in looks at the clock.
    slept: Mutex<Duration>,
    /// Time that a look at the clock takes.
    pub tick: Mutex<Duration>,
    after_sleeps: Mutex<Option<AfterSleeps>>,
    on_open: Mutex<Option<OnOpen>>,
    /// The daemon dies when no write is left: writes to files beside the segments count as well.
    pub dies: AtomicBool,
    /// The disk has appends that are stable at once.
    pub stable_appends: AtomicBool,
    /// The disk takes the files of such appends, and none of the appends.
    pub refuses_stable: AtomicBool,
    /// Free bytes of the file system, unless the file system is to be asked.
    pub free_bytes: Mutex<Option<u64>>,
}

/// An action due after so many sleeps.
struct AfterSleeps(u32, Box<dyn FnOnce() + Send>);

/// An action due when a file is opened, and how often the file is opened before.
struct OnOpen(u32, u32, Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for OnOpen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("OnOpen").field(&self.0).field(&self.1).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for AfterSleeps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AfterSleeps").field(&self.0).finish_non_exhaustive()
    }
}

impl Faults {
    /// Calls `action` at the end of a number of sleeps, in the place of any earlier action.
    pub fn after_sleeps(&self, sleeps: u32, action: impl FnOnce() + Send + 'static) {
        *self.after_sleeps.lock().unwrap() = Some(AfterSleeps(sleeps, Box::new(action)));
    }

    /// Calls `action` when file `number` has been opened `opens` times and is opened again.
    pub fn on_open(&self, number: u32, opens: u32, action: impl FnOnce() + Send + 'static) {
        *self.on_open.lock().unwrap() = Some(OnOpen(number, opens, Box::new(action)));
    }

    pub(super) fn count_open(&self, number: u32) {
        let mut on_open = self.on_open.lock().unwrap();
        match &mut *on_open {
            Some(OnOpen(file, left @ 1.., _)) if *file == number => *left -= 1,
            Some(OnOpen(file, ..)) if *file == number => {
                let due = on_open.take();
                drop(on_open);
                if let Some(OnOpen(.., action)) = due {
                    action();
                }
            }
            _ => {}
        }
    }

    /// Counts a write to a file beside the segments.
    pub(super) fn count_write_beside(&self) {
        if self.dies.load(Ordering::SeqCst) {
            let _ = self.count_write();
        }
    }

    /// Counts a write, which fails when no write is left.
    pub(super) fn count_write(&self) -> io::Result<()> {
        let mut writes_left = self.writes_left.lock().unwrap();
        let Some(left) = &mut *writes_left else { return Ok(()) };
        let Some(fewer) = left.checked_sub(1) else {
            drop(writes_left);
            assert!(!self.dies.load(Ordering::SeqCst), "the daemon dies");
            return Err(eio());
        };
        *left = fewer;
        Ok(())
    }

    fn count_sleep(&self) {
        let mut after = self.after_sleeps.lock().unwrap();
        match &mut *after {
            Some(AfterSleeps(left @ 1.., _)) => *left -= 1,
            _ => {
                if let Some(AfterSleeps(_, action)) = after.take() {
                    action();
                }
            }
        }
    }

    pub(super) fn check_away(&self) -> io::Result<()> {
        if self.away.lock().unwrap().is_zero() { Ok(()) } else { Err(eio()) }
    }

    /// Time passed in sleeps and in looks at the clock.
    pub fn slept(&self) -> Duration {
        *self.slept.lock().unwrap()
    }

    /// Lets broken files be written again.
    pub fn mend(&self) {
        self.breaks.store(false, Ordering::SeqCst);
        self.broken.lock().unwrap().clear();
    }
}

/// The checkpoint of a disk that may be away.
pub(super) struct Checkpoint {
    pub inner: Box<dyn io::Read + Send>,
    pub faults: Arc<Faults>,
}

impl io::Read for Checkpoint {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.faults.check_away()?;
        self.inner.read(buffer)
    }
}

pub(super) fn eio() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}
