//! Locks whose data is whole whenever nobody holds them.
//!
//! Owns the answer to poisoned locks: go on. A panic ends the process where the program is built for release, so only tests see
//! a poisoned lock. Every critical section in the crate changes its data by whole steps: assignments, or calls of a collection.
//! Also a lock for each key, which everybody who wants the key at the same time shares, and the process that holds the lock of a file,
//! for errors.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

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

/// Locks by key. A lock exists while somebody holds or waits for the lock.
pub(crate) struct LocksByKey<K>(Mutex<BTreeMap<K, Weak<tokio::sync::Mutex<()>>>>);

impl<K> Default for LocksByKey<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: fmt::Debug> fmt::Debug for LocksByKey<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.lock_whole().keys()).finish()
    }
}

impl<K: Ord + Clone> LocksByKey<K> {
    /// The lock of `key`.
    pub fn of(&self, key: &K) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock_whole();
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(key.clone(), Arc::downgrade(&lock));
        lock
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

    #[test]
    fn who_wants_a_key_that_is_in_use_gets_the_same_lock_and_no_lock_is_kept() {
        let locks = LocksByKey::<&str>::default();
        let (first, second, other) = (locks.of(&"a"), locks.of(&"a"), locks.of(&"b"));
        assert!(Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &other));
        drop((first, second, other));
        let _last = locks.of(&"c");
        assert_eq!(format!("{locks:?}"), r#"{"c"}"#);
    }
}
