//! The things handed from a program to itself across `execve`.
//!
//! Owns the form, and the file in memory. Does not own the consequences (`standby`). Invariant: nothing of the
//! configuration, which may have secrets, is in arguments or in the environment, which others may read.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{OwnedFd, RawFd};

use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::handover::message::Tenure;

/// The environment variable with the number of the descriptor from which the standby reads [`Handed`]. Not the text itself: every process
/// of the same user can read the environment.
pub(in crate::handover) const STANDBY_VARIABLE: &str = "GLIDEFS_STANDBY";
/// Longest configuration handed over; the file of a longer one is read again.
const CONFIG_BYTES_MAX: usize = 48 << 10;
/// Longest [`Handed`] to be read, bytes: a million tenures, and the longest configuration.
const HANDED_BYTES_MAX: u64 = 64 << 20;

/// The things handed from a program to itself across `execve`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::handover) struct Handed {
    /// The process of the successor, a child of this process.
    pub pid: u32,
    /// The version of the successor.
    pub to: String,
    /// When the upgrade began, milliseconds since 1970-01-01 UTC.
    pub began_unix_millis: u64,
    /// Why the successor cannot take over, where that was known before.
    pub failure: Option<String>,
    /// The configuration of the daemon: the file may be one for the successor by now. `None` for a file of unusual length.
    pub config: Option<String>,
    /// The exports served by this program.
    #[serde(default)]
    pub tenures: Vec<Tenure>,
}

impl Handed {
    pub fn config_that_fits(config: &str) -> Option<String> {
        (config.len() <= CONFIG_BYTES_MAX && !config.contains('\0')).then(|| config.into())
    }

    /// A file in memory with all of this, inherited by the next program in this process.
    pub fn pass_on(&self) -> io::Result<OwnedFd> {
        let mut file = File::from(memfd_create(c"handed", MFdFlags::empty())?);
        file.write_all(&serde_json::to_vec(self)?)?;
        Ok(file.into())
    }

    /// Takes what [`Handed::pass_on`] left in the descriptor `number`.
    pub fn take(number: RawFd) -> io::Result<Self> {
        let mut text = Vec::new();
        // Opened anew, so read from the beginning.
        File::open(format!("/proc/self/fd/{number}"))?.take(HANDED_BYTES_MAX).read_to_end(&mut text)?;
        nix::unistd::close(number)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd;

    use super::*;

    #[test]
    fn a_configuration_of_unusual_length_is_read_from_the_file_again() {
        assert_eq!(Handed::config_that_fits("[cache]\n").as_deref(), Some("[cache]\n"));
        assert_eq!(Handed::config_that_fits(&"#".repeat(CONFIG_BYTES_MAX + 1)), None);
        // A byte takes two of these in JSON.
        let config = Handed::config_that_fits(&"\"\n".repeat(CONFIG_BYTES_MAX / 4));
        let handed = Handed {
            pid: u32::MAX,
            to: "1".into(),
            began_unix_millis: u64::MAX,
            failure: None,
            config,
            tenures: vec![Tenure(u32::MAX, u64::MAX); 9_999],
        };
        let passed = handed.pass_on().unwrap();
        assert_eq!(Handed::take(passed.into_raw_fd()).unwrap(), handed);
    }
}
