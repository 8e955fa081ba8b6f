//! The turns of the steps that make devices.
//!
//! Owns whose turn it is, and which command the step of the turn has under way. Does not own the steps. Invariants: one step has the
//! turn, and the turns are in the order of the calls; while a command of the turn runs for longer than a step is waited for, every
//! other caller fails at once, and the error names the command.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::{Instant, timeout_at};

use crate::router::devices::DeviceError;

/// The turns of steps that make devices.
#[derive(Debug, Default)]
pub(super) struct Making {
    /// First come, first served: a lock without order lets a busy host starve one step.
    lock: Arc<tokio::sync::Mutex<()>>,
    /// The command of the step that has the turn.
    running: Arc<watch::Sender<Option<Running>>>,
}

/// A command which the step of the turn has begun.
#[derive(Clone, Debug)]
struct Running {
    command: &'static str,
    path: String,
    since: Instant,
}

/// The right to make a device.
pub(super) struct Turn {
    running: Arc<watch::Sender<Option<Running>>>,
    /// Dropped after `running` was told, so that the next step tells its own command later.
    _guard: OwnedMutexGuard<()>,
}

impl Turn {
    /// Notes the command that begins.
    pub fn begin(&self, command: &'static str, path: &str) {
        self.running.send_replace(Some(Running { command, path: path.into(), since: Instant::now() }));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.running.send_replace(None);
    }
}

impl Making {
    /// Waits for the right to make a device.
    ///
    /// # Errors
    /// [`DeviceError::Stuck`] when a command of another step runs for longer than `limit`.
    pub async fn turn(&self, limit: Duration) -> Result<Turn, DeviceError> {
        tokio::select! {
            biased;
            guard = Arc::clone(&self.lock).lock_owned() => {
                Ok(Turn { running: Arc::clone(&self.running), _guard: guard })
            }
            Running { command, path, since } = self.stuck(limit) => {
                Err(DeviceError::Stuck { command, path, seconds: since.elapsed().as_secs() })
            }
        }
    }

    /// The command of the turn, once the command runs for longer than `limit`.
    async fn stuck(&self, limit: Duration) -> Running {
        let mut news = self.running.subscribe();
        loop {
            let running = news.borrow_and_update().clone();
            // An error of `changed` never comes: the sender lives as long as `self`.
            match running {
                None => drop(news.changed().await),
                Some(running) => {
                    if timeout_at(running.since + limit, news.changed()).await.is_err() {
                        return running;
                    }
                }
            }
        }
    }
}
