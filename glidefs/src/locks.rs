//! Locks whose data is whole whenever nobody holds them.
//!
//! Owns the answer to poisoned locks: go on. A panic ends the process where the program is built for release, so only tests see
//! a poisoned lock. Every critical section in the crate changes its data by whole steps: assignments, or calls of a collection.
//! `by_key` has a lock for each key.

mod by_key;

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub(crate) use self::by_key::LocksByKey;

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
