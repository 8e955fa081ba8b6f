//! The capabilities of a process (capabilities(7)), as the kernel shows them.
//!
//! Does not own which capability a part of the daemon needs.

/// The capability to make and serve ublk devices, for all that is privileged there.
pub const CAP_SYS_ADMIN: u32 = 21;
/// The capability to call `PR_SET_IO_FLUSHER`.
pub const CAP_SYS_RESOURCE: u32 = 24;
/// The capability to give a file to another group.
pub const CAP_CHOWN: u32 = 0;
/// The capability to lock memory without a limit.
pub const CAP_IPC_LOCK: u32 = 14;

/// Effective capabilities of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// The set in the text of `/proc/PID/status`; none, where the text has no set.
    pub fn in_status(status: &str) -> Self {
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Self(effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0))
    }

    /// Whether the capability of this number is in the set.
    pub fn has(self, number: u32) -> bool {
        self.0.checked_shr(number).is_some_and(|rest| rest & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_found_in_the_effective_set() {
        let has = |status| Capabilities::in_status(status).has(CAP_IPC_LOCK);
        assert!(has("Name:\tglidefs\nCapEff:\t000001ffffffffff\nCapBnd:\t0\n"));
        assert!(has("CapEff:\t0000000000004000\n"));
        assert!(!has("CapPrm:\t0000000000004000\nCapEff:\t00000000a80425fb\n"));
        assert!(!has("CapEff:\tnothing\n"));
        assert!(!has(""));
        assert!(!Capabilities(u64::MAX).has(64), "the kernel has no such capability");
    }
}
