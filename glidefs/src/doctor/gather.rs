//! Gathers the facts of this host.
//!
//! Owns the questions and their order. Does not own any judgement. Invariants: a question that fails is a fact, not an error, so one
//! part that is broken hides no other; every question that may block has a time limit.

mod cache;
mod catalog;
mod clock;
mod daemon;
mod kernel;
mod leftovers;
mod patience;
mod process;
mod settings;
mod store;

use std::path::{Path, PathBuf};

use self::daemon::Daemon;
use super::cache::CacheFacts;
use super::catalog::CatalogFacts;
use super::host::HostFacts;
use super::kernel::KernelFacts;
use super::leftovers::LeftoverFacts;
use super::process::ProcessFacts;
use super::settings::SettingsFacts;
use super::store::StoreFacts;
use crate::config::Config;
use crate::store::StoreUrl;
use crate::worker::cpus::node_of;

/// Where the rules of udev are, the first of a name counts.
const RULES: [&str; 4] =
    ["/etc/udev/rules.d", "/run/udev/rules.d", "/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d"];
/// The name of the rules.
const RULES_NAME: &str = "60-glidefs.rules";

pub(super) struct Facts {
    pub settings: SettingsFacts,
    pub leftovers: LeftoverFacts,
    pub kernel: KernelFacts,
    pub process: ProcessFacts,
    pub host: HostFacts,
    pub cache: CacheFacts,
    pub store: StoreFacts,
    pub catalog: CatalogFacts,
}

/// The facts of this host, for the configuration file at `path`.
pub(super) async fn gather(path: &Path) -> Facts {
    let (mut config, mut settings) = settings::gather(path, None).await;
    let socket = leftovers::socket(&config.api.socket).await;
    let daemon = match socket.process() {
        Some(pid) => Daemon::find(pid).await,
        None => None,
    };
    if daemon.is_some() {
        // The settings depend on the CPUs and the environment, and those of the daemon count.
        (config, settings) = settings::gather(path, daemon.as_ref()).await;
    }
    let leftovers = leftovers::gather(&config, socket).await;
    let cache = cache::gather(&config, leftovers.ours()).await;
    let store = match settings.loaded {
        Ok(()) => store::gather(&config, daemon.as_ref()).await,
        Err(_) => StoreFacts::Unknown,
    };
    Facts {
        catalog: catalog::gather(&config, leftovers.is_served(), store.found()).await,
        settings,
        kernel: kernel::gather(&config).await,
        process: process::gather(&config, daemon.as_ref()),
        host: host(&config, &cache),
        leftovers,
        cache,
        store,
    }
}

/// Whether this command may look at everything.
fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn host(config: &Config, cache: &CacheFacts) -> HostFacts {
    HostFacts {
        udev_runs: Path::new("/run/udev/control").exists(),
        rules: RULES.iter().find_map(|folder| {
            let path: PathBuf = Path::new(folder).join(RULES_NAME);
            Some((path.clone(), std::fs::read_to_string(path).ok()?))
        }),
        worker_nodes: config.worker_cpus.iter().map(|&cpu| node_of(cpu)).collect(),
        disk_node: cache.disk.devices.iter().find_map(|device| cache::node_of_disk(device)),
        clock_is_kept: clock::is_kept(),
        has_remote_store: config
            .store
            .url
            .as_ref()
            .is_some_and(|url| !matches!(url, StoreUrl::File(_) | StoreUrl::Memory)),
    }
}
