//! The fake computer as the cache sees it: [`Disk`], [`SegmentFile`] and [`Clock`].
//!
//! Owns nothing but handles. Invariant: a handle belongs to one life of the process and does nothing after it.

use std::fmt;
use std::io::{self, Cursor, IoSlice, Read};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use glidefs::testing::cache::{CheckpointFile, Clock, Disk, Lock, SegmentFile};

use super::machine::{Inode, Machine};

pub type Shared = Arc<Mutex<Machine>>;

/// Locks the computer.
pub fn machine(shared: &Shared) -> MutexGuard<'_, Machine> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cache directory, as one process sees the directory.
#[derive(Clone)]
pub struct FakeDisk {
    shared: Shared,
    generation: u64,
}

impl FakeDisk {
    /// The directory for the process of this life.
    pub fn new(shared: &Shared) -> Self {
        Self { shared: Arc::clone(shared), generation: machine(shared).generation() }
    }
}

impl fmt::Debug for FakeDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeDisk").field("generation", &self.generation).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Guard(FakeDisk);

impl Lock for Guard {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        machine(&self.0.shared).unlock(self.0.generation);
    }
}

impl Disk for FakeDisk {
    fn location(&self) -> String {
        "/fake".into()
    }

    fn lock(&self) -> io::Result<Option<Box<dyn Lock>>> {
        let locked = machine(&self.shared).lock(self.generation)?;
        Ok(locked.then(|| Box::new(Guard(self.clone())) as Box<dyn Lock>))
    }

    fn read_superblock(&self) -> io::Result<Option<Vec<u8>>> {
        machine(&self.shared).superblock(self.generation)
    }

    fn replace_superblock(&self, bytes: &[u8]) -> io::Result<()> {
        machine(&self.shared).replace_superblock(self.generation, bytes)
    }

    fn segments(&self) -> io::Result<Vec<u32>> {
        machine(&self.shared).segments(self.generation)
    }

    fn segment_name(&self, number: u32) -> String {
        format!("/fake/segments/{number:08}.seg")
    }

    fn open_segment(&self, number: u32, bytes: u64) -> io::Result<Arc<dyn SegmentFile>> {
        let inode = machine(&self.shared).open(self.generation, number, bytes)?;
        Ok(Arc::new(FakeFile { disk: self.clone(), inode, is_stable: false }))
    }

    fn remove_segment(&self, number: u32) -> io::Result<()> {
        machine(&self.shared).remove(self.generation, number)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(machine(&self.shared).free_bytes)
    }

    fn read_checkpoint(&self) -> io::Result<Option<Box<dyn Read + Send>>> {
        let bytes = machine(&self.shared).checkpoint(self.generation)?;
        Ok(bytes.map(|bytes| Box::new(Cursor::new(bytes)) as Box<dyn Read + Send>))
    }

    fn remove_checkpoint(&self) -> io::Result<()> {
        machine(&self.shared).remove_checkpoint(self.generation)
    }

    fn begin_checkpoint(&self) -> io::Result<Box<dyn CheckpointFile>> {
        machine(&self.shared).append_to_checkpoint(self.generation, &[])?;
        Ok(Box::new(FakeCheckpoint { disk: self.clone(), bytes: Vec::new() }))
    }
}

#[derive(Debug)]
struct FakeCheckpoint {
    disk: FakeDisk,
    bytes: Vec<u8>,
}

impl CheckpointFile for FakeCheckpoint {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes.extend_from_slice(bytes);
        machine(&self.disk.shared).append_to_checkpoint(self.disk.generation, bytes)
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        let Self { disk, bytes } = *self;
        machine(&disk.shared).replace_checkpoint(disk.generation, bytes)
    }
}

/// A segment file, opened by one process.
#[derive(Debug)]
struct FakeFile {
    disk: FakeDisk,
    inode: Inode,
    /// Whether appends are durable as soon as they have ended.
    is_stable: bool,
}

impl SegmentFile for FakeFile {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        let bytes = parts.concat();
        machine(&self.disk.shared).write(self.disk.generation, self.inode, offset, &bytes)
    }

    fn append_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        if !self.is_stable {
            return self.write_at(parts, offset);
        }
        let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
        let bytes = parts.concat();
        machine(&self.disk.shared).write_through(self.disk.generation, self.inode, offset, &bytes)
    }

    fn stable(&self) -> io::Result<Option<Arc<dyn SegmentFile>>> {
        Ok(Some(Arc::new(Self { disk: self.disk.clone(), inode: self.inode, is_stable: true })))
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        machine(&self.disk.shared).read(self.disk.generation, self.inode, offset, buffer)
    }

    fn read_now(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        machine(&self.disk.shared).read_now(self.disk.generation, self.inode, offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        machine(&self.disk.shared).sync(self.disk.generation, self.inode)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// A clock which moves only by [`FakeClock::advance`].
#[derive(Debug, Default)]
pub struct FakeClock(AtomicU64);

impl FakeClock {
    pub fn advance(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_nanos()).unwrap(), Ordering::Relaxed);
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn sleep(&self, time: Duration) {
        self.advance(time);
    }
}

#[cfg(test)]
mod tests {
    use super::super::faults::{Crash, Faults};
    use super::super::file::FRAME;
    use super::super::rng::Rng;
    use super::*;

    const SEGMENT: u64 = 8 * FRAME as u64;

    fn shared(seed: u64) -> Shared {
        Arc::new(Mutex::new(Machine::new(Rng::new(seed))))
    }

    fn write(file: &dyn SegmentFile, byte: u8, frames: usize) -> io::Result<()> {
        let bytes = vec![byte; frames * FRAME];
        let (first, second) = bytes.split_at(FRAME);
        file.write_at(&[IoSlice::new(first), IoSlice::new(second)], 0)
    }

    #[test]
    fn kill_keeps_everything_that_was_written_and_the_dead_process_changes_nothing_more() {
        let shared = shared(1);
        let disk = FakeDisk::new(&shared);
        let file = disk.open_segment(3, SEGMENT).unwrap();
        write(&*file, 1, 4).unwrap();
        machine(&shared).crash_now(Crash::Kill);
        assert!(write(&*file, 2, 4).is_err());
        assert_eq!(machine(&shared).reboot(), Some(Crash::Kill));
        assert!(write(&*file, 2, 4).is_err());
        let disk = FakeDisk::new(&shared);
        let mut bytes = vec![0; 4 * FRAME];
        disk.open_segment(3, SEGMENT).unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, vec![1; 4 * FRAME]);
    }

    #[test]
    fn a_kill_during_a_gather_write_leaves_a_prefix_of_whole_sectors() {
        let mut lengths = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let shared = shared(seed);
            let file = FakeDisk::new(&shared).open_segment(0, SEGMENT).unwrap();
            machine(&shared).arm(0, Crash::Kill);
            assert!(write(&*file, 1, 4).is_err());
            machine(&shared).reboot();
            let machine = machine(&shared);
            let bytes = machine.bytes_of(0).unwrap();
            let length = bytes.iter().take_while(|byte| **byte == 1).count();
            assert!(length.is_multiple_of(512) && bytes[length..].iter().all(|byte| *byte == 0));
            lengths.insert(length);
        }
        assert!(lengths.len() > 10 && lengths.contains(&0) && lengths.contains(&(4 * FRAME)));
    }

    #[test]
    fn a_copy_that_is_put_back_is_the_directory_as_it_was_and_no_running_process_has_a_part_in_it() {
        let shared = shared(1);
        let disk = FakeDisk::new(&shared);
        let file = disk.open_segment(3, SEGMENT).unwrap();
        write(&*file, 1, 4).unwrap();
        disk.replace_superblock(&[5]).unwrap();
        let copy = machine(&shared).copy();
        write(&*file, 2, 4).unwrap();
        disk.replace_superblock(&[6]).unwrap();
        disk.open_segment(4, SEGMENT).unwrap();
        machine(&shared).put(&copy);
        assert!(write(&*file, 3, 4).is_err());
        let disk = FakeDisk::new(&shared);
        assert_eq!((disk.segments().unwrap(), disk.read_superblock().unwrap()), (vec![3], Some(vec![5])));
        let mut bytes = vec![0; 4 * FRAME];
        disk.open_segment(3, SEGMENT).unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, vec![1; 4 * FRAME]);
        // Copied content is on the medium.
        machine(&shared).crash_now(Crash::PowerCut);
        machine(&shared).reboot();
        assert_eq!(machine(&shared).bytes_of(3).unwrap()[..4 * FRAME], vec![1; 4 * FRAME]);
    }

    #[test]
    fn a_file_comes_back_only_when_the_power_was_cut_while_it_was_removed() {
        let mut back = [false; 4];
        for seed in 0..80 {
            let shared = shared(seed);
            FakeDisk::new(&shared).open_segment(0, SEGMENT).unwrap();
            let crash = if seed % 2 == 0 { Crash::Kill } else { Crash::PowerCut };
            let while_removed = seed % 4 < 2;
            if while_removed {
                machine(&shared).arm(0, crash);
            }
            let disk = FakeDisk::new(&shared);
            assert_eq!(disk.remove_segment(0).is_err(), while_removed);
            let gone = machine(&shared).bytes_of(0).is_none();
            machine(&shared).crash_now(crash);
            machine(&shared).reboot();
            let back_again = gone && machine(&shared).bytes_of(0).is_some();
            back[usize::from(crash == Crash::PowerCut) + 2 * usize::from(while_removed)] |= back_again;
        }
        assert_eq!(back, [false, false, false, true]);
    }

    #[test]
    fn a_file_whose_creation_returned_is_there_after_every_crash() {
        for seed in 0..40 {
            let shared = shared(seed);
            FakeDisk::new(&shared).open_segment(0, SEGMENT).unwrap();
            machine(&shared).crash_now(if seed % 2 == 0 { Crash::Kill } else { Crash::PowerCut });
            machine(&shared).reboot();
            assert_eq!(machine(&shared).bytes_of(0).map(<[u8]>::len), Some(8 * FRAME));
        }
    }

    #[test]
    fn only_one_process_at_a_time_gets_the_lock() {
        let shared = shared(1);
        let disk = FakeDisk::new(&shared);
        let guard = disk.lock().unwrap();
        assert!(guard.is_some() && disk.lock().unwrap().is_none());
        drop(guard);
        let guard = disk.lock().unwrap();
        machine(&shared).crash_now(Crash::Kill);
        machine(&shared).reboot();
        let next = FakeDisk::new(&shared).lock().unwrap();
        assert!(next.is_some());
        drop(guard);
        assert!(FakeDisk::new(&shared).lock().unwrap().is_none());
        drop(next);
        assert!(FakeDisk::new(&shared).lock().unwrap().is_some());
    }

    #[test]
    fn injected_failures_are_counted_and_leave_any_part_of_a_write_behind() {
        let shared = shared(1);
        let file = FakeDisk::new(&shared).open_segment(0, SEGMENT).unwrap();
        machine(&shared).faults =
            Faults { write: 1000, sync: 1000, gone: 0, read: 1000, open: 1000, would_block: 0 };
        for _ in 0..50 {
            assert!(write(&*file, 1, 8).is_err());
        }
        assert!(file.sync().is_err());
        assert!(file.read_at(&mut [0; FRAME], 0).is_err());
        assert!(FakeDisk::new(&shared).open_segment(1, SEGMENT).is_err());
        assert_eq!(machine(&shared).injected(), [51, 1, 1]);
        machine(&shared).calm();
        write(&*file, 2, 8).unwrap();
        machine(&shared).faults.would_block = 1000;
        assert!(!file.read_now(&mut [0; FRAME], 0).unwrap());
    }
}
