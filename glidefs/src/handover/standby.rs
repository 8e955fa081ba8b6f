//! The old program after `go`: waits for the successor, and serves again should the successor fail.
//!
//! Owns the process while nothing else runs in it: no device, no lock and no file is open. Does not own the decisions (`watch`).
//! Invariant: the service manager's main process lives until the successor is known to the manager as the main process.

use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::link::{Link, LinkError};
use super::message::Message;
use super::notify::{Watchdog, make_main_process};
use super::watch::{News, Step, Watch};
use super::{Upgrade, VERSION};
use crate::observe::chain;

/// The environment variable with the standby's [`Handed`].
pub(super) const STANDBY_VARIABLE: &str = "GLIDEFS_STANDBY";
/// Longest configuration that is handed over; the kernel allows 128 KiB for a variable.
const CONFIG_BYTES_MAX: usize = 48 << 10;
/// How often signals, the watchdog and the successor's process are looked at.
const TURN: Duration = Duration::from_millis(200);
/// How long a successor may take to end in good order when the service is stopped.
const STOP_PATIENCE: Duration = Duration::from_mins(5);
/// How long the process of a successor that has closed the socket may take to end, to tell how the process ended.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// The things that a program hands to itself across `execve`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Handed {
    /// The process of the successor, a child of this process.
    pub pid: u32,
    /// The version of the successor.
    pub to: String,
    /// When the upgrade began, milliseconds since 1970-01-01 UTC.
    pub began_unix_millis: u64,
    /// The configuration of the daemon: the file may be one for the successor by now. `None` for a file of unusual length.
    pub config: Option<String>,
}

impl Handed {
    pub fn config_that_fits(config: &str) -> Option<String> {
        (config.len() <= CONFIG_BYTES_MAX && !config.contains('\0')).then(|| config.into())
    }

    pub fn to_text(&self) -> String {
        // Plain structs always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The end of a standby.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The successor serves, and this process has nothing left to do.
    Served,
    /// The service was stopped, and the successor has ended.
    Stopped,
    /// The successor has failed: this process is to serve again.
    Again(Upgrade),
}

#[derive(Debug)]
pub struct Standby {
    link: Link,
    handed: Handed,
    signals: SignalFd,
    watchdog: Watchdog,
}

impl Standby {
    /// Takes over from the program that this process was. To be called before any thread is started.
    pub fn take() -> io::Result<Self> {
        let text = std::env::var(STANDBY_VARIABLE).map_err(io::Error::other)?;
        let handed: Handed = serde_json::from_str(&text)?;
        let socket = super::successor::take_socket()?;
        Self::new(handed, socket)
    }

    fn new(handed: Handed, socket: UnixStream) -> io::Result<Self> {
        // The kernel has named the process after the path of the program's file in /proc.
        let _ = nix::sys::prctl::set_name(c"glidefs");
        let stops = stops();
        stops.thread_block()?;
        let signals = SignalFd::with_flags(&stops, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        Ok(Self { link: Link::new(socket)?, handed, signals, watchdog: Watchdog::new() })
    }

    /// The configuration with which the daemon served; `None` when the file has to be read again.
    pub fn config(&self) -> Option<&str> {
        self.handed.config.as_deref()
    }

    /// Waits until the successor serves or fails.
    pub fn wait(mut self) -> Ended {
        let mut watch = Watch::new(Instant::now());
        let ended = loop {
            let news = self.news();
            self.watchdog.feed();
            match watch.step(Instant::now(), news) {
                Step::Wait => {}
                Step::GiveWay => {
                    self.give_way();
                    break Ended::Served;
                }
                Step::ServeAgain { reason } => break Ended::Again(self.end_successor(reason)),
                Step::Stop => {
                    self.stop_successor();
                    break Ended::Stopped;
                }
            }
        };
        // The daemon that serves again has handlers of its own.
        if let Err(error) = stops().thread_unblock() {
            tracing::warn!(error = %error, "signals to stop stay blocked");
        }
        ended
    }

    fn news(&mut self) -> Option<News> {
        if let Ok(Some(_)) = self.signals.read_signal() {
            return Some(News::Stop);
        }
        match self.link.receive(TURN) {
            Ok(Some(message)) => Some(News::Said(message)),
            Ok(None) => self.status().map(|status| News::Ended(status.to_string())),
            Err(LinkError::Closed) => {
                let ended = self.wait_for_end(END_PATIENCE);
                Some(ended.map_or(News::Closed, |status| News::Ended(status.to_string())))
            }
            Err(error) => Some(News::NotUnderstood(chain(&error))),
        }
    }

    fn give_way(&self) {
        // A service manager that was not told takes the end of this process for the end of the service, and starts another daemon.
        if let Err(error) = make_main_process(self.handed.pid) {
            tracing::error!(error = %error, "the service manager could not be told of the successor");
        }
        if let Err(error) = self.link.send(&Message::Yours) {
            tracing::warn!(error = &error as &dyn std::error::Error, "the successor ended after it served");
        }
        tracing::info!(pid = self.handed.pid, version = self.handed.to, "the successor serves");
    }

    fn end_successor(&self, reason: String) -> Upgrade {
        self.signal(Signal::SIGKILL);
        while self.status().is_none() {
            std::thread::sleep(Duration::from_millis(10));
            self.watchdog.feed();
        }
        tracing::error!(
            reason,
            version = self.handed.to,
            "the upgrade has failed: this program serves again"
        );
        Upgrade {
            began_unix_millis: self.handed.began_unix_millis,
            from: VERSION.into(),
            to: Some(self.handed.to.clone()),
            failure: Some(reason),
        }
    }

    fn stop_successor(&self) {
        self.signal(Signal::SIGTERM);
        if self.wait_for_end(STOP_PATIENCE).is_none() {
            self.signal(Signal::SIGKILL);
        }
    }

    fn wait_for_end(&self, patience: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + patience;
        loop {
            let status = self.status();
            if status.is_some() || Instant::now() >= deadline {
                return status;
            }
            std::thread::sleep(Duration::from_millis(10));
            self.watchdog.feed();
        }
    }

    fn pid(&self) -> Pid {
        // Process numbers fit: the kernel's largest is 2^22.
        Pid::from_raw(i32::try_from(self.handed.pid).unwrap_or(i32::MAX))
    }

    fn signal(&self, signal: Signal) {
        // The process may have ended by itself. Its number is not used again before `waitpid`.
        let _ = kill(self.pid(), signal);
    }

    /// How the successor has ended; `None` while it lives.
    fn status(&self) -> Option<ExitStatus> {
        match waitpid(self.pid(), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::Exited(_, code)) => Some(ExitStatus::from_raw((code & 0xff) << 8)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Some(ExitStatus::from_raw(signal as i32)),
            Ok(_) | Err(Errno::EINTR) => None,
            // No such child: nobody is left to wait for.
            Err(_) => Some(ExitStatus::from_raw(0)),
        }
    }
}

fn stops() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT].into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// A standby whose successor is a process that sleeps, and the successor's end of the socket.
    #[expect(clippy::zombie_processes, reason = "the standby waits")]
    fn standby() -> (Standby, Link) {
        let (link, other) = Link::pair().unwrap();
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let handed = Handed { pid: child.id(), to: "9.9.9".into(), began_unix_millis: 3, config: None };
        (Standby::new(handed, other.into()).unwrap(), link)
    }

    fn lives(pid: Pid) -> bool {
        kill(pid, None).is_ok()
    }

    #[test]
    fn a_standby_gives_way_to_a_successor_that_serves() {
        let (standby, mut successor) = standby();
        let pid = standby.pid();
        successor.send(&Message::Alive).unwrap();
        successor.send(&Message::Serving).unwrap();
        assert_eq!(standby.wait(), Ended::Served);
        assert_eq!(successor.receive(SOON).unwrap(), Some(Message::Yours));
        assert!(lives(pid));
        kill(pid, Signal::SIGKILL).unwrap();
        waitpid(pid, None).unwrap();
    }

    #[test]
    fn a_successor_that_fails_is_ended_and_the_program_serves_again_with_the_reason() {
        let (standby, successor) = standby();
        let pid = standby.pid();
        successor.send(&Message::failed("no room")).unwrap();
        let Ended::Again(upgrade) = standby.wait() else { panic!("given way to") };
        assert_eq!((upgrade.failure.as_deref(), upgrade.to.as_deref()), (Some("no room"), Some("9.9.9")));
        assert!(!lives(pid), "two programs would serve");
    }

    #[test]
    fn the_end_of_a_successor_is_told_with_its_cause() {
        let (standby, successor) = standby();
        kill(standby.pid(), Signal::SIGKILL).unwrap();
        let Ended::Again(upgrade) = standby.wait() else { panic!("given way to") };
        let reason = upgrade.failure.unwrap();
        assert!(reason.contains("signal: 9"), "{reason}");
        drop(successor);
    }

    #[test]
    fn a_successor_that_closes_the_socket_is_ended() {
        let (standby, successor) = standby();
        let pid = standby.pid();
        drop(successor);
        assert!(matches!(standby.wait(), Ended::Again(_)));
        assert!(!lives(pid));
    }

    #[test]
    fn a_configuration_of_unusual_length_is_read_from_the_file_again() {
        assert_eq!(Handed::config_that_fits("[cache]\n").as_deref(), Some("[cache]\n"));
        assert_eq!(Handed::config_that_fits(&"#".repeat(CONFIG_BYTES_MAX + 1)), None);
        // Every byte may take six in JSON; a variable has room for 128 KiB.
        let config = Handed::config_that_fits(&"\"\n".repeat(CONFIG_BYTES_MAX / 2));
        let handed = Handed { pid: u32::MAX, to: "1".into(), began_unix_millis: u64::MAX, config };
        assert!(handed.to_text().len() < 128 << 10);
        assert_eq!(serde_json::from_str::<Handed>(&handed.to_text()).unwrap(), handed);
    }
}
