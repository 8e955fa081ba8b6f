//! The start of a daemon in relation to the daemon before.
//!
//! Owns the checks of a successor, and the wait for the turn of this process. Invariant: a successor touches neither locks, devices nor
//! the store before its turn; a start that follows another daemon at once waits for that one's locks.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use super::ahead::load_ahead;
use super::cache_setup::cache_options;
use super::error::DaemonError;
use crate::cache::{Ahead, Cache, Directory};
use crate::config::Config;
use crate::handover::{Formats, Identity, Start, Successor, Tenure, Upgrade};
use crate::router::{Catalog, Router, Tenures};
use crate::units::ExportId;
use crate::worker::engine::Engine;

/// How long the kernel may take to end the daemon before, whose devices are torn down one by one, and whose writes keep the locks: a
/// successor that gives up sooner costs a second pause.
const LOCKS_PATIENCE: Duration = Duration::from_mins(5);
const LOCKS_PAUSE: Duration = Duration::from_millis(3);

/// The turn of this process to serve.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The hand-over which this process has to complete.
    pub successor: Option<Successor>,
    /// The process that has handed over, and lives on without serving.
    pub predecessor: Option<u32>,
    /// When the requests of devices began to wait; known after a hand-over only.
    pub waiting_since: Option<Instant>,
    /// The exports served by the daemon before until this start.
    pub tenures: Tenures,
    /// The parts of the cache which a successor has loaded already.
    pub ahead: Option<Ahead>,
    /// The upgrade which failed, and made this program serve again.
    pub failed: Option<Upgrade>,
    /// Until when the locks may be those of a process that has just ended; `None` where nobody is known to have ended.
    locks_deadline: Option<Instant>,
}

impl Turn {
    /// Waits for the turn of this process.
    pub fn wait(start: Start, config: &Config, engine: Option<Engine>) -> Result<Self, DaemonError> {
        let locks_deadline = || Some(Instant::now() + LOCKS_PATIENCE);
        match start {
            Start::Alone => Ok(Self::default()),
            Start::Again(upgrade, tenures) => Ok(Self {
                tenures: by_export(&tenures),
                failed: Some(upgrade),
                locks_deadline: locks_deadline(),
                ..Self::default()
            }),
            Start::Successor(successor) => {
                Cache::check_format(&Directory::new(&config.cache.dir))?;
                // Before `go` the daemon before is the parent of this process.
                let predecessor = std::os::unix::process::parent_id();
                let marks = successor.follow(identity(config)?)?;
                let ahead = load_ahead(
                    &config.cache.dir,
                    &cache_options(config, engine.unwrap_or_default()),
                    &marks,
                )?;
                let (waiting_since, tenures) = successor.wait_for_go()?;
                tracing::info!(served = tenures.len(), "the daemon before hands over");
                Ok(Self {
                    successor: Some(successor),
                    predecessor: Some(predecessor),
                    waiting_since: Some(waiting_since),
                    tenures: by_export(&tenures),
                    ahead,
                    failed: None,
                    locks_deadline: locks_deadline(),
                })
            }
        }
    }

    /// Whether this process goes on for a daemon before, which has just ended in good order.
    pub fn follows(&self) -> bool {
        self.locks_deadline.is_some()
    }

    /// The result of `open`, tried again while a process that has just ended may still have what is opened `in_use`.
    pub fn once_free<T, E>(
        &self,
        in_use: impl Fn(&E) -> bool,
        mut open: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        loop {
            let may_be_freed = self.locks_deadline.is_some_and(|deadline| Instant::now() < deadline);
            match open() {
                Err(error) if may_be_freed && in_use(&error) => std::thread::sleep(LOCKS_PAUSE),
                done => return done,
            }
        }
    }
}

fn by_export(tenures: &[Tenure]) -> Tenures {
    tenures.iter().map(|tenure| (ExportId(tenure.0), tenure.1)).collect()
}

/// The exports served by a daemon, for the successor, or for the same program if the successor fails.
pub(super) fn tenures(router: &Router) -> Vec<Tenure> {
    router.tenures().into_iter().map(|(export, epoch)| Tenure(export.0, epoch)).collect()
}

/// The things of this daemon that a successor has to have in common with this daemon.
pub(super) fn identity(config: &Config) -> Result<Identity, DaemonError> {
    let directory = std::fs::metadata(&config.cache.dir);
    let directory =
        directory.map_err(|source| DaemonError::System { what: "looking at cache.dir", source })?;
    Ok(Identity {
        cache: config.cache.dir.display().to_string(),
        directory: (directory.dev(), directory.ino()),
        socket: config.api.socket.display().to_string(),
        listen: config.api.listen.to_string(),
        store: config.store.url.as_ref().map_or_else(|| "none".into(), ToString::to_string),
        // A start may write every format read by this program: damage found at a start raises the version of the cache.
        formats: Formats { cache: Cache::VERSION, records: Cache::RECORD_VERSION, catalog: Catalog::VERSION },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_a_process_that_has_just_ended_is_waited_for_and_any_other_is_not() {
        let tries_until = |turn: &Turn, free_at: u32| {
            let mut tries = 0;
            let done = turn.once_free(
                |in_use| *in_use,
                || {
                    tries += 1;
                    if tries < free_at { Err(true) } else { Ok(()) }
                },
            );
            (tries, done.is_ok())
        };
        let after_another = Turn { locks_deadline: Some(Instant::now() + LOCKS_PATIENCE), ..Turn::default() };
        assert_eq!(tries_until(&after_another, 5), (5, true));
        assert_eq!(tries_until(&Turn::default(), 5), (1, false));
        let too_late = Turn { locks_deadline: Some(Instant::now()), ..Turn::default() };
        assert_eq!(tries_until(&too_late, 5), (1, false));
    }

    #[test]
    fn an_error_that_does_not_go_away_is_told_at_once() {
        let turn = Turn { locks_deadline: Some(Instant::now() + LOCKS_PATIENCE), ..Turn::default() };
        let refused: Result<(), &str> = turn.once_free(|error| *error == "in use", || Err("damaged"));
        assert_eq!(refused, Err("damaged"));
    }
}
