//! `glidefs init` and `man`: files and texts made without the daemon.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::api;
use crate::cli::args::Cli;
use crate::cli::error::CliError;
use crate::cli::print::emit;
use crate::config::keys::commented_config;

/// Writes the configuration file. Replaces an existing file with `force` only.
pub(in crate::cli) fn init(path: &Path, force: bool) -> Result<(), CliError> {
    if path == Path::new("-") {
        return emit(commented_config().as_bytes());
    }
    let write_error = CliError::cannot("write", path);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(&write_error)?;
    }
    let mut options = OpenOptions::new();
    if force {
        options.write(true).create(true).truncate(true);
    } else {
        options.write(true).create_new(true);
    }
    let mut file = options.open(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => {
            CliError::Refused(format!("{} exists: use --force to replace it", path.display()))
        }
        _ => write_error(source),
    })?;
    file.write_all(commented_config().as_bytes()).map_err(write_error)?;
    emit(format!("wrote {}: set `[cache] dir` and `size` in it\n", path.display()).as_bytes())
}

/// Prints the manual page; or writes the pages of all commands, the completions and the description of the API into `dir`.
pub(in crate::cli) fn man(dir: Option<&Path>) -> Result<(), CliError> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(CliError::Output)?;
        return emit(&page);
    };
    let api = serde_json::to_string_pretty(&api::description())? + "\n";
    let written = std::fs::create_dir_all(dir).and_then(|()| {
        clap_mangen::generate_to(Cli::command(), dir)?;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            clap_complete::generate_to(shell, &mut Cli::command(), "glidefs", dir)?;
        }
        std::fs::write(dir.join("openapi.json"), api)
    });
    written.map_err(CliError::cannot("write", dir))
}
