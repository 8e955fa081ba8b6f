//! Work that goes on after its caller has gone away.
//!
//! Owns the tasks without a caller, by key. Does not own the work. Invariants: for each key at most one task runs without a caller; that
//! task goes on to its end, whoever asks for the same meanwhile. Were it ended by the next caller, callers who each wait for less time than
//! the work takes would never get it done.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use tokio::task::AbortHandle;

use super::error::RouterError;
use crate::locks::MutexExt;
use crate::tasks;

/// Runs `work` on export `name` to the end, also when the returned future is dropped. The work begins at once: a future that kept the
/// work until the first poll would be as large as the work, and so would the future of every caller.
pub(super) fn finish<T: Send + 'static>(
    name: String,
    work: impl Future<Output = Result<T, RouterError>> + Send + 'static,
) -> impl Future<Output = Result<T, RouterError>> {
    let task = tasks::spawn(work);
    async move { task.await.map_err(|_| RouterError::Interrupted { name })? }
}

/// Tasks without a caller, by key.
#[derive(Debug, Default)]
pub(super) struct Background(Mutex<HashMap<String, AbortHandle>>);

/// Moves `task` to the tasks without a caller when the caller is dropped, or ends `task` where there is one of the same key.
struct OnCallerGone<'a> {
    background: &'a Background,
    key: String,
    task: AbortHandle,
}

impl Background {
    /// Runs `work`, also after this future is dropped, unless work with the same key goes on without its caller already. `None` when the
    /// runtime ends before the work does.
    pub async fn run<T: Send + 'static>(
        &self,
        key: String,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let task = tasks::spawn(work);
        let _caller = OnCallerGone { background: self, key, task: task.abort_handle() };
        task.await.ok()
    }
}

impl Drop for OnCallerGone<'_> {
    fn drop(&mut self) {
        let mut tasks = self.background.0.lock_whole();
        tasks.retain(|_, task| !task.is_finished());
        if self.task.is_finished() {
            return;
        }
        match tasks.entry(std::mem::take(&mut self.key)) {
            Entry::Occupied(_) => self.task.abort(),
            Entry::Vacant(entry) => drop(entry.insert(self.task.clone())),
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
    async fn work_goes_on_without_its_caller_also_when_somebody_asks_for_the_same_again() {
        let (background, go, done) =
            (Background::default(), Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
        let work = |number: u32| {
            let (go, done) = (Arc::clone(&go), Arc::clone(&done));
            async move {
                go.notified().await;
                done.lock().unwrap().push(number);
            }
        };
        for (key, number) in [("a", 1), ("b", 2), ("a", 3)] {
            assert!(background.run(key.into(), work(number)).now_or_never().is_none());
        }
        assert_eq!(background.0.lock_whole().len(), 2);
        while done.lock().unwrap().len() < 2 {
            go.notify_one();
            tokio::task::yield_now().await;
        }
        done.lock().unwrap().sort_unstable();
        assert_eq!(*done.lock().unwrap(), [1, 2], "the second of the same key has ended with its caller");
        assert!(background.run("a".into(), work(4)).now_or_never().is_none());
        assert_eq!(
            background.run("a".into(), async { 7 }).await,
            Some(7),
            "a caller who stays gets the own result"
        );
        go.notify_one();
        tokio::task::yield_now().await;
        assert_eq!(done.lock().unwrap().pop(), Some(4));
        assert_eq!(background.run("a".into(), async { 7 }).await, Some(7));
        assert!(background.0.lock_whole().is_empty(), "work that has ended is not kept");
    }
}
