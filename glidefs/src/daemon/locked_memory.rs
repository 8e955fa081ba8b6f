//! How much memory the process may lock, for stretches of the log that are read often.
//!
//! Owns the limit. Does not own what is locked (`cache/keeper/mapped`).

use std::fs;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::worker::capabilities::{CAP_IPC_LOCK, Capabilities};

/// Raises the limit on locked memory to the hard limit. Returns `wanted` bytes, or fewer, where the process may lock fewer.
pub(super) fn bytes_within_limit(wanted: u64) -> u64 {
    // No limit holds for a process with the capability.
    if fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| Capabilities::in_status(&status).has(CAP_IPC_LOCK))
    {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_locked_than_asked_for() {
        assert_eq!(bytes_within_limit(4096), 4096);
    }
}
