//! `glidefs csi`: the driver of the container storage interface, as a process of its own.
//!
//! Owns the defaults of the arguments. Does not own the driver (`csi`).

use std::path::Path;
use std::time::Duration;

use crate::cli::args::DaemonArgs;
use crate::cli::args::csi::{CsiArgs, segment};
use crate::cli::error::CliError;
use crate::csi::{self, HostTopology, Options};
use crate::observe::logging;

pub(in crate::cli) fn run(daemon: &DaemonArgs, args: CsiArgs) -> Result<(), CliError> {
    logging::init(&args.log)?;
    let node_id = args.node_id.map_or_else(host_name, Ok)?;
    let host = HostTopology { node_id, shared_store: args.shared_store };
    let options = Options { socket: args.endpoint.0, host, node_deployment: args.node_deployment };
    let client = daemon.client()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(CliError::runtime)?;
    let done = runtime.block_on(csi::run(client, options));
    // A read of a device which does not answer is not waited for.
    runtime.shutdown_timeout(Duration::from_secs(5));
    Ok(done?)
}

/// The name of this host, as the kernel has it.
fn host_name() -> Result<String, CliError> {
    const PATH: &str = "/proc/sys/kernel/hostname";
    let name = std::fs::read_to_string(PATH).map_err(CliError::cannot("read", Path::new(PATH)))?;
    let name = name.trim();
    let refused =
        |reason| CliError::Refused(format!("this host is called {name:?}: name it by --node-id; {reason}"));
    segment(name).map_err(refused)
}
