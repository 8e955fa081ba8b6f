//! The new program: introduces itself, gets ready, takes over.
//!
//! Owns the socket to the program before, and the thread that says that this program lives. Invariant: until `go` has come, the end of
//! the program before is the end of this one, and nothing was touched.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::sys::stat::{SFlag, fstat};

use super::link::{Link, LinkError};
use super::message::{Hello, Identity, Mark, Message, PROTOCOL, Tenure};
use super::{Upgrade, VERSION};
use crate::locks::MutexExt;

/// How often a successor says that it lives.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long the program before may take for its preparations, and then to end its operations.
const TURN_PATIENCE: Duration = Duration::from_mins(30);
/// How long the standby may take to tell the service manager.
const YOURS_PATIENCE: Duration = Duration::from_mins(1);

/// Why a successor does not take over.
#[derive(Debug, thiserror::Error)]
pub enum SuccessorError {
    /// The program before speaks another version.
    #[error(
        "the daemon that runs speaks version {theirs} of the hand-over, and this program version {PROTOCOL}: restart the daemon instead"
    )]
    OtherProtocol {
        /// The version of the program before.
        theirs: u32,
    },
    /// Standard input is not a socket.
    #[error("--successor is for a daemon that starts its successor: run `glidefs upgrade` instead")]
    NoSocket(#[source] io::Error),
    /// The socket failed, or the program before has ended.
    #[error("the daemon before has ended before it handed over: nothing was changed")]
    Link(#[from] LinkError),
    /// The program before said something else than expected.
    #[error("the daemon before said {said} out of turn: nothing was changed")]
    OutOfTurn { said: String },
    /// The program before said nothing.
    #[error("the daemon before did not hand over in time: nothing was changed")]
    TooLate,
}

/// A daemon that is to succeed another one. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Successor(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    link: Mutex<Link>,
    sender: Mutex<Link>,
    went: AtomicBool,
    followed: Mutex<Followed>,
}

/// The program before, as far as it has introduced itself.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// The version of the program before.
    pub version: String,
    /// When the upgrade began, milliseconds since 1970-01-01 UTC.
    pub began_unix_millis: u64,
}

impl Successor {
    /// Takes the socket and the log from the program before, which speaks version `theirs`. To be called before any thread is started.
    pub fn take(theirs: u32) -> Result<Self, SuccessorError> {
        let socket = take_socket().map_err(SuccessorError::NoSocket)?;
        // The pipe at standard error was for programs that do not come as far as this.
        nix::unistd::dup2_stderr(io::stdout()).map_err(|error| SuccessorError::NoSocket(error.into()))?;
        if theirs != PROTOCOL {
            return Err(SuccessorError::OtherProtocol { theirs });
        }
        Self::new(socket).map_err(SuccessorError::NoSocket)
    }

    fn new(socket: UnixStream) -> io::Result<Self> {
        let link = Link::new(socket)?;
        let sender = link.sender()?;
        Ok(Self(Arc::new(Shared {
            link: Mutex::new(link),
            sender: Mutex::new(sender),
            went: AtomicBool::new(false),
            followed: Mutex::default(),
        })))
    }

    /// Introduces this program, which has checked all it can, and waits until the program before has prepared the cache. Returns the
    /// marks of the exports.
    pub fn follow(&self, identity: Identity) -> Result<Vec<Mark>, SuccessorError> {
        let hello = Hello { protocol: PROTOCOL, version: VERSION.into(), identity, takes_tenures: true };
        self.send(&Message::Hello(hello))?;
        let mut all = Vec::new();
        loop {
            match self.next(TURN_PATIENCE)? {
                Some(Message::Marks { marks }) => all.extend(marks),
                Some(Message::Follow { version, began_unix_millis }) => {
                    *self.0.followed.lock_whole() = Followed { version, began_unix_millis };
                    break;
                }
                other => return Err(out_of_turn(other)),
            }
        }
        let beating = self.clone();
        let spawned = std::thread::Builder::new().name("heartbeat".into()).spawn(move || beating.beat());
        spawned.map_err(LinkError::Socket)?;
        Ok(all)
    }

    /// Says that this program is ready, and waits until this program is to take over. Returns when requests began to wait, and the
    /// exports served by the program before until then.
    pub fn wait_for_go(&self) -> Result<(Instant, Vec<Tenure>), SuccessorError> {
        self.send(&Message::Ready)?;
        let mut all = Vec::new();
        loop {
            match self.next(TURN_PATIENCE)? {
                Some(Message::Tenures { tenures }) => all.extend(tenures),
                Some(Message::Go { at_nanos }) => {
                    self.0.went.store(true, Ordering::Release);
                    return Ok((super::moment(at_nanos), all));
                }
                other => return Err(out_of_turn(other)),
            }
        }
    }

    /// Says that every device is taken over, and waits until this process is the main one. Goes on without the standby, should the
    /// standby be gone: there is nobody else to serve.
    pub fn take_charge(&self) {
        let said = self.send(&Message::Serving).and_then(|()| self.next(YOURS_PATIENCE));
        match said {
            Ok(Some(Message::Yours)) => {}
            Ok(other) => {
                tracing::warn!(said = ?other, "the standby did not say that this process is the main one");
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "the standby ended before this process was the main one"
                );
            }
        }
    }

    /// Tells the program before why this one gives up.
    pub fn fail(&self, reason: &str) {
        // The program before sees the end of this process as well.
        let _ = self.send(&Message::failed(reason));
    }

    /// The upgrade, which has succeeded.
    pub fn upgrade(&self) -> Upgrade {
        let Followed { version, began_unix_millis } = self.0.followed.lock_whole().clone();
        Upgrade { began_unix_millis, from: version, to: Some(VERSION.into()), failure: None }
    }

    /// Says again and again that this program lives.
    fn beat(&self) {
        loop {
            std::thread::sleep(HEARTBEAT);
            if self.send(&Message::Alive).is_ok() {
                continue;
            }
            if self.0.went.load(Ordering::Acquire) {
                return;
            }
            tracing::error!("the daemon before has ended before it handed over: nothing was changed");
            process::exit(1);
        }
    }

    fn send(&self, message: &Message) -> Result<(), SuccessorError> {
        Ok(self.0.sender.lock_whole().send(message)?)
    }

    fn next(&self, patience: Duration) -> Result<Option<Message>, SuccessorError> {
        Ok(self.0.link.lock_whole().receive(patience)?)
    }
}

fn out_of_turn(said: Option<Message>) -> SuccessorError {
    said.map_or(SuccessorError::TooLate, |said| SuccessorError::OutOfTurn { said: format!("{said:?}") })
}

/// Takes the socket at standard input, and leaves nothing there.
pub(super) fn take_socket() -> io::Result<UnixStream> {
    let stdin = io::stdin();
    let is_socket = SFlag::from_bits_truncate(fstat(&stdin)?.st_mode) & SFlag::S_IFMT == SFlag::S_IFSOCK;
    if !is_socket {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "standard input is no socket"));
    }
    let socket = stdin.as_fd().try_clone_to_owned()?;
    nix::unistd::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handover::message::Formats;

    const SOON: Duration = Duration::from_secs(10);

    fn identity() -> Identity {
        let none = || "none".into();
        Identity {
            cache: "/c".into(),
            directory: (1, 2),
            socket: "/s".into(),
            listen: none(),
            store: none(),
            formats: Formats::default(),
        }
    }

    fn pair() -> (Successor, Link) {
        let (link, other) = Link::pair().unwrap();
        (Successor::new(other.into()).unwrap(), link)
    }

    #[test]
    fn a_successor_says_how_far_it_is_and_learns_since_when_requests_wait() {
        let (successor, mut old) = pair();
        let following = std::thread::spawn(move || {
            let marks = successor.follow(identity()).unwrap();
            assert_eq!(marks, [Mark(1, u64::MAX, 3), Mark(2, 0, 0)]);
            let (since, tenures) = successor.wait_for_go().unwrap();
            assert_eq!(tenures, [Tenure(1, 7), Tenure(2, u64::MAX)]);
            successor.take_charge();
            (since, successor.upgrade())
        });
        let Some(Message::Hello(hello)) = old.receive(SOON).unwrap() else { panic!("no hello") };
        assert_eq!((hello.protocol, hello.identity), (PROTOCOL, identity()));
        for mark in [Mark(1, u64::MAX, 3), Mark(2, 0, 0)] {
            old.send(&Message::Marks { marks: vec![mark] }).unwrap();
        }
        old.send(&Message::Follow { version: "0.0.9".into(), began_unix_millis: 5 }).unwrap();
        assert_eq!(old.receive(SOON).unwrap(), Some(Message::Ready));
        for tenure in [Tenure(1, 7), Tenure(2, u64::MAX)] {
            old.send(&Message::Tenures { tenures: vec![tenure] }).unwrap();
        }
        let before = Instant::now();
        old.send(&Message::Go { at_nanos: super::super::monotonic_nanos() }).unwrap();
        let mut beats = 0;
        loop {
            match old.receive(SOON).unwrap() {
                Some(Message::Alive) => beats += 1,
                other => break assert_eq!(other, Some(Message::Serving), "after {beats} beats"),
            }
        }
        old.send(&Message::Yours).unwrap();
        let (since, upgrade) = following.join().unwrap();
        assert!(since >= before.checked_sub(Duration::from_millis(1)).unwrap() && since <= Instant::now());
        let expected =
            Upgrade { began_unix_millis: 5, from: "0.0.9".into(), to: Some(VERSION.into()), failure: None };
        assert_eq!(upgrade, expected);
        assert_eq!(old.receive(SOON).unwrap(), Some(Message::Alive), "until the standby has gone");
    }

    #[test]
    fn a_successor_whose_daemon_says_something_else_or_goes_away_changes_nothing() {
        let (successor, old) = pair();
        old.send(&Message::Yours).unwrap();
        let refused = successor.follow(identity()).unwrap_err();
        assert!(matches!(&refused, SuccessorError::OutOfTurn { said } if said == "Yours"), "{refused}");
        let (successor, old) = pair();
        drop(old);
        let refused = successor.follow(identity()).unwrap_err();
        assert!(matches!(refused, SuccessorError::Link(LinkError::Closed)), "{refused}");
    }

    #[test]
    fn a_successor_without_a_standby_serves_all_the_same() {
        let (successor, old) = pair();
        drop(old);
        successor.take_charge();
    }
}
