//! A lock for each of the keys that somebody works on at the moment.
//!
//! Owns the locks. Invariant: everybody who wants a key while somebody holds or waits for the lock of the key gets the same
//! lock.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use super::MutexExt;

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
        locks.retain(|_, lock| lock.strong_count() > 0);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::default();
        locks.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
