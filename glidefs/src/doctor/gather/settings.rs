//! Facts of the configuration.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::Path;

use super::daemon::Daemon;
use super::is_root;
use super::patience::answer;
use crate::api::Token;
use crate::config::{BOUNCE_MODE_VARIABLE, Config, ConfigError, CpuList};
use crate::doctor::settings::{Refusal, SettingsFacts};
use crate::observe::chain;
use crate::worker::cpus::Usable;

/// The CPUs of the host that are on.
const CPUS_ON: &str = "/sys/devices/system/cpu/online";

/// The configuration at `path`, or the defaults where the file is refused, and the facts about it: for `daemon`, or without one for
/// a daemon that may use every CPU.
pub(super) async fn gather(path: &Path, daemon: Option<&Daemon>) -> (Config, SettingsFacts) {
    let own_bounce = std::env::var_os(BOUNCE_MODE_VARIABLE);
    let bounce = match daemon {
        Some(daemon) if daemon.variables.is_some() => daemon.variable(BOUNCE_MODE_VARIABLE).map(Into::into),
        _ => own_bounce,
    };
    let usable = daemon.and_then(|daemon| daemon.usable.clone());
    let file = path.to_owned();
    let found = answer(move || match usable {
        Some(usable) => (Config::load_for(&file, &usable, bounce.as_deref()), None),
        None => load_without_daemon(&file, bounce.as_deref()),
    });
    let (loaded, only_elsewhere) = match found.await {
        Ok((loaded, only_elsewhere)) => (loaded.map_err(refusal), only_elsewhere),
        Err(silence) => (Err(Refusal { text: silence, is_forbidden: false }), None),
    };
    let refused = loaded.as_ref().map(drop).map_err(Clone::clone);
    let config = loaded.unwrap_or_else(|_| defaults());
    let token = match config.api.token_file.clone() {
        Some(path) => Some(answer(move || Token::load(&path).map(drop)).await),
        None => None,
    };
    let group = |name: &String| {
        let found = nix::unistd::Group::from_name(name);
        (name.clone(), matches!(found, Ok(Some(_))))
    };
    let facts = SettingsFacts {
        path: path.display().to_string(),
        is_root: is_root(),
        loaded: refused,
        only_elsewhere,
        token,
        group: config.api.group.as_ref().map(group),
    };
    (config, facts)
}

/// The configuration for the CPUs of this process, or else for all CPUs of the host, with the refusal for those of this process.
fn load_without_daemon(path: &Path, bounce: Option<&OsStr>) -> (Result<Config, ConfigError>, Option<String>) {
    let own = Usable::find().map_err(ConfigError::Cpus);
    let refused = match own.and_then(|usable| Config::load_for(path, &usable, bounce)) {
        Ok(config) => return (Ok(config), None),
        Err(error) => error,
    };
    let every = fs::read_to_string(CPUS_ON).ok().and_then(|list| list.trim().parse::<CpuList>().ok());
    let every = every.map(|list| Usable { cpus: list.cpus().to_vec(), quota: None });
    match every.map(|usable| Config::load_for(path, &usable, bounce)) {
        Some(Ok(config)) => (Ok(config), Some(chain(&refused))),
        _ => (Err(refused), None),
    }
}

fn refusal(error: ConfigError) -> Refusal {
    let is_forbidden = matches!(&error, ConfigError::Read { source, .. } if source.kind() == io::ErrorKind::PermissionDenied);
    Refusal { text: chain(&error), is_forbidden }
}

fn defaults() -> Config {
    let Ok(usable) = Usable::find() else { return Config::default() };
    let workers = usable.workers(usable.cpus.len());
    Config { worker_cpus: usable.cpus.into_iter().take(workers).collect(), ..Config::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A daemon of an environment with `variables` that may use CPU 0 and CPU 1.
    fn daemon(variables: &[(&str, &str)]) -> Daemon {
        let variables = variables.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        let usable = Some(Usable { cpus: vec![0, 1], quota: None });
        Daemon { pid: 7, variables: Some(variables), usable, workers: 2 }
    }

    #[tokio::test]
    async fn a_file_that_is_refused_leaves_the_defaults_to_the_other_checks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("glidefs.toml");
        let (_, missing) = gather(&path, None).await;
        assert!(missing.loaded.unwrap_err().text.contains("glidefs init"));
        fs::write(&path, "[cache]\nsize = \"many\"\n").unwrap();
        let (config, refused) = gather(&path, None).await;
        assert!(refused.loaded.unwrap_err().text.contains("glidefs.toml:2"));
        assert!(!config.worker_cpus.is_empty());
    }

    #[tokio::test]
    async fn the_cpus_and_the_environment_are_those_of_the_daemon_that_runs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("glidefs.toml");
        fs::write(&path, "").unwrap();
        let (config, _) = gather(&path, Some(&daemon(&[(BOUNCE_MODE_VARIABLE, "yes")]))).await;
        assert!(config.bounce_mode && config.worker_cpus == [0, 1]);
        fs::write(&path, "[workers]\ncpus = \"1-2\"\n").unwrap();
        let (_, facts) = gather(&path, Some(&daemon(&[]))).await;
        assert!(facts.loaded.unwrap_err().text.contains("CPU 2 is not one of those"));
    }

    #[tokio::test]
    async fn files_and_groups_that_the_configuration_names_are_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let (path, token) = (folder.path().join("glidefs.toml"), folder.path().join("token"));
        let text = format!("[api]\ngroup = \"no-such-group-here\"\ntoken_file = \"{}\"\n", token.display());
        fs::write(&path, text).unwrap();
        let (_, facts) = gather(&path, None).await;
        assert_eq!(facts.loaded, Ok(()));
        assert_eq!(facts.group, Some(("no-such-group-here".into(), false)));
        assert!(matches!(facts.token, Some(Ok(Err(_)))));
    }
}
