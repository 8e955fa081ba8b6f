//! A cache directory whose disk fails as told, for tests.
//!
//! Owns the faults only: everything else is done by a real directory.

mod faults;

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub use self::faults::Faults;
use self::faults::{Checkpoint, Sleepless, eio};
use super::{Directory, MonotonicClock};
use crate::cache::Budgets;
use crate::cache::facade::Cache;
use crate::cache::log::disk::{CheckpointFile, Disk, Lock, SegmentFile};
use crate::cache::log::error::CacheError;
use crate::cache::log::mapping::Mapping;
use crate::cache::options::{Known, OnFull, Options, Recovered};
use crate::units::FRAME_BYTES;

/// Length of a segment of [`Faulty::open`].
pub const SEGMENT_BYTES: u64 = 1 << 20;

#[derive(Clone, Debug)]
pub struct Faulty {
    inner: Arc<Directory>,
    pub faults: Arc<Faults>,
    /// [`Options::hands`] of a cache opened here.
    pub hands: usize,
}

#[derive(Debug)]
struct File {
    inner: Arc<dyn SegmentFile>,
    number: u32,
    faults: Arc<Faults>,
    is_stable: bool,
}

impl Faulty {
    /// A directory at `path` without faults.
    pub fn new(path: &std::path::Path) -> Self {
        Self { inner: Arc::new(Directory::new(path)), faults: Arc::default(), hands: 1 }
    }

    pub fn open(&self, known: Known) -> Result<(Cache, Recovered), CacheError> {
        self.open_with(16, known)
    }

    /// Opens the cache there, of `segments` segments.
    pub fn open_with(&self, segments: u64, known: Known) -> Result<(Cache, Recovered), CacheError> {
        let (disk, clock) = (Arc::new(self.clone()), Arc::new(self.clock()));
        Cache::open(disk, clock, self.options(segments), known)
    }

    fn options(&self, segments: u64) -> Options {
        Options {
            size_bytes: segments * SEGMENT_BYTES,
            segment_bytes: SEGMENT_BYTES,
            shards: 1,
            on_full: OnFull::Wait,
            checksums_bytes_max: 0,
            mapped_bytes_max: 0,
            budgets: Budgets::default(),
            hands: self.hands,
        }
    }

    fn clock(&self) -> Sleepless {
        Sleepless { machine: MonotonicClock::default(), faults: Arc::clone(&self.faults) }
    }

    pub fn lose(&self, number: u32, frame: u64) {
        self.faults.frames.lock().unwrap().insert((number, frame));
    }

    /// Segment number and frame of the first frame that satisfies `is`.
    pub fn find(&self, mut is: impl FnMut(&[u8]) -> bool) -> Option<(u32, u64)> {
        for number in 0..16 {
            let Ok(bytes) = std::fs::read(self.inner.segment_name(number)) else { continue };
            if let Some(frame) = bytes.chunks_exact(FRAME_BYTES).position(&mut is) {
                return Some((number, frame as u64));
            }
        }
        None
    }

    /// The frames of the file of `segment`.
    pub fn frames(&self, number: u32) -> std::vec::IntoIter<Vec<u8>> {
        let bytes = std::fs::read(self.inner.segment_name(number)).unwrap_or_default();
        bytes.chunks_exact(FRAME_BYTES).map(<[u8]>::to_vec).collect::<Vec<_>>().into_iter()
    }

    /// Writes the file of `segment`, past the faults.
    pub fn restore(&self, number: u32, frames: &[Vec<u8>]) {
        std::fs::write(self.inner.segment_name(number), frames.concat()).unwrap();
    }

    /// Changes a byte of a frame.
    pub fn rot(&self, (number, frame): (u32, u64)) {
        let path = self.inner.segment_name(number);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[usize::try_from(frame).unwrap() * FRAME_BYTES + 100] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
}

impl File {
    fn frames(&self, len: usize, offset: u64) -> std::ops::Range<(u32, u64)> {
        let first = offset / FRAME_BYTES as u64;
        (self.number, first)..(self.number, first + len.div_ceil(FRAME_BYTES) as u64)
    }

    fn check(&self, len: usize, offset: u64) -> io::Result<()> {
        self.faults.check_away()?;
        let copied = self.faults.copied.lock().unwrap();
        match self
            .faults
            .frames
            .lock()
            .unwrap()
            .range(self.frames(len, offset))
            .find(|bad| !copied.contains(*bad))
        {
            Some(_) => Err(eio()),
            None => Ok(()),
        }
    }
}

impl File {
    /// Changes the bytes read of frames with a wrong copy in the page cache.
    fn spoil(&self, buffer: &mut [u8], offset: u64) {
        let first = offset / FRAME_BYTES as u64;
        for (_, frame) in self.faults.wrong_copies.lock().unwrap().range(self.frames(buffer.len(), offset)) {
            buffer[usize::try_from(frame - first).unwrap() * FRAME_BYTES] ^= 1;
        }
    }
}

impl File {
    /// The frames that a sync costs now, with the content of the disk.
    fn costs_of_a_sync(&self) -> BTreeMap<(u32, u64), Vec<u8>> {
        let mut unstable = self.faults.unstable.lock().unwrap();
        let passes = &self.faults.unstable_after;
        let is_mine = unstable.keys().any(|(number, _)| *number == self.number);
        if is_mine
            && passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        {
            return BTreeMap::new();
        }
        let mut others = unstable.clone();
        others.retain(|(number, _), _| *number != self.number);
        unstable.retain(|(number, _), _| *number == self.number);
        std::mem::replace(&mut *unstable, others)
    }
}

impl SegmentFile for File {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum();
        let range = self.frames(len, offset);
        self.faults.count_write()?;
        let is_footer = parts.first().is_some_and(|part| part.starts_with(b"GLIDEFTR"));
        if is_footer && self.faults.footers.load(Ordering::SeqCst) {
            return Err(eio());
        }
        self.faults.wrong_copies.lock().unwrap().retain(|frame| !range.contains(frame));
        let mut frames = self.faults.frames.lock().unwrap();
        if !self.faults.stay.load(Ordering::SeqCst) {
            frames.retain(|frame| !range.contains(frame));
        } else if frames.range(range.clone()).next().is_some() {
            self.faults.failing.lock().unwrap().insert(self.number);
            if self.faults.copies_of_bad.load(Ordering::SeqCst) {
                self.faults.copied.lock().unwrap().extend(frames.range(range));
            }
        }
        drop(frames);
        let mut broken = self.faults.broken.lock().unwrap();
        if broken.contains(&self.number) {
            return Err(eio());
        }
        // Only records have a header and data.
        if parts.len() > 1 && self.faults.breaks.swap(false, Ordering::SeqCst) {
            broken.insert(self.number);
            self.inner.write_at(parts, offset)?;
            return Err(eio());
        }
        drop(broken);
        self.inner.write_at(parts, offset)
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(buffer.len(), offset)?;
        self.inner.read_at(buffer, offset)?;
        self.spoil(buffer, offset);
        Ok(())
    }

    fn read_from_disk(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(buffer.len(), offset)?;
        if self.faults.only_copies.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let range = self.frames(buffer.len(), offset);
        if !self.faults.copies_stay.load(Ordering::SeqCst) {
            self.faults.wrong_copies.lock().unwrap().retain(|frame| !range.contains(frame));
        }
        self.inner.read_at(buffer, offset)
    }

    fn read_now(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        self.faults.reads_now.fetch_add(1, Ordering::SeqCst);
        self.check(buffer.len(), offset)?;
        let read = self.inner.read_now(buffer, offset)?;
        self.spoil(buffer, offset);
        Ok(read && !self.faults.cold.load(Ordering::SeqCst))
    }

    fn sync(&self) -> io::Result<()> {
        let costs = self.costs_of_a_sync();
        for ((_, frame), bytes) in &costs {
            self.inner.write_at(&[IoSlice::new(bytes)], frame * FRAME_BYTES as u64)?;
        }
        if !costs.is_empty() {
            return Err(eio());
        }
        if self.faults.failing.lock().unwrap().remove(&self.number)
            || self.faults.syncs.load(Ordering::SeqCst)
        {
            return Err(eio());
        }
        self.inner.sync()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn append_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        if self.is_stable && self.faults.refuses_stable.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.write_at(parts, offset)?;
        if self.is_stable { self.inner.sync() } else { Ok(()) }
    }

    fn stable(&self) -> io::Result<Option<Arc<dyn SegmentFile>>> {
        let Self { inner, number, faults, .. } = self;
        let is_possible = faults.stable_appends.load(Ordering::SeqCst);
        Ok(is_possible.then(|| {
            let (inner, faults) = (Arc::clone(inner), Arc::clone(faults));
            Arc::new(Self { inner, number: *number, faults, is_stable: true }) as Arc<dyn SegmentFile>
        }))
    }

    fn map(&self, bytes: u64) -> io::Result<Option<Mapping>> {
        self.inner.map(bytes)
    }
}

impl Disk for Faulty {
    fn location(&self) -> String {
        self.inner.location()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>> {
        self.inner.lock()
    }

    fn read_superblock(&self) -> io::Result<Option<Vec<u8>>> {
        self.inner.read_superblock()
    }

    fn replace_superblock(&self, bytes: &[u8]) -> io::Result<()> {
        self.faults.count_write_beside();
        if self.faults.superblock_full.load(Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.inner.replace_superblock(bytes)
    }

    fn segments(&self) -> io::Result<Vec<u32>> {
        self.inner.segments()
    }

    fn segment_name(&self, number: u32) -> String {
        self.inner.segment_name(number)
    }

    fn open_segment(&self, number: u32, bytes: u64) -> io::Result<Arc<dyn SegmentFile>> {
        if bytes > 0 && self.faults.full.load(Ordering::SeqCst) && self.frames(number).len() == 0 {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        self.faults.count_open(number);
        let inner = self.inner.open_segment(number, bytes)?;
        Ok(Arc::new(File { inner, number, faults: Arc::clone(&self.faults), is_stable: false }))
    }

    fn remove_segment(&self, number: u32) -> io::Result<()> {
        // The next file of the name has other sectors.
        self.faults.frames.lock().unwrap().retain(|(bad, _)| *bad != number);
        self.inner.remove_segment(number)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.faults.free_bytes.lock().unwrap().map_or_else(|| self.inner.free_bytes(), Ok)
    }

    fn read_checkpoint(&self) -> io::Result<Option<Box<dyn io::Read + Send>>> {
        self.faults.check_away()?;
        let read = self.inner.read_checkpoint()?;
        let faults = || Arc::clone(&self.faults);
        Ok(read.map(|inner| Box::new(Checkpoint { inner, faults: faults() }) as Box<dyn io::Read + Send>))
    }

    fn remove_checkpoint(&self) -> io::Result<()> {
        self.faults.count_write_beside();
        self.inner.remove_checkpoint()
    }

    fn begin_checkpoint(&self) -> io::Result<Box<dyn CheckpointFile>> {
        self.inner.begin_checkpoint()
    }
}
