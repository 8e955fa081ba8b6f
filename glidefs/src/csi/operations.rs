//! Which objects a call holds, so that no second call works on one of them at the same time.
//!
//! Owns nothing beyond the process: a driver which was killed leaves no lock behind.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use super::error::CsiError;
use crate::locks::MutexExt;

/// The objects which calls hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations(Arc<Mutex<HashSet<String>>>);

/// The hold of a call on an object, until dropped.
#[derive(Debug)]
pub(super) struct Operation {
    operations: Operations,
    what: String,
}

impl Operations {
    /// Holds `what` for a call, unless another call does.
    pub fn hold(&self, what: String) -> Result<Operation, CsiError> {
        if !self.0.lock_whole().insert(what.clone()) {
            return Err(CsiError::new(
                tonic::Code::Aborted,
                format!("another call for {what} is under way: this call is made again later"),
            ));
        }
        Ok(Operation { operations: self.clone(), what })
    }

    /// Holds the volume `id` for a call of the controller.
    pub fn hold_volume(&self, id: impl std::fmt::Display) -> Result<Operation, CsiError> {
        self.hold(format!("volume {id}"))
    }

    /// Holds the mounts of the volume `id`, for a call of the node. A snapshot, which may take long, keeps no pod from starting or ending.
    pub fn hold_mounts(&self, id: impl std::fmt::Display) -> Result<Operation, CsiError> {
        self.hold(format!("the mounts of volume {id}"))
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
        let first = operations.hold_volume("a").unwrap();
        let refused = tonic::Status::from(operations.hold_volume("a").unwrap_err());
        assert_eq!(refused.code(), tonic::Code::Aborted);
        assert!(refused.message().ends_with(": this call is made again later"), "{refused}");
        let _other = operations.hold_volume("b").unwrap();
        let _mount = operations.hold_mounts("a").unwrap();
        drop(first);
        operations.hold_volume("a").unwrap();
    }
}
