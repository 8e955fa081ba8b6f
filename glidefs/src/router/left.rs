//! Work that goes on after its caller has gone away.
//!
//! Owns what was left under way, by key. Does not own what the work is. Invariant: of each key at most one piece of work is under
//! way without a caller: who asks again takes the place of who went away.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

/// Work without a caller.
#[derive(Debug, Default)]
pub(super) struct Left(Mutex<HashMap<String, AbortHandle>>);

/// A caller, and the work that is left when the caller is dropped.
struct Caller<'a> {
    left: &'a Left,
    key: String,
    work: AbortHandle,
}

impl Left {
    /// Runs `work`, also when this future is dropped. `None` when the runtime ends before the work does.
    pub async fn run<T: Send + 'static>(
        &self,
        key: String,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        if let Some(left) = self.lock().remove(&key) {
            left.abort();
        }
        let work = tokio::spawn(work);
        let _caller = Caller { left: self, key, work: work.abort_handle() };
        work.await.ok()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, AbortHandle>> {
        // A map is whole between its own calls.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        let mut left = self.left.lock();
        left.retain(|_, work| !work.is_finished());
        if !self.work.is_finished()
            && let Some(other) = left.insert(std::mem::take(&mut self.key), self.work.clone())
        {
            other.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;
    use tokio::sync::Notify;

    use super::*;

    #[tokio::test]
    async fn work_goes_on_without_its_caller_until_somebody_asks_for_the_same_again() {
        let (left, go, done) = (Left::default(), Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
        let work = |number: u32| {
            let (go, done) = (Arc::clone(&go), Arc::clone(&done));
            async move {
                go.notified().await;
                done.lock().unwrap().push(number);
            }
        };
        for (key, number) in [("a", 1), ("b", 2), ("a", 3)] {
            assert!(left.run(key.into(), work(number)).now_or_never().is_none());
        }
        assert_eq!(left.lock().len(), 2);
        while done.lock().unwrap().len() < 2 {
            go.notify_one();
            tokio::task::yield_now().await;
        }
        done.lock().unwrap().sort_unstable();
        assert_eq!(*done.lock().unwrap(), [2, 3]);
        assert_eq!(left.run("a".into(), async { 7 }).await, Some(7));
        assert!(left.lock().is_empty(), "what has ended is not kept");
    }
}
