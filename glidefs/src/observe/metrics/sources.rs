//! The sources of figures from the layers below and from the process.
//!
//! Owns the way from counters to samples: the queues of an export are summed, workers get a label each. Does not own the
//! counters (`observe::io`), nor the lists of exports and workers: the layers above hand the lists in. Invariant: a figure that `/proc`
//! does not have, or has in an unknown form, is left out of the scrape; the others are shown.

mod exports;

use std::fs;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::samples::Samples;
use super::table::Metric;
use crate::observe::io::WorkerStats;
use crate::observe::logging::lost_lines;
use crate::observe::memory::Resident;

pub use self::exports::{ExportFigures, LogFigures, Packs, export, states};

/// Shows `workers`. The label of a worker is the place in the list.
pub fn workers(workers: &[Arc<WorkerStats>], out: &mut Samples) {
    for (index, stats) in workers.iter().enumerate() {
        out.values(
            &[&index.to_string()],
            [
                (Metric::WorkerQueues, stats.queues.get()),
                (Metric::WorkerTurns, stats.turns.get()),
                (Metric::WorkerRequests, stats.requests.get()),
                (Metric::WorkerRiskWaits, stats.risk_waits.get()),
                (Metric::WorkerLogWaits, stats.log_waits.get()),
                (Metric::WorkerLogLine, stats.log_line.get()),
                (Metric::PoolAcquires, stats.pool.acquires.get()),
                (Metric::PoolWaits, stats.pool.waits.get()),
                (Metric::PoolWaitTime, stats.pool.wait_nanos.get()),
                (Metric::PoolLive, stats.pool.live_bytes.get()),
                (Metric::PoolLiveMax, stats.pool.live_bytes_max.get()),
                (Metric::PoolArena, stats.pool.arena_bytes.get()),
            ],
        );
    }
    let initialized = workers.iter().filter(|stats| stats.pool.arena_bytes.get() > 0).count();
    out.value(Metric::PoolWorkersInitialized, &[], initialized as u64);
}

/// Shows the version of the daemon, the time of its `start`, lost lines of the log, the memory and the number of file descriptors.
pub fn process(start: SystemTime, out: &mut Samples) {
    let start = start.duration_since(UNIX_EPOCH).ok();
    out.value(Metric::BuildInfo, &[env!("CARGO_PKG_VERSION")], 1);
    out.value(Metric::LogLinesLost, &[], lost_lines());
    for (metric, value) in [
        (Metric::ProcessStart, start.and_then(|start| u64::try_from(start.as_nanos()).ok())),
        (Metric::ProcessResident, Resident::now().map(|resident| resident.all)),
        (Metric::ProcessOpenFds, open_fds()),
    ] {
        if let Some(value) = value {
            out.value(metric, &[], value);
        } else {
            tracing::debug!(metric = metric.definition().name, "/proc does not tell a metric");
        }
    }
}

fn open_fds() -> Option<u64> {
    // Newer kernels give the number as the size of the directory; listing many thousand entries is slow.
    match fs::metadata("/proc/self/fd").ok()?.len() {
        // The descriptor used for listing is not counted.
        0 => Some((fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1)),
        open => Some(open),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_files_are_counted() {
        // Other tests open and close files meanwhile.
        let files: Vec<_> = (0..100).map(|_| fs::File::open("/proc/self/stat").unwrap()).collect();
        assert!(open_fds().unwrap() >= files.len() as u64);
    }
}
