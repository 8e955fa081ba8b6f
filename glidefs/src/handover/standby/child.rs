//! The process of the successor, as known to the parent.
//!
//! Owns the signals to the process, and the look for its end. Invariant: a process whose end was seen gets no signal, as the number
//! may be another one's.

use std::cell::Cell;
use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// The end of the successor's process.
#[derive(Clone, Copy, Debug)]
pub enum End {
    Status(ExitStatus),
    /// The process is gone, or was never a child of this one, and nobody knows the status.
    Unknown,
}

impl End {
    /// The exit status for whoever waits for this process, as shells give for signals. An unknown end is no good one.
    pub fn code(self) -> u8 {
        let Self::Status(status) = self else { return 1 };
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => status.fmt(f),
            Self::Unknown => f.write_str("its exit status is not known"),
        }
    }
}

/// A child of this process.
#[derive(Debug)]
pub(super) struct Child {
    pid: u32,
    /// How the process has ended, once the end was seen.
    end: Cell<Option<End>>,
}

impl Child {
    pub fn new(pid: u32) -> Self {
        Self { pid, end: Cell::new(None) }
    }

    pub fn pid(&self) -> Pid {
        // Process numbers fit: the kernel's largest is 2^22.
        Pid::from_raw(i32::try_from(self.pid).unwrap_or(i32::MAX))
    }

    /// Sends the signal, unless the end of the process was seen.
    pub fn signal(&self, signal: Signal) {
        // An ended process keeps the number until `waitpid`, and not longer.
        if self.end.get().is_none() {
            let _ = kill(self.pid(), signal);
        }
    }

    /// How the successor has ended; `None` while it lives.
    pub fn end(&self) -> Option<End> {
        if self.end.get().is_none() {
            self.end.set(match waitpid(self.pid(), Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(_, code)) => {
                    Some(End::Status(ExitStatus::from_raw((code & 0xff) << 8)))
                }
                Ok(WaitStatus::Signaled(_, signal, _)) => {
                    Some(End::Status(ExitStatus::from_raw(signal as i32)))
                }
                Ok(_) | Err(Errno::EINTR) => None,
                // No such child: nobody is left to wait for.
                Err(_) => Some(End::Unknown),
            });
        }
        self.end.get()
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_process_whose_end_was_seen_is_not_signalled() {
        let child = Child::new(Command::new("sleep").arg("600").spawn().unwrap().id());
        child.signal(Signal::SIGKILL);
        while child.end().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The number is free. Another process that has the number by now is a child of somebody else, or the next one here.
        let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
        let child = Child { pid: stranger.id(), ..child };
        child.signal(Signal::SIGKILL);
        std::thread::sleep(Duration::from_millis(50));
        assert!(stranger.try_wait().unwrap().is_none(), "a stranger was killed");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
    }
}
