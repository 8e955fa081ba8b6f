//! The old program after `go`: waits for the successor, and serves again should the successor fail.
//!
//! Owns the process while nothing else runs in it: no device, no lock and no file is open. Does not own the decisions (`watch`).
//! Invariant: this process lives until the service manager knows another main process: the usher, or the successor where no usher starts.

mod child;
mod handed;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use self::child::{Child, End};
pub(super) use self::handed::{Handed, STANDBY_VARIABLE};
use super::link::{Link, LinkError};
use super::message::{Message, Tenure};
use super::notify::{Watchdog, has_manager, make_main_process};
use super::usher;
use super::watch::{News, Step, Watch};
use super::{Upgrade, VERSION};
use crate::observe::chain;

/// How often signals, the watchdog and the successor's process are looked at.
const TURN: Duration = Duration::from_millis(200);
/// How long a successor may take to end in good order when the service is stopped, where the service manager does not end both sooner, as
/// with the `TimeoutStopSec` of the shipped unit.
const STOP_PATIENCE: Duration = Duration::from_mins(5);
/// How long the process of a successor that has closed the socket may take to end, to tell how the process ended.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// The same where the successor has failed before this process became the standby: devices wait, and the process may also be deaf.
const LATE_END_PATIENCE: Duration = Duration::from_millis(200);

/// The end of a standby.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// The successor serves, and this process has nothing left to do.
    Served,
    /// The service was stopped, and the successor has ended.
    Stopped,
    /// The successor served until its end, with this exit status.
    Over(u8),
    /// The successor has failed: this process is to serve again, and had these exports.
    Again(Upgrade, Vec<Tenure>),
}

#[derive(Debug)]
pub struct Standby {
    link: Link,
    handed: Handed,
    signals: SignalFd,
    watchdog: Watchdog,
    is_managed: bool,
    successor: Child,
}

impl Standby {
    /// Takes over from the program that this process was. To be called before any thread is started.
    pub fn take() -> io::Result<Self> {
        let number = std::env::var(STANDBY_VARIABLE).map_err(io::Error::other)?;
        let handed = Handed::take(number.parse().map_err(io::Error::other)?)?;
        let socket = super::successor::take_socket()?;
        Self::new(handed, socket)
    }

    fn new(handed: Handed, socket: UnixStream) -> io::Result<Self> {
        // The kernel has named the process after the path of the program's file in /proc.
        let _ = nix::sys::prctl::set_name(c"glidefs");
        Ok(Self {
            link: Link::new(socket)?,
            successor: Child::new(handed.pid),
            handed,
            signals: catch_stops()?,
            watchdog: Watchdog::new(),
            is_managed: has_manager(),
        })
    }

    /// The configuration with which the daemon served; `None` when the file has to be read again.
    pub fn config(&self) -> Option<&str> {
        self.handed.config.as_deref()
    }

    /// Waits until the successor serves or fails. Without a service manager that can be told of another main process, the wait goes on
    /// until the successor ends: whoever has started this process takes its end for the end of the service.
    pub fn wait(mut self) -> Ended {
        let mut watch = Watch::new(Instant::now());
        let ended = loop {
            if let Some(reason) = self.handed.failure.take() {
                // A successor that could not be told has ended, or ends. Of one whose end was seen before, the reason tells.
                let reason = match self.wait_for_end(LATE_END_PATIENCE) {
                    Some(end @ End::Status(_)) => format!("{reason} ({end})"),
                    Some(End::Unknown) | None => reason,
                };
                break self.serve_again(reason);
            }
            let news = self.news();
            self.watchdog.feed();
            match watch.step(Instant::now(), news) {
                Step::Wait => {}
                Step::GiveWay if self.is_managed => {
                    self.give_way();
                    break Ended::Served;
                }
                Step::GiveWay => break Ended::Over(self.accompany()),
                Step::ServeAgain { reason } => break self.serve_again(reason),
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

    fn serve_again(&mut self, reason: String) -> Ended {
        let upgrade = self.end_successor(reason);
        Ended::Again(upgrade, std::mem::take(&mut self.handed.tenures))
    }

    fn news(&mut self) -> Option<News> {
        if let Ok(Some(_)) = self.signals.read_signal() {
            return Some(News::Stop);
        }
        match self.link.receive(TURN) {
            Ok(Some(message)) => Some(News::Said(message)),
            Ok(None) => self.successor.end().map(|end| News::Ended(end.to_string())),
            Err(LinkError::Closed) => {
                let ended = self.wait_for_end(END_PATIENCE);
                Some(ended.map_or(News::Closed, |end| News::Ended(end.to_string())))
            }
            Err(error) => Some(News::NotUnderstood(chain(&error))),
        }
    }

    /// Leaves the service to the successor. A service manager judges whether a main process is its own child when it is told of the
    /// process, and stops a stranger's child with SIGKILL: so an usher is the main process until the successor has lost its parent.
    fn give_way(&self) {
        let usher = usher::start(&self.link, self.handed.pid);
        if let Err(error) = &usher {
            tracing::error!(error = %error, "the service manager will take the successor for a process that is not its own");
        }
        // A service manager that was not told takes the end of this process for the end of the service, and starts another daemon.
        let main = usher.as_ref().copied().unwrap_or(self.handed.pid);
        if let Err(error) = make_main_process(main, &self.watchdog) {
            tracing::error!(error = %error, "the service manager could not be told of the successor");
        }
        // The service manager sends later signals to the usher.
        self.pass_signals_on();
        if usher.is_err() {
            self.say_yours();
        }
        tracing::info!(pid = self.handed.pid, version = self.handed.to, "the successor serves");
    }

    /// Stays as the parent of the successor: passes signals on, and returns the exit status.
    fn accompany(self) -> u8 {
        self.say_yours();
        tracing::info!(
            pid = self.handed.pid,
            version = self.handed.to,
            "the successor serves, and this process waits for its end, as no service manager can be told of another main process"
        );
        loop {
            self.pass_signals_on();
            if let Some(end) = self.successor.end() {
                return end.code();
            }
            let mut signals = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            let turn = PollTimeout::try_from(TURN).unwrap_or(PollTimeout::ZERO);
            if poll(&mut signals, turn).is_err() {
                std::thread::sleep(TURN);
            }
        }
    }

    fn say_yours(&self) {
        if let Err(error) = self.link.send(&Message::Yours) {
            tracing::warn!(error = &error as &dyn std::error::Error, "the successor ended after it served");
        }
    }

    fn pass_signals_on(&self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
            self.successor.signal(signal.unwrap_or(Signal::SIGTERM));
        }
    }

    fn end_successor(&self, reason: String) -> Upgrade {
        self.successor.signal(Signal::SIGKILL);
        while self.successor.end().is_none() {
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
        self.successor.signal(Signal::SIGTERM);
        if self.wait_for_end(STOP_PATIENCE).is_none() {
            self.successor.signal(Signal::SIGKILL);
        }
    }

    fn wait_for_end(&self, patience: Duration) -> Option<End> {
        let deadline = Instant::now() + patience;
        loop {
            let end = self.successor.end();
            if end.is_some() || Instant::now() >= deadline {
                return end;
            }
            std::thread::sleep(Duration::from_millis(10));
            self.watchdog.feed();
        }
    }
}

/// The signals that stop the service.
pub(super) fn stops() -> SigSet {
    [Signal::SIGTERM, Signal::SIGINT].into_iter().collect()
}

/// Has the signals that stop the service wait until they are read. For a process of one thread.
pub(super) fn catch_stops() -> io::Result<SignalFd> {
    let stops = stops();
    stops.thread_block()?;
    Ok(SignalFd::with_flags(&stops, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use nix::sys::signal::kill;
    use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
    use nix::unistd::Pid;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    /// A standby whose successor is a process that sleeps, and the successor's end of the socket.
    #[expect(clippy::zombie_processes, reason = "the standby waits")]
    fn standby() -> (Standby, Link) {
        let (link, other) = Link::pair().unwrap();
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let handed = Handed {
            pid: child.id(),
            to: "9.9.9".into(),
            began_unix_millis: 3,
            failure: None,
            config: None,
            tenures: vec![Tenure(1, 2)],
        };
        (Standby::new(handed, other.into()).unwrap(), link)
    }

    fn lives(pid: Pid) -> bool {
        kill(pid, None).is_ok()
    }

    /// The exit status of a standby whose successor serves, and is then ended by `end`.
    fn over(end: impl FnOnce(Pid)) -> Ended {
        let (mut standby, mut successor) = standby();
        standby.is_managed = false;
        let pid = standby.successor.pid();
        successor.send(&Message::Alive).unwrap();
        successor.send(&Message::Serving).unwrap();
        let waiting = std::thread::spawn(move || standby.wait());
        assert_eq!(successor.receive(SOON).unwrap(), Some(Message::Yours));
        assert!(lives(pid) && !waiting.is_finished());
        end(pid);
        waiting.join().unwrap()
    }

    #[test]
    fn a_standby_without_a_service_manager_stays_and_ends_as_the_successor_ends() {
        assert_eq!(over(|pid| kill(pid, Signal::SIGKILL).unwrap()), Ended::Over(137));
        assert_eq!(over(|pid| kill(pid, Signal::SIGUSR1).unwrap()), Ended::Over(138));
    }

    #[test]
    fn a_successor_that_fails_is_ended_and_the_program_serves_again_with_the_reason() {
        let (standby, successor) = standby();
        let pid = standby.successor.pid();
        successor.send(&Message::failed("no room")).unwrap();
        let Ended::Again(upgrade, tenures) = standby.wait() else { panic!("given way to") };
        assert_eq!(tenures, [Tenure(1, 2)], "the daemon serves what it served before");
        assert_eq!((upgrade.failure.as_deref(), upgrade.to.as_deref()), (Some("no room"), Some("9.9.9")));
        assert!(!lives(pid), "two programs would serve");
    }

    #[test]
    fn the_end_of_a_successor_is_told_with_its_cause() {
        let (standby, successor) = standby();
        kill(standby.successor.pid(), Signal::SIGKILL).unwrap();
        let Ended::Again(upgrade, _) = standby.wait() else { panic!("given way to") };
        let reason = upgrade.failure.unwrap();
        assert!(reason.contains("signal: 9"), "{reason}");
        drop(successor);
    }

    #[test]
    fn a_successor_that_could_not_be_told_is_told_of_with_its_end() {
        let (mut standby, _successor) = standby();
        standby.handed.failure = Some("not told".into());
        let pid = standby.successor.pid();
        kill(pid, Signal::SIGKILL).unwrap();
        waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        let Ended::Again(upgrade, _) = standby.wait() else { panic!("the successor served") };
        let reason = upgrade.failure.unwrap();
        assert!(reason.starts_with("not told") && reason.contains("signal: 9"), "{reason}");
    }

    #[test]
    fn a_failure_that_was_seen_before_is_told_and_not_the_status_of_a_process_that_is_gone() {
        let (mut standby, _successor) = standby();
        let pid = standby.successor.pid();
        standby.handed.failure = Some("exit status: 3".into());
        let Ended::Again(upgrade, _) = standby.wait() else { panic!("the successor served") };
        assert_eq!(upgrade.failure.as_deref(), Some("exit status: 3"));
        assert!(!lives(pid));
    }

    /// A standby whose successor was waited for by somebody else, and the successor's end of the socket.
    fn standby_of_nobody() -> (Standby, Link) {
        let (mut standby, successor) = standby();
        kill(standby.successor.pid(), Signal::SIGKILL).unwrap();
        waitpid(standby.successor.pid(), None).unwrap();
        standby.is_managed = false;
        (standby, successor)
    }

    #[test]
    fn a_successor_whose_exit_status_nobody_has_did_not_end_well() {
        let (standby, successor) = standby_of_nobody();
        successor.send(&Message::Serving).unwrap();
        assert_eq!(standby.wait(), Ended::Over(1));
        let (standby, successor) = standby_of_nobody();
        drop(successor);
        let Ended::Again(upgrade, _) = standby.wait() else { panic!("given way to") };
        let reason = upgrade.failure.unwrap();
        assert!(reason.contains("exit status is not known"), "{reason}");
    }

    #[test]
    fn a_successor_that_closes_the_socket_is_ended() {
        let (standby, successor) = standby();
        let pid = standby.successor.pid();
        drop(successor);
        assert!(matches!(standby.wait(), Ended::Again(..)));
        assert!(!lives(pid));
    }
}
