//! `glidefs run`: the daemon, started by a user, by a daemon that is to be succeeded, or by itself as a standby.
//!
//! Owns the configuration and the log of each kind of start. Does not own the daemon. Invariant: a successor that fails has told the
//! program before why.

use std::path::Path;
use std::process::exit;

use super::args::RunArgs;
use super::deadline::{self, PATIENCE};
use super::error::CliError;
use super::print::emit;
use crate::config::{Config, OnStop};
use crate::handover::{self, Ended, Standby, Start, Successor};
use crate::observe::chain;
use crate::observe::logging;

/// Runs the daemon by `run`, or only checks the configuration by `check`.
pub(super) fn command(
    args: &RunArgs,
    run: impl FnOnce(&Config, Start) -> Result<(), CliError>,
    check: impl FnOnce(&Config) -> Result<(), CliError>,
) -> Result<(), CliError> {
    if args.check {
        let config = deadline::or_end(late(&args.config), || {
            let config = Config::load(&args.config)?;
            logging::check(&config.log.filter)?;
            check(&config)?;
            Ok::<_, CliError>(config)
        })?;
        for key in &config.ignored {
            eprintln!("warning: {}: {key} {IGNORED}", args.config.display());
        }
        return emit(checked(&config).as_bytes());
    }
    if args.standby {
        return standby(args, run);
    }
    if let Some(successor) = args.usher {
        logging::init(&Config::default().log.filter)?;
        return handover::usher(successor).map_err(CliError::Usher);
    }
    let Some(protocol) = args.successor else {
        let config = loaded(args, Config::load(&args.config)?);
        logging::init(&config.log.filter)?;
        warn_of_ignored(&config);
        return run(&config, Start::Alone);
    };
    let successor = Successor::take(protocol).map_err(CliError::Successor)?;
    let done = Config::load(&args.config).map_err(CliError::from).and_then(|config| {
        let config = loaded(args, config);
        logging::init(&config.log.filter)?;
        warn_of_ignored(&config);
        run(&config, Start::Successor(successor.clone()))
    });
    if let Err(error) = &done {
        successor.fail(&chain(error));
    }
    done
}

/// Waits for the successor, and serves again should the successor fail.
fn standby(args: &RunArgs, run: impl FnOnce(&Config, Start) -> Result<(), CliError>) -> Result<(), CliError> {
    let standby = Standby::take().map_err(CliError::Standby)?;
    let config = match standby.config() {
        Some(text) => Config::load_again(&args.config, text),
        None => Config::load(&args.config),
    };
    logging::init(
        &config.as_ref().map_or_else(|_| Config::default().log.filter, |config| config.log.filter.clone()),
    )?;
    match standby.wait() {
        Ended::Served | Ended::Stopped => Ok(()),
        Ended::Over(status) => exit(status.into()),
        // Not as a refused configuration, after which no daemon would be started: another start may read a better one.
        Ended::Again(upgrade, tenures) => match config {
            Ok(config) => run(&loaded(args, config), Start::Again(upgrade, tenures)),
            Err(error) => Err(CliError::Daemon(Box::new(error))),
        },
    }
}

/// What is said of a check that does not end.
fn late(config: &Path) -> String {
    format!(
        "{} and the files named there were not read within {} s: one of them is a pipe, or on a file system that does not answer",
        config.display(),
        PATIENCE.as_secs()
    )
}

/// What a key without an effect is said to be.
const IGNORED: &str = "is no longer needed, ignored since 0.2";

fn loaded(args: &RunArgs, mut config: Config) -> Config {
    if args.remove_devices {
        config.control.on_stop = OnStop::Remove;
    }
    config
}

fn warn_of_ignored(config: &Config) {
    for key in &config.ignored {
        tracing::warn!(key, "this key of the configuration {IGNORED}");
    }
}

/// What `glidefs run --check` prints: the settings that a daemon shares with the daemon before, a line each.
pub(super) fn checked(config: &Config) -> String {
    format!("cache.dir {}\napi.socket {}\n", config.cache.dir.display(), config.api.socket.display())
}
