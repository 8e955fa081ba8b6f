//! Which objects a call holds, so that no second call works on one of them at the same time.
//!
//! Owns nothing beyond the process: a driver which was killed leaves no lock behind.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

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
            return Err(CsiError::UnderWay { what });
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

/// The calls under way, whether or not their callers wait.
#[derive(Debug)]
pub(super) struct Work(watch::Sender<usize>);

/// A call under way, until dropped.
#[derive(Debug)]
pub(super) struct Call(watch::Sender<usize>);

impl Default for Work {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Work {
    pub fn begin(&self) -> Call {
        self.0.send_modify(|calls| *calls = calls.saturating_add(1));
        Call(self.0.clone())
    }

    /// Waits until no call is under way.
    pub async fn ended(&self) {
        // Fails only without a sender, and there is one here.
        let _ = self.0.subscribe().wait_for(|&calls| calls == 0).await;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.0.send_modify(|calls| *calls = calls.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_of_the_last_call_is_waited_for() {
        let work = Work::default();
        work.ended().await;
        let (first, second) = (work.begin(), work.begin());
        drop(first);
        let ended = work.ended();
        tokio::pin!(ended);
        assert!(futures_util::poll!(&mut ended).is_pending());
        drop(second);
        ended.await;
    }

    #[test]
    fn a_second_operation_on_a_volume_is_refused_until_the_first_has_ended() {
        let operations = Operations::default();
        let first = operations.hold_volume("a").unwrap();
        assert!(matches!(operations.hold_volume("a"), Err(CsiError::UnderWay { .. })));
        let _other = operations.hold_volume("b").unwrap();
        let _mount = operations.hold_mounts("a").unwrap();
        drop(first);
        operations.hold_volume("a").unwrap();
    }
}
