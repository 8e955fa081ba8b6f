//! Work of a command that may never end: a read of a pipe that nobody writes, or of a file system whose server is gone.
//!
//! Owns the time limit. Does not own the work. Invariant: work that ends too late costs its time limit and a thread, which ends with the
//! process.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a command waits for a file.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Work that goes on in a thread of its own.
pub(super) struct Pending<T>(Receiver<T>);

/// Begins `work`. Without a thread for the work there is no answer.
pub(super) fn begin<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Pending<T> {
    let (sender, answered) = channel();
    let working = move || {
        // Nobody waits any more for an answer that is late.
        let _ = sender.send(work());
    };
    // The end of the sender tells of a thread that could not be made.
    drop(std::thread::Builder::new().name("reading".into()).spawn(working));
    Pending(answered)
}

impl<T> Pending<T> {
    /// The result, if there is one by `deadline`.
    pub fn until(self, deadline: Instant) -> Option<T> {
        self.0.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }
}

/// Does `work` in this thread. If the work has not ended within [`PATIENCE`], the process ends with `late` on standard error, and the exit
/// status 1.
pub(super) fn or_end<T>(late: String, work: impl FnOnce() -> T) -> T {
    let (done, ended) = channel::<()>();
    let watching = move || {
        if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            eprintln!("glidefs: {late}");
            std::process::exit(1);
        }
    };
    // Without the thread the work has no time limit.
    drop(std::thread::Builder::new().name("deadline".into()).spawn(watching));
    let result = work();
    drop(done);
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_without_an_end_has_no_result_and_other_work_has_its_own() {
        let (_stays, never) = channel::<()>();
        let hanging = begin(move || never.recv());
        let done = begin(|| 7);
        assert_eq!(done.until(Instant::now() + Duration::from_mins(1)), Some(7));
        assert!(hanging.until(Instant::now()).is_none());
        assert_eq!(or_end(String::new(), || 8), 8);
    }
}
