//! `glidefs init`, `man` and `store init`: files, texts and stores made without the daemon.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::api;
use crate::cli::args::Cli;
use crate::cli::block_on;
use crate::cli::error::CliError;
use crate::cli::print::emit;
use crate::config::keys::commented_config;
use crate::store::{
    Access, Backend, RetryPolicy, Store, StoreError, StoreOptions, StoreUrl, process_variables,
};

/// How long a request to a place may take, with all tries.
const STORE_PATIENCE: Duration = Duration::from_secs(20);

/// Writes the configuration file. Replaces an existing file with `force` only.
pub(in crate::cli) fn init(path: &Path, force: bool) -> Result<(), CliError> {
    if path == Path::new("-") {
        return emit(commented_config().as_bytes());
    }
    let write_error = CliError::cannot("write", path);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(&write_error)?;
    }
    // With `create_new` the two before have no effect.
    let opened = OpenOptions::new().write(true).create(true).truncate(true).create_new(!force).open(path);
    let mut file = opened.map_err(|source| match source.kind() {
        std::io::ErrorKind::AlreadyExists => {
            CliError::Refused(format!("{} exists: use --force to replace it", path.display()))
        }
        _ => write_error(source),
    })?;
    file.write_all(commented_config().as_bytes()).map_err(write_error)?;
    emit(format!("wrote {}: set `[cache] dir` and `size` in it\n", path.display()).as_bytes())
}

/// Makes a store at `url`, unless one is there.
pub(in crate::cli) fn make_store(url: &StoreUrl) -> Result<(), CliError> {
    if let StoreUrl::File(path) = url {
        std::fs::create_dir_all(path).map_err(CliError::cannot("make", path))?;
    }
    let made = block_on(async {
        let retry = RetryPolicy { time_budget: STORE_PATIENCE, ..RetryPolicy::default() };
        let options = StoreOptions { retry, ..StoreOptions::default() };
        let store = Store::over(Backend::connect(url, &process_variables(), true)?, options);
        let what = match store.check(Access::ReadOnly).await {
            Ok(_) => "there is a store already",
            Err(_) => "made a new store",
        };
        let marker = store.check(Access::ReadWrite).await?;
        Ok::<_, StoreError>(format!("{what} at {url}: {}\n", marker.store_id))
    });
    emit(made??.as_bytes())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_made_once_in_an_empty_directory_and_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("above/store");
        let url = StoreUrl::File(place.clone());
        make_store(&url).unwrap();
        let marker = std::fs::read(place.join("glidefs.json")).unwrap();
        make_store(&url).unwrap();
        assert_eq!(std::fs::read(place.join("glidefs.json")).unwrap(), marker);
        let refused = make_store(&StoreUrl::File(folder.path().join("above"))).unwrap_err();
        assert!(refused.to_string().contains("has store, which is not of glidefs"), "{refused}");
    }
}
