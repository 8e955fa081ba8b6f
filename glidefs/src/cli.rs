//! The command line: arguments, the client of the daemon, printed answers.
//!
//! Owns everything people and scripts type. Does not own the daemon: `main` hands in the function that runs the daemon. Invariants:
//! exit status 0 means done, and any other one a class of failures (`error`; `doctor` has a meaning of its own for 1 and 2); with `--json`
//! standard output gets JSON and nothing else, and each failure is a line of JSON on standard error.

mod args;
mod bundle;
mod commands;
mod error;
mod print;
mod run;
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod top;
mod trace;
mod transfer;
mod wait;

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;

use self::args::{Cli, Command, StoreCommand};
use self::commands::{csi, daemon, doctor, exports, files, snapshots, upgrade};
use self::error::{CliError, USAGE};
use crate::client::Client;
use crate::config::Config;
use crate::doctor::{examine, try_store};
use crate::handover::{Handed, Identity};
use crate::observe::{chain, logging};

/// Runs the program: reads the arguments, carries out the command, prints an error and returns the exit status. `run` is the
/// daemon, and `check` the part of the daemon's start that only looks.
pub fn main<E: Error + 'static>(
    run: impl FnOnce(&Config, Option<Handed>) -> Result<(), E>,
    check: impl FnOnce(&Config) -> Result<Identity, E>,
) -> ExitCode {
    let failed = |error| CliError::Daemon(Box::new(error));
    let run = |config: &Config, handed| run(config, handed).map_err(failed);
    let json = is_json(std::env::args_os());
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if json && error.use_stderr() => {
            complain(json, "usage", error.to_string().trim_end());
            return ExitCode::from(USAGE);
        }
        Err(error) => error.exit(),
    };
    let done = dispatch(cli, run, |config| check(config).map_err(failed));
    logging::flush();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of a pipe has seen enough.
        Err(CliError::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            let (code, status) = error.class();
            complain(json, code, &chain(&error));
            ExitCode::from(status)
        }
    }
}

/// Whether failures are to be JSON, also that of arguments which are not understood.
fn is_json(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// Writes why the command failed to standard error.
fn complain(json: bool, code: &str, message: &str) {
    let error = serde_json::json!({"error": {"code": code, "message": message}});
    let text = if json { error.to_string() } else { format!("glidefs: {message}") };
    print::complain(&text);
}

fn dispatch(
    cli: Cli,
    run_daemon: impl FnOnce(&Config, Option<Handed>) -> Result<(), CliError>,
    check: impl FnOnce(&Config) -> Result<Identity, CliError>,
) -> Result<(), CliError> {
    match cli.command {
        Command::Run(args) => run::command(&args, run_daemon, check),
        Command::Init { path, force } => files::init(&path, force),
        Command::Man { dir } => files::man(dir.as_deref()),
        Command::Doctor { config, json } => doctor::run(examine(&config), json),
        Command::Store { command: StoreCommand::Test { url, config, output } } => {
            doctor::run(try_store(&config, url), output.json)
        }
        Command::Store { command: StoreCommand::Init { url } } => files::make_store(&url),
        Command::SupportBundle { config, out, json } => bundle::run(&cli.daemon, &config, out, json),
        Command::Export { wait, command } => {
            with_client(&cli.daemon, async |client| exports::run(client, command, wait).await)
        }
        Command::Snapshot { wait, command } => {
            with_client(&cli.daemon, async |client| snapshots::run(client, command, wait).await)
        }
        Command::Csi(args) => csi::run(&cli.daemon, args),
        Command::Import(args) => {
            with_client(&cli.daemon, async |client| transfer::import(client, *args).await)
        }
        Command::Drain { wait } => with_client(&cli.daemon, async |client| daemon::drain(client, wait).await),
        Command::Gc { dry_run, grace, wait } => {
            with_client(&cli.daemon, async |client| daemon::gc(client, dry_run, grace, wait).await)
        }
        Command::Upgrade { binary, config, output } => {
            let mut daemon = cli.daemon;
            if let Some(path) = config {
                daemon.socket = Config::load(&path)?.api.socket;
            }
            with_client(&daemon, async |client| upgrade::run(client, binary, output).await)
        }
        Command::Status { json } => {
            with_client(&cli.daemon, async |client| daemon::status(client, json).await)
        }
        Command::Top(args) => with_client(&cli.daemon, async |client| top::run(client, args).await),
        Command::Trace(args) => with_client(&cli.daemon, async |client| trace::run(client, args).await),
    }
}

/// Carries out `work` on this thread. Threads of questions without an answer are left behind, and end with the process.
fn block_on<T>(work: impl Future<Output = T>) -> Result<T, CliError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(CliError::runtime)?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}

/// Runs `work` with a client of the daemon.
fn with_client(
    daemon: &args::DaemonArgs,
    work: impl AsyncFnOnce(&Client) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let client = daemon.client()?;
    block_on(work(&client))?
}
