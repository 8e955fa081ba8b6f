//! Work on all exports, off the control threads.
//!
//! Owns where the work runs: a list of 20,000 exports takes tens of milliseconds, during which a control thread would answer nobody
//! else. Invariants: at most [`JOBS_MAX`] jobs run at a time, so that impatient clients take neither all processors nor all threads
//! for blocking work; a job whose client went away before the begin is not done.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::error::ApiError;
use super::wire::ProblemCode as P;

/// Most jobs that run at a time.
const JOBS_MAX: usize = 2;

/// Runs the jobs of clients, at most [`JOBS_MAX`] at a time.
#[derive(Clone, Debug)]
pub struct OffThread(Arc<Semaphore>);

impl Default for OffThread {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(JOBS_MAX)))
    }
}

impl OffThread {
    /// The result of `job`, done on a thread for blocking work once there is a place.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ApiError> {
        let stops = || ApiError::new(P::Internal, "the daemon stops");
        let place = Arc::clone(&self.0).acquire_owned().await.map_err(|_| stops())?;
        let job = move || {
            // Kept to the end of the job, also when nobody waits for the result any more.
            let _place = place;
            job()
        };
        tokio::task::spawn_blocking(job).await.map_err(|error| {
            if error.is_panic() {
                ApiError::new(
                    P::Internal,
                    "the daemon failed while answering: the log of the daemon says why",
                )
            } else {
                stops()
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::RwLock;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use futures_util::future::join_all;

    use super::*;

    /// Jobs that run, ran at once, and have run.
    #[derive(Default)]
    struct Counts {
        running: AtomicUsize,
        running_max: AtomicUsize,
        done: AtomicUsize,
    }

    #[tokio::test]
    async fn few_jobs_run_at_once_and_one_that_nobody_waits_for_is_not_begun() {
        let off_thread = OffThread::default();
        let (gate, counts) = (Arc::new(RwLock::new(())), Arc::<Counts>::default());
        let closed = gate.write().unwrap();
        let mut jobs: Vec<_> = (0..50)
            .map(|_| {
                let (off_thread, gate, counts) = (off_thread.clone(), Arc::clone(&gate), Arc::clone(&counts));
                let job = move || {
                    let running = counts.running.fetch_add(1, Ordering::SeqCst) + 1;
                    counts.running_max.fetch_max(running, Ordering::SeqCst);
                    drop(gate.read().unwrap());
                    counts.running.fetch_sub(1, Ordering::SeqCst);
                    counts.done.fetch_add(1, Ordering::SeqCst);
                };
                async move { off_thread.run(job).await }.boxed()
            })
            .collect();
        assert!(jobs.iter_mut().all(|job| job.now_or_never().is_none()));
        // Clients of a job that runs, and of jobs that wait, go away.
        let waiting = jobs.split_off(30);
        drop((waiting, jobs.remove(0)));
        drop(closed);
        assert!(join_all(jobs).await.iter().all(Result::is_ok));
        // All places are free: the abandoned job has ended.
        let _all = off_thread.0.acquire_many(2).await.unwrap();
        assert!(counts.running_max.load(Ordering::SeqCst) <= 2);
        assert_eq!(counts.done.load(Ordering::SeqCst), 30);
    }

    #[tokio::test]
    async fn a_failure_of_a_job_is_not_the_end_of_the_daemon() {
        let failed = OffThread::default().run(|| panic!("a mistake")).await;
        let text = format!("{:?}", failed.map(|(): ()| ()).unwrap_err());
        assert!(text.contains("the log") && !text.contains("stops"), "{text}");
    }
}
