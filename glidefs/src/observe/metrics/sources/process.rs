//! Figures of the process, most of them from `/proc`.
//!
//! Invariant: a figure that `/proc` does not have, or has in an unknown form, is left out of the scrape; the others are
//! shown.

use std::fs;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::observe::logging::lost_lines;
use crate::observe::memory::Resident;
use crate::observe::metrics::registry::FigureSource;
use crate::observe::metrics::samples::Samples;
use crate::observe::metrics::table::Metric;

/// Shows the version of the daemon, the start time, which is now, lost lines of the log, the memory and the number of file descriptors.
pub fn process() -> Arc<FigureSource> {
    let start = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let start_nanos = start.and_then(|start| u64::try_from(start.as_nanos()).ok());
    Arc::new(move |out: &mut Samples| {
        out.value(Metric::BuildInfo, &[env!("CARGO_PKG_VERSION")], 1);
        out.value(Metric::LogLinesLost, &[], lost_lines());
        for (metric, value) in [
            (Metric::ProcessStart, start_nanos),
            (Metric::ProcessResident, Resident::now().map(|resident| resident.all)),
            (Metric::ProcessOpenFds, open_fds()),
        ] {
            if let Some(value) = value {
                out.value(metric, &[], value);
            } else {
                tracing::debug!(metric = metric.definition().name, "/proc does not tell a metric");
            }
        }
    })
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
