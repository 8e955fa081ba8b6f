//! The process of a successor: its end, and the last lines of its standard error.
//!
//! Owns the kept end of standard error, all of which is passed on to this program's. Does not own the messages of the successor.

use std::io::{self, Read, Write};
use std::process::{Child, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::locks::MutexExt;

/// How long the end of a process that has closed the socket is waited for, to tell how the process ended.
pub(super) const END_PATIENCE: Duration = Duration::from_secs(2);
/// Pause between looks at a process, or between tries.
pub(super) const END_PAUSE: Duration = Duration::from_millis(10);
/// How much of the successor's standard error is kept, bytes.
pub(super) const TAIL_BYTES: usize = 2 << 10;

/// Ends the process, as far as the kernel ends it within a patience: a process that waits for a disk ends later.
pub(super) fn end(child: &mut Child) {
    // The process may have ended by itself.
    let _ = child.kill();
    let _ = end_of(child, END_PATIENCE);
}

/// How the process ended, if it ends within `patience`.
pub(super) fn end_of(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + patience;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(END_PAUSE),
            Ok(None) | Err(_) => return None,
        }
    }
}

/// The end of a successor's standard error, which is passed on to this program's.
pub(super) struct Tail {
    kept: Arc<Mutex<Vec<u8>>>,
    reading: Option<JoinHandle<()>>,
}

impl Tail {
    pub fn of(source: Option<impl Read + Send + 'static>) -> Self {
        let kept = Arc::<Mutex<Vec<u8>>>::default();
        let reading = source.and_then(|source| {
            let kept = Arc::clone(&kept);
            // Without the thread the text is lost, and the pipe is closed.
            std::thread::Builder::new().name("successor".into()).spawn(move || keep(source, &kept)).ok()
        });
        Self { kept, reading }
    }

    /// The last lines, with a separator in front; nothing for a silent process. The process has ended.
    pub fn said(&self) -> String {
        let deadline = Instant::now() + END_PATIENCE;
        while self.reading.as_ref().is_some_and(|reading| !reading.is_finished()) && Instant::now() < deadline
        {
            std::thread::sleep(END_PAUSE);
        }
        let kept = self.kept.lock_whole();
        let text = String::from_utf8_lossy(&kept);
        let text = text.trim();
        if text.is_empty() { String::new() } else { format!(": {text}") }
    }
}

fn keep(mut source: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut bytes = [0; 1024];
    while let Ok(read @ 1..) = source.read(&mut bytes) {
        // Nothing can be done when standard error is closed.
        let _ = io::stderr().write_all(&bytes[..read]);
        let mut kept = kept.lock_whole();
        kept.extend_from_slice(&bytes[..read]);
        let excess = kept.len().saturating_sub(TAIL_BYTES);
        kept.drain(..excess);
    }
}
