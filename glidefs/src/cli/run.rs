//! `glidefs run`: the daemon, started by a user or a service manager, or in the place of another program in this process.
//!
//! Owns the configuration and the log of a start. Does not own the daemon. Invariant: a program that fails before it serves leaves the
//! process to the program before, if there was one.

use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::args::RunArgs;
use super::error::CliError;
use super::print::emit;
use crate::config::{Config, OnStop};
use crate::handover::{Handed, Identity};
use crate::observe::chain;
use crate::observe::logging;
use crate::observe::memory::tune_allocator;

/// How long a check waits for a file.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a key without an effect is said to be.
const IGNORED: &str = "is no longer needed, ignored since 0.2";

/// Runs the daemon by `run`, or only checks the configuration by `check`.
pub(super) fn command(
    args: &RunArgs,
    run: impl FnOnce(&Config, Option<Handed>) -> Result<(), CliError>,
    check: impl FnOnce(&Config) -> Result<Identity, CliError>,
) -> Result<(), CliError> {
    if args.check {
        let (config, identity) = or_end(late(&args.config), || {
            let config = Config::load(&args.config)?;
            let identity = check(&config)?;
            Ok::<_, CliError>((config, identity))
        })?;
        for key in &config.ignored {
            eprintln!("warning: {}: {key} {IGNORED}", args.config.display());
        }
        return emit(identity.to_string().as_bytes());
    }
    let handed = Handed::take();
    let way_back = handed.as_ref().map(|handed| handed.way_back.clone()).unwrap_or_default();
    if handed.is_some() {
        way_back.at_panics();
    }
    let done = start(args, handed, run);
    if let Err(error) = &done {
        way_back.go(chain(error));
    }
    done
}

fn start(
    args: &RunArgs,
    handed: Option<Handed>,
    run: impl FnOnce(&Config, Option<Handed>) -> Result<(), CliError>,
) -> Result<(), CliError> {
    tune_allocator();
    let config = match handed.as_ref().map(Handed::config) {
        Some(Some(text)) => Config::load_again(&args.config, text),
        // The program before has a configuration to serve with.
        Some(None) => Config::load(&args.config),
        None => Config::load_or_accepted(&args.config),
    };
    let mut config = match config {
        // Devices wait, and another start may read a better configuration.
        Err(error) if handed.is_some() => {
            logging::init(&Config::default().log.filter)?;
            return Err(CliError::Daemon(Box::new(error)));
        }
        config => config?,
    };
    if args.remove_devices {
        config.control.on_stop = OnStop::Remove;
    }
    logging::init(&config.log.filter)?;
    for key in &config.ignored {
        tracing::warn!(key, "this key of the configuration {IGNORED}");
    }
    run(&config, handed)
}

/// What is said of a check that does not end.
fn late(config: &Path) -> String {
    format!(
        "{} and the files named there were not read within {} s: one of them is a pipe, or on a file system that does not answer",
        config.display(),
        PATIENCE.as_secs()
    )
}

/// Does `work` in this thread, which may never end: a read of a pipe that nobody writes, or of a file system whose server is gone. If it
/// takes longer than [`PATIENCE`], the process ends with `late` on standard error, and the exit status 1.
fn or_end<T>(late: String, work: impl FnOnce() -> T) -> T {
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
