//! `glidefs init`, `completions`, `openapi` and `man`: files and texts made without the daemon.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use clap::CommandFactory;

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
    let write_error = |source| CliError::Write { path: path.into(), source };
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(write_error)?;
    }
    let mut options = OpenOptions::new();
    if force {
        options.write(true).create(true).truncate(true);
    } else {
        options.write(true).create_new(true);
    }
    let mut file = options.open(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => CliError::Exists { path: path.into() },
        _ => write_error(source),
    })?;
    file.write_all(commented_config().as_bytes()).map_err(write_error)?;
    emit(format!("wrote {}: set `[cache] dir` and `size` in it\n", path.display()).as_bytes())
}

/// Prints the manual page, or writes the pages of all commands into `dir`.
pub(in crate::cli) fn man(dir: Option<&Path>) -> Result<(), CliError> {
    if let Some(dir) = dir {
        return clap_mangen::generate_to(Cli::command(), dir)
            .map_err(|source| CliError::Write { path: dir.into(), source });
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page).map_err(CliError::Output)?;
    emit(&page)
}

pub(in crate::cli) fn completions(shell: clap_complete::Shell) -> Result<(), CliError> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "glidefs", &mut text);
    emit(&text)
}

/// Prints the description of the API.
pub(in crate::cli) fn openapi() -> Result<(), CliError> {
    let mut text = serde_json::to_string_pretty(&api::description())?;
    text.push('\n');
    emit(text.as_bytes())
}
