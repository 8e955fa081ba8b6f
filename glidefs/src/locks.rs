//! Locks whose data is whole whenever nobody holds them.
//!
//! Owns the answer to poisoned locks: go on. A panic ends the process where the program is built for release, so only tests see
//! a poisoned lock. Every critical section in the crate changes its data by whole steps: assignments, or calls of a collection.
//! Also the name of whoever holds the lock of a file, for errors.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use nix::sys::stat::{major, minor};

/// The process that has the lock of the file at `path`, in words, as far as the kernel tells.
pub(crate) fn holder(path: &Path) -> String {
    let process = || {
        let file = std::fs::metadata(path).ok()?;
        let id = format!("{:02x}:{:02x}:{}", major(file.dev()), minor(file.dev()), file.ino());
        // `1: FLOCK  ADVISORY  WRITE 1234 fe:01:131 0 EOF`; a process that waits has one word more before its number.
        std::fs::read_to_string("/proc/locks").ok()?.lines().find_map(|line| {
            let mut words = line.split_whitespace().skip(4);
            let process: u32 = words.next()?.parse().ok()?;
            (words.next()? == id).then_some(process)
        })
    };
    process().map_or_else(|| "another process".into(), |process| format!("process {process}"))
}

/// Locking a [`Mutex`] that a panic may have poisoned.
pub(crate) trait MutexExt<T> {
    /// Locks the mutex, poisoned or not.
    fn lock_whole(&self) -> MutexGuard<'_, T>;
}

impl<T> MutexExt<T> for Mutex<T> {
    fn lock_whole(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Locking an [`RwLock`] that a panic may have poisoned.
pub(crate) trait RwLockExt<T> {
    /// Locks for reading, poisoned or not.
    fn read_whole(&self) -> RwLockReadGuard<'_, T>;

    /// Locks for writing, poisoned or not.
    fn write_whole(&self) -> RwLockWriteGuard<'_, T>;
}

impl<T> RwLockExt<T> for RwLock<T> {
    fn read_whole(&self) -> RwLockReadGuard<'_, T> {
        self.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_whole(&self) -> RwLockWriteGuard<'_, T> {
        self.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_of_a_file_is_known_by_the_process_that_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("LOCK");
        let file = std::fs::File::create(&path).unwrap();
        assert_eq!(holder(&path), "another process");
        file.lock().unwrap();
        assert_eq!(holder(&path), format!("process {}", std::process::id()));
    }
}
