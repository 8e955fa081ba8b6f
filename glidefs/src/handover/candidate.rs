//! The old program until `go`: starting a successor, and waiting until the successor is ready.
//!
//! Owns the order of messages to the successor, and the step into the standby. Does not own the successor's process (`process`). Invariant: a
//! successor that does not get ready is ended, and the old program has lost nothing but time.

mod error;
mod process;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;

pub use self::error::{NotReady, OfferError};
use self::process::{END_PATIENCE, END_PAUSE, Tail, end, end_of};
use super::link::{Link, LinkError};
use super::message::{Hello, Identity, MARKS_MAX, Mark, Message, PROTOCOL, TENURES_MAX, Tenure, UNSET};
use super::notify::Watchdog;
use super::program::{Launch, check_named, check_own};
use super::standby::{Handed, STANDBY_VARIABLE};
use super::{VERSION, monotonic_nanos, unix_millis};
use crate::observe::chain;

/// Longest silence of a successor: a successor gives a sign of life once a second, from `follow` on.
const SILENCE_MAX: Duration = Duration::from_mins(1);
/// Longest time until a successor is ready.
const READY_PATIENCE: Duration = Duration::from_mins(30);
/// How long a program refused by the kernel just now is tried again.
const EXEC_PATIENCE: Duration = Duration::from_secs(10);

/// A successor ready to take over.
#[derive(Debug)]
pub struct Candidate {
    child: Child,
    link: Link,
    launch: Launch,
    version: String,
    takes_tenures: bool,
    began_unix_millis: u64,
    /// Why the successor cannot take over any more, once seen: the process may be gone then.
    failure: Option<String>,
}

impl Candidate {
    /// Starts the program at `named`, which a client has named, or the file from which this program was started, as the successor of a
    /// daemon with `identity`, and waits until the successor is ready. Calls `prepare` once the successor is known to be able to take
    /// over. May take minutes.
    pub fn prepare(
        launch: &Launch,
        named: Option<&Path>,
        identity: &Identity,
        prepare: impl FnOnce() -> Vec<Mark>,
    ) -> Result<Self, NotReady> {
        if launch.is_first {
            return Err(OfferError::FirstProcess.into());
        }
        let path = match named {
            Some(path) => check_named(path, nix::unistd::geteuid().as_raw()).map_err(OfferError::from)?,
            None => {
                check_own(&launch.program).map_err(OfferError::from)?;
                launch.program.clone()
            }
        };
        let starting = |source| OfferError::Start { path: path.clone(), source };
        let mut started = Started::new(&path, launch).map_err(starting)?;
        match started.get_ready(&path, identity, prepare) {
            Ok((version, takes_tenures)) => Ok(Self {
                child: started.child,
                link: started.link,
                launch: launch.clone(),
                version,
                takes_tenures,
                began_unix_millis: started.began_unix_millis,
                failure: None,
            }),
            Err(error) => {
                end(&mut started.child);
                Err(NotReady { version: started.version, error })
            }
        }
    }

    /// The process of the successor.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The version of the successor.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether the successor serves exports on the word of this program, without the store's.
    pub fn takes_tenures(&self) -> bool {
        self.takes_tenures
    }

    /// When the upgrade began, milliseconds since 1970-01-01 UTC.
    pub fn began_unix_millis(&self) -> u64 {
        self.began_unix_millis
    }

    /// Whether the successor has ended, has given up or has said nonsense: the successor cannot take over then.
    pub fn has_failed(&mut self) -> Option<String> {
        if self.failure.is_none() {
            self.failure = self.look();
        }
        self.failure.clone()
    }

    fn look(&mut self) -> Option<String> {
        loop {
            match self.link.receive(Duration::ZERO) {
                Ok(Some(Message::Alive)) => {}
                Ok(None) => return None,
                Ok(Some(Message::Failed { reason })) => return Some(reason),
                Ok(Some(other)) => return Some(format!("the successor said {other:?} out of turn")),
                Err(error) => {
                    let status = end_of(&mut self.child, END_PATIENCE);
                    let ended =
                        status.map(|status| format!("the successor ended before its turn ({status})"));
                    return Some(ended.unwrap_or_else(|| chain(&error)));
                }
            }
        }
    }

    /// Ends a successor that is not to take over.
    pub fn end(mut self) {
        end(&mut self.child);
    }

    /// Tells the successor to take over, and becomes the standby: this program ends, and its file starts anew in the same process.
    /// `tenures` are the exports served by this daemon: the successor goes on with these exports, and so does the standby, which serves
    /// again with `config`, the configuration of this daemon, should the successor fail. Also for a successor that has failed by now: the
    /// standby finds the failure, and serves again.
    ///
    /// Returns only when the kernel refuses. This process has to end then: the successor, which has been told to, takes over.
    pub fn hand_over(mut self, config: &str, tenures: Vec<Tenure>) -> io::Error {
        // The kernel may need seconds to tear many devices down, and nothing is fed meanwhile.
        Watchdog::new().feed_now();
        self.tell(&tenures);
        let mut handed = Handed {
            pid: self.child.id(),
            to: self.version,
            began_unix_millis: self.began_unix_millis,
            failure: self.failure,
            config: Handed::config_that_fits(config),
            tenures,
        };
        let deadline = Instant::now() + EXEC_PATIENCE;
        loop {
            let error = become_standby(&self.launch, &self.link, &handed);
            if Instant::now() >= deadline {
                return error;
            }
            // The configuration may not fit; the file is read again then.
            handed.config = None;
            std::thread::sleep(END_PAUSE);
        }
    }

    /// Tells the successor to take over. One that does not listen has failed: it would wait for its turn for ever.
    fn tell(&mut self, tenures: &[Tenure]) {
        if let Err(error) = self.tell_to_go(tenures) {
            let error = chain(&error);
            tracing::error!(error, "the successor has failed before its turn");
            self.failure.get_or_insert(format!("the successor could not be told to take over: {error}"));
        }
    }

    fn tell_to_go(&self, tenures: &[Tenure]) -> Result<(), LinkError> {
        for tenures in tenures.chunks(TENURES_MAX).take_while(|_| self.takes_tenures) {
            self.link.send(&Message::Tenures { tenures: tenures.to_vec() })?;
        }
        self.link.send(&Message::Go { at_nanos: monotonic_nanos() })
    }
}

/// Returns only when the kernel refuses.
fn become_standby(launch: &Launch, link: &Link, handed: &Handed) -> io::Error {
    let (socket, handed) =
        match link.as_fd().try_clone_to_owned().and_then(|socket| Ok((socket, handed.pass_on()?))) {
            Ok(passed) => passed,
            Err(error) => return error,
        };
    // The file of this program, also when another one was put in its place.
    Command::new("/proc/self/exe")
        .arg0(&launch.name)
        .args(&launch.arguments)
        .arg("--standby")
        .env(STANDBY_VARIABLE, handed.as_raw_fd().to_string())
        .stdin(socket)
        .exec()
}

/// A successor not ready yet, perhaps.
struct Started {
    child: Child,
    link: Link,
    tail: Tail,
    began_unix_millis: u64,
    /// From the successor's introduction.
    version: Option<String>,
}

impl Started {
    fn new(path: &Path, launch: &Launch) -> io::Result<Self> {
        let (link, other) = Link::pair()?;
        // A child inherits which signals are blocked, and has to take those to stop.
        let mask = SigSet::thread_get_mask()?;
        super::standby::stops().thread_unblock()?;
        let spawned = Command::new(path)
            .args(&launch.arguments)
            .arg(format!("--successor={PROTOCOL}"))
            // The watchdog is fed by whichever process is the main one.
            .env_remove("WATCHDOG_PID")
            .env_remove(STANDBY_VARIABLE)
            .stdin(other)
            // The successor's log goes where this program's goes. Standard error is caught, for programs that end before they have
            // read a word.
            .stdout(io::stderr().as_fd().try_clone_to_owned()?)
            .stderr(Stdio::piped())
            .spawn();
        mask.thread_set_mask()?;
        let mut child = spawned?;
        let tail = Tail::of(child.stderr.take());
        Ok(Self { child, link, tail, began_unix_millis: unix_millis(), version: None })
    }

    /// Waits until the successor is ready. Returns the successor's version, and whether the successor takes tenures.
    fn get_ready(
        &mut self,
        path: &Path,
        identity: &Identity,
        prepare: impl FnOnce() -> Vec<Mark>,
    ) -> Result<(String, bool), OfferError> {
        let hello = match self.next(path, Instant::now() + SILENCE_MAX)? {
            Message::Hello(hello) => hello,
            other => return Err(Self::refused(path, other)),
        };
        let Hello { version, identity: theirs, takes_tenures, .. } = hello;
        self.version = Some(version.clone());
        if theirs.directory != identity.directory {
            let (theirs, own) = (theirs.cache, identity.cache.clone());
            return Err(OfferError::Differs { what: "[cache] dir", theirs, own });
        }
        if theirs.socket != identity.socket {
            let (theirs, own) = (theirs.socket, identity.socket.clone());
            return Err(OfferError::Differs { what: "[api] socket", theirs, own });
        }
        if identity.store != UNSET && theirs.store != identity.store {
            let (theirs, own) = (theirs.store, identity.store.clone());
            return Err(OfferError::Differs { what: "[store] url", theirs, own });
        }
        if let Some((what, theirs, own)) = theirs.formats.beyond(&identity.formats) {
            return Err(OfferError::TooNew { what, theirs, own });
        }
        check_address(&theirs.listen, &identity.listen)?;
        for marks in prepare().chunks(MARKS_MAX) {
            let marks = Message::Marks { marks: marks.to_vec() };
            self.link.send(&marks).map_err(|error| self.lost(path, error))?;
        }
        let follow = Message::Follow { version: VERSION.into(), began_unix_millis: self.began_unix_millis };
        self.link.send(&follow).map_err(|error| self.lost(path, error))?;
        let deadline = Instant::now() + READY_PATIENCE;
        loop {
            match self.next(path, deadline)? {
                Message::Alive => {}
                Message::Ready => return Ok((version, takes_tenures)),
                other => return Err(Self::refused(path, other)),
            }
        }
    }

    /// The next message, which has to come before `deadline` and after no long silence.
    fn next(&mut self, path: &Path, deadline: Instant) -> Result<Message, OfferError> {
        let left = deadline.saturating_duration_since(Instant::now());
        match self.link.receive(left.min(SILENCE_MAX)) {
            Ok(Some(message)) => Ok(message),
            Ok(None) => Err(OfferError::Silent { path: path.into(), seconds: SILENCE_MAX.as_secs() }),
            Err(error) => Err(self.lost(path, error)),
        }
    }

    /// The error for a message out of turn.
    fn refused(path: &Path, message: Message) -> OfferError {
        let reason = match message {
            Message::Failed { reason } => reason,
            other => format!("{other:?} came out of turn"),
        };
        OfferError::Refused { path: path.into(), reason }
    }

    /// The error for a socket that does not work any more. What the successor said before its end counts.
    fn lost(&mut self, path: &Path, source: LinkError) -> OfferError {
        while let Ok(Some(message)) = self.link.receive(Duration::ZERO) {
            if matches!(message, Message::Failed { .. }) {
                return Self::refused(path, message);
            }
        }
        match end_of(&mut self.child, END_PATIENCE) {
            Some(status) if matches!(source, LinkError::Closed) => {
                OfferError::Ended { path: path.into(), status: status.to_string(), said: self.tail.said() }
            }
            _ => OfferError::Link { path: path.into(), source },
        }
    }
}

/// Checks that a successor gets the address `theirs`, where a daemon listens at `own`.
fn check_address(theirs: &str, own: &str) -> Result<(), OfferError> {
    let address = |text: &str| text.parse::<SocketAddr>().ok();
    let Some(wanted) = address(theirs) else { return Ok(()) };
    // The port of this daemon is free when this daemon has ended.
    if address(own).is_some_and(|own| own.port() == wanted.port()) {
        return Ok(());
    }
    match TcpListener::bind(wanted) {
        Ok(_) => Ok(()),
        Err(source) => Err(OfferError::Address { address: wanted, source }),
    }
}

#[cfg(test)]
mod tests;
