//! A time limit for work that may never end: a read of a pipe that nobody writes, or of a file system whose server is gone.
//!
//! Does not own the work. Invariant: late work ends the process.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long a command waits for a file.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Does `work` in this thread. If it takes longer than [`PATIENCE`], the process ends with `late` on standard error, and the exit status 1.
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
