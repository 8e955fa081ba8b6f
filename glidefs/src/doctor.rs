//! `glidefs doctor`: faults of this host which keep the daemon from running well, each with a remedy.
//!
//! ```text
//!   gather   asks the kernel, the files and the store ──▶ facts ──▶ one small function a check ──▶ finding
//! ```
//!
//! Facts are plain values, so each finding has a test that makes the finding appear. Checks that the daemon makes at its start are
//! the daemon's own (`config`, `api` for the token, `ublk` for the driver, `worker/engine/probe` for the disk, `router` for the
//! catalog, `store` for the place).
//!
//! Owns facts, verdicts and advice. Does not own the printing (`cli`). Invariants: works without a daemon, and beside one; changes
//! nothing, but for a measurement in the directory of the cache and for objects of a trial in the store, both of which are removed.
//!
//! | File | Judges |
//! |---|---|
//! | `settings` | the configuration, the token, the group |
//! | `leftovers` | the daemon; devices, socket and files of dead daemons |
//! | `kernel` | version, driver, abilities, limit of devices |
//! | `process` | capabilities, rings, limits, CPU quota, mount namespace |
//! | `host` | udev, NUMA, clock |
//! | `cache` | directory, file system, disk |
//! | `catalog` | the catalog, and whether the store is the one of its exports |
//! | `store` | reachability, credentials, conditional creation, latency, clock |

mod cache;
mod catalog;
mod finding;
mod gather;
mod host;
mod kernel;
mod leftovers;
mod process;
mod settings;
mod store;

use std::path::Path;

#[cfg(test)]
pub use self::finding::Finding;
pub use self::finding::{Report, Verdict};

/// All checks of this host, for the daemon of the configuration file at `config`.
pub async fn examine(config: &Path) -> Report {
    let facts = gather::gather(config).await;
    let mut findings = settings::check(&facts.settings);
    findings.extend(leftovers::check(&facts.leftovers));
    findings.extend(kernel::check(&facts.kernel));
    findings.extend(process::check(&facts.process));
    findings.extend(host::check(&facts.host));
    findings.extend(cache::check(&facts.cache));
    findings.extend(store::check(&facts.store));
    findings.push(catalog::check(&facts.catalog));
    Report::new(findings)
}
