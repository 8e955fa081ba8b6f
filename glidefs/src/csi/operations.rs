//! Which objects a call works on, so that no second call works on one of them at the same time.
//!
//! Owns nothing beyond the process: a driver which was killed leaves no lock behind.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use super::error::CsiError;
use crate::locks::MutexExt;

/// The objects which calls work on.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations(Arc<Mutex<HashSet<String>>>);

/// A call which works on an object, until dropped.
#[derive(Debug)]
pub(super) struct Operation {
    operations: Operations,
    what: String,
}

impl Operations {
    /// Begins an operation on `what`, unless one is under way.
    pub fn begin(&self, what: String) -> Result<Operation, CsiError> {
        if !self.0.lock_whole().insert(what.clone()) {
            return Err(CsiError::UnderWay { what });
        }
        Ok(Operation { operations: self.clone(), what })
    }

    /// Begins an operation of the controller on the volume `id`.
    pub fn volume(&self, id: impl std::fmt::Display) -> Result<Operation, CsiError> {
        self.begin(format!("volume {id}"))
    }

    /// Begins an operation of the node on the volume `id`. A snapshot, which may take long, keeps no pod from starting or ending.
    pub fn mount(&self, id: impl std::fmt::Display) -> Result<Operation, CsiError> {
        self.begin(format!("the mounts of volume {id}"))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        self.operations.0.lock_whole().remove(&self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_operation_on_a_volume_is_refused_until_the_first_has_ended() {
        let operations = Operations::default();
        let first = operations.volume("a").unwrap();
        assert!(matches!(operations.volume("a"), Err(CsiError::UnderWay { .. })));
        let _other = operations.volume("b").unwrap();
        let _mount = operations.mount("a").unwrap();
        drop(first);
        operations.volume("a").unwrap();
    }
}
