//! A lock for each name of an export to be created.
//!
//! Owns the locks. Invariant: everybody who wants a name while somebody holds or waits for the lock of the name gets the same
//! lock.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::name::ExportName;

/// Locks by name. A lock exists while somebody holds or waits for the lock.
#[derive(Debug, Default)]
pub(super) struct NameLocks(Mutex<BTreeMap<ExportName, Weak<tokio::sync::Mutex<()>>>>);

impl NameLocks {
    /// The lock of `name`.
    pub fn of(&self, name: &ExportName) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(name).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        locks.insert(name.clone(), Arc::downgrade(&lock));
        lock
    }
}
