//! Figures of the process, from `/proc`.
//!
//! Invariant: a figure that `/proc` does not have, or has in an unknown form, is left out of the scrape; the others are
//! shown.

use std::fs;
use std::sync::Arc;

use nix::unistd::{SysconfVar, sysconf};

use crate::observe::metrics::registry::FigureSource;
use crate::observe::metrics::samples::Samples;
use crate::observe::metrics::table::Metric;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Shows the version of the daemon, the start time, the memory and the number of file descriptors.
pub fn process() -> Arc<dyn FigureSource> {
    // Both values stay the same while the process lives.
    let start_nanos = start_nanos();
    let page_bytes = system(SysconfVar::PAGE_SIZE);
    Arc::new(move |out: &mut Samples| {
        out.value(Metric::BuildInfo, &[env!("CARGO_PKG_VERSION")], 1);
        let resident = || resident_pages(&read("/proc/self/statm")?)?.checked_mul(page_bytes?);
        for (metric, value) in [
            (Metric::ProcessStart, start_nanos),
            (Metric::ProcessResident, resident()),
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

/// When this process started, as nanoseconds since the Unix epoch.
fn start_nanos() -> Option<u64> {
    let boot_seconds = boot_seconds(&read("/proc/stat")?)?;
    let ticks = start_ticks(&read("/proc/self/stat")?)?;
    let ticks_per_second = system(SysconfVar::CLK_TCK)?;
    let after_boot = ticks.checked_mul(NANOS_PER_SECOND)?.checked_div(ticks_per_second)?;
    boot_seconds.checked_mul(NANOS_PER_SECOND)?.checked_add(after_boot)
}

fn open_fds() -> Option<u64> {
    // Newer kernels give the number as the size of the directory; listing many thousand entries is slow.
    match fs::metadata("/proc/self/fd").ok()?.len() {
        // The descriptor used for listing is not counted.
        0 => Some((fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1)),
        open => Some(open),
    }
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()
}

fn system(variable: SysconfVar) -> Option<u64> {
    sysconf(variable).ok().flatten()?.try_into().ok()
}

/// Seconds from the Unix epoch to the start of the system, from `/proc/stat`.
fn boot_seconds(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// Clock ticks from the start of the system to the start of the process, from `/proc/self/stat`.
fn start_ticks(stat: &str) -> Option<u64> {
    // The second field is the name of the program in parentheses. The name may hold spaces and parentheses. The start is
    // field 22; field 3 is the first after the name.
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Pages in RAM, from `/proc/self/statm`.
fn resident_pages(statm: &str) -> Option<u64> {
    statm.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_found_behind_a_name_with_spaces_and_parentheses() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 106 0 0 0 0 0 0 0 20 0 1 0 8675309 2961408 219";
        assert_eq!(start_ticks(stat), Some(8_675_309));
    }

    #[test]
    fn what_is_cut_short_or_no_number_is_unknown() {
        assert_eq!(start_ticks("7 (a) S 1"), None);
        assert_eq!(start_ticks(""), None);
        assert_eq!(resident_pages("12"), None);
        assert_eq!(resident_pages("12 x"), None);
        assert_eq!(boot_seconds("cpu 1 2\nbtimes 5\n"), None);
    }

    #[test]
    fn this_process_started_before_now_and_after_boot() {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let start = u128::from(start_nanos().unwrap());
        let boot = u128::from(boot_seconds(&read("/proc/stat").unwrap()).unwrap()) * 1_000_000_000;
        assert!(boot <= start, "boot {boot}, start {start}");
        // `/proc/stat` gives the time of boot in whole seconds.
        assert!(start <= now.as_nanos() + 1_000_000_000, "start {start}, now {}", now.as_nanos());
    }

    #[test]
    fn open_files_are_counted() {
        // Other tests open and close files meanwhile.
        let files: Vec<_> = (0..100).map(|_| fs::File::open("/proc/self/stat").unwrap()).collect();
        assert!(open_fds().unwrap() >= files.len() as u64);
    }
}
