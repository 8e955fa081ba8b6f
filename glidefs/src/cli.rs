//! The command line: arguments, the client of the daemon, what is printed.
//!
//! Owns what people and scripts type. Does not own the daemon: `main` hands in the function that runs it. Invariants: exit
//! status 0 means done, 1 failed, 2 that arguments or configuration were refused, 3 that a wait ended before the work; what is printed on standard output with
//! `--json` is JSON and nothing else.

mod args;
mod bench;
mod client;
mod commands;
mod print;
#[cfg(test)]
mod tests;
mod transfer;
mod wait;

use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use self::args::{Cli, Command};
use self::client::{Client, ClientError};
use crate::config::{Config, ConfigError, LogFormat, OnStop};
use crate::observe::chain;
use crate::observe::logging::{self, LogError};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum CliError {
    /// The configuration was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The log could not be set up.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The daemon refused, or is not there.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The daemon ended with an error.
    #[error("the daemon failed")]
    Daemon(#[source] Box<dyn Error>),
    /// Something of some exports is not in the store.
    #[error("{exports} exports are not in the store as a whole")]
    NotDrained {
        /// How many.
        exports: usize,
    },
    /// A wait ended that was limited.
    #[error("the wait ended after {seconds} s{state}; {goes_on}")]
    WaitEnded {
        /// How long it was.
        seconds: f64,
        /// What was waited for.
        state: String,
        /// What goes on, and how to look at that.
        goes_on: String,
    },
    /// A file is in the way.
    #[error("{path} exists: use --force to replace it")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: std::io::Error,
    },
    /// The user said no.
    #[error("nothing was deleted")]
    Declined,
    /// Standard output could not be written.
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
    /// The answer could not be printed.
    #[error("cannot print the answer as JSON")]
    Json(#[from] serde_json::Error),
    /// A measurement failed.
    #[error(transparent)]
    Bench(crate::bench::BenchError),
    /// An image could not be copied.
    #[error(transparent)]
    Transfer(#[from] transfer::TransferError),
    /// The client could not be started.
    #[error("cannot start the client")]
    Runtime(#[source] std::io::Error),
}

/// Runs the program: reads the arguments, does what they say and tells how it went. `run` is the daemon.
pub fn main<E: Error + 'static>(run: impl FnOnce(&Config) -> Result<(), E>) -> ExitCode {
    let cli = Cli::parse();
    match dispatch(cli, |config| run(config).map_err(|error| CliError::Daemon(Box::new(error)))) {
        Ok(()) => ExitCode::SUCCESS,
        // Who reads the output has seen enough.
        Err(CliError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done when standard error is closed as well.
            let _ = writeln!(std::io::stderr(), "glidefs: {}", chain(&error));
            // A configuration that is refused stays so: systemd is told not to try again.
            match error {
                CliError::Config(_) => ExitCode::from(2),
                CliError::WaitEnded { .. } => ExitCode::from(3),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

fn dispatch(cli: Cli, run: impl FnOnce(&Config) -> Result<(), CliError>) -> Result<(), CliError> {
    match cli.command {
        Command::Run { config, remove_devices } => {
            let mut config = Config::load(&config)?;
            if remove_devices {
                config.control.on_stop = OnStop::Remove;
            }
            let format = match config.log.format {
                LogFormat::Auto => logging::Format::Auto,
                LogFormat::Text => logging::Format::Text,
                LogFormat::Journald => logging::Format::Journald,
            };
            logging::init(&config.log.filter, format)?;
            run(&config)
        }
        Command::Init { path, force } => commands::init(&path, force),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "glidefs", &mut text);
            emit(&text)
        }
        Command::Man { dir } => commands::man(dir.as_deref()),
        Command::Bench { command } => bench::run(command),
        Command::Export { command } => {
            with_client(&cli.daemon, async |client| commands::export(client, command).await)
        }
        Command::Snapshot { command } => {
            with_client(&cli.daemon, async |client| commands::snapshot(client, command).await)
        }
        Command::Import(args) => {
            with_client(&cli.daemon, async |client| transfer::import(client, *args).await)
        }
        Command::Drain { limit, output } => {
            with_client(&cli.daemon, async |client| commands::drain(client, limit.timeout, output).await)
        }
        Command::Gc { dry_run, grace, output } => {
            with_client(&cli.daemon, async |client| commands::gc(client, dry_run, grace, output).await)
        }
        Command::Status { json } => {
            with_client(&cli.daemon, async |client| commands::status(client, json).await)
        }
    }
}

/// Runs `work` with a client of the daemon.
fn with_client(
    daemon: &args::DaemonArgs,
    work: impl AsyncFnOnce(&Client) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let client = Client::new(daemon)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::Runtime)?;
    runtime.block_on(work(&client))
}

/// Writes to standard output.
fn emit(text: &[u8]) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).map_err(CliError::Output)
}
