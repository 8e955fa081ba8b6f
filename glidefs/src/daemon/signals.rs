//! The signals to stop the daemon.
//!
//! Owns which thread takes the signals, and the wait for a signal. Invariant: one thread takes signals, and threads started later do
//! not; so after the end of this thread a signal waits for whichever program follows in this process, and none is lost.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{self, SignalKind, signal};

/// The thread for the signals to stop. Before [`Stops`] are listened to, a signal ends the process at once.
#[derive(Debug)]
pub(super) struct SignalThread {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl SignalThread {
    /// Leaves the signals to a new thread. Threads started by the calling thread from now on take no signals.
    pub fn start() -> io::Result<Self> {
        let stops: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
        let (end, ended) = channel();
        let taking = move || {
            if let Err(error) = stops.thread_unblock() {
                tracing::error!(error = %error, "the daemon cannot be stopped by a signal");
            }
            // An error is the end of the other side.
            let _ = ended.recv();
        };
        stops.thread_block()?;
        let thread = std::thread::Builder::new().name("signals".into()).spawn(taking)?;
        Ok(Self { end, thread })
    }

    /// Leaves further signals to the next program of this process.
    pub fn end(self) {
        drop(self.end);
        // The thread cannot panic.
        let _ = self.thread.join();
    }
}

/// Signals to stop, as they come.
#[derive(Debug)]
pub(super) struct Stops {
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Stops {
    /// Listens for signals to stop from now on.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!("SIGTERM: stopping"),
            _ = self.interrupt.recv() => tracing::info!("SIGINT: stopping"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn takes(signal: Signal) -> bool {
        !SigSet::thread_get_mask().unwrap().contains(signal)
    }

    #[test]
    fn threads_that_are_started_later_leave_signals_to_the_one_that_takes_them() {
        let checking = std::thread::spawn(|| {
            let signals = SignalThread::start().unwrap();
            let later = std::thread::spawn(|| takes(Signal::SIGTERM) || takes(Signal::SIGINT));
            let taken = (takes(Signal::SIGTERM), later.join().unwrap());
            signals.end();
            taken
        });
        assert_eq!(checking.join().unwrap(), (false, false));
    }
}
