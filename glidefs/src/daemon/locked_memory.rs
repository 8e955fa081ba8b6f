//! How much memory the process may lock, for parts of the log that are read often.
//!
//! Owns the limit. Does not own what is locked (`cache/keeper/mapped`).

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The bit of `CAP_IPC_LOCK` in a set of capabilities (capabilities(7)): no limit on locked memory holds for the process.
const CAP_IPC_LOCK: u64 = 1 << 14;

/// Raises the limit on locked memory to the hard limit. Returns `wanted` bytes, or fewer, where the process may lock fewer.
pub(super) fn bytes_within_limit(wanted: u64) -> u64 {
    if fs::read_to_string("/proc/self/status").is_ok_and(|status| may_lock_all(&status)) {
        return wanted;
    }
    let hard = getrlimit(Resource::RLIMIT_MEMLOCK)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_MEMLOCK, hard, hard).map(|()| hard));
    let bytes = hard.unwrap_or(0).min(wanted);
    if bytes < wanted {
        tracing::warn!(
            bytes,
            mapped_max = wanted,
            "the process may lock less memory than cache.mapped_max, so more READs take a buffer: raise the limit (ulimit -l, LimitMEMLOCK), \
             or lower cache.mapped_max"
        );
    }
    bytes
}

/// Whether the text of `/proc/self/status` has the capability.
fn may_lock_all(status: &str) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    effective
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|set| set & CAP_IPC_LOCK != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_to_lock_memory_is_found_in_the_set() {
        assert!(may_lock_all("Name:\tglidefs\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n"));
        assert!(may_lock_all("CapEff:\t0000000000004000\n"));
        assert!(!may_lock_all("CapPrm:\t0000000000004000\nCapEff:\t00000000a80425fb\n"));
        assert!(!may_lock_all("CapEff:\tnothing\n"));
        assert!(!may_lock_all(""));
    }

    #[test]
    fn no_more_is_locked_than_asked_for() {
        assert_eq!(bytes_within_limit(4096), 4096);
    }
}
