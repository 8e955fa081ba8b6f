//! Messages to the service manager about the main process and the watchdog.
//!
//! Owns the message that makes another process the main one. Invariant: when [`make_main_process`] has returned without an error, the
//! manager has dealt with the message, so the end of this process is not taken for the end of the service.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, UnixAddr, sendmsg};
use nix::unistd::pipe2;
use sd_notify::NotifyState;

/// How long the manager may take to deal with the messages sent so far.
const BARRIER_PATIENCE: Duration = Duration::from_secs(20);

/// How often the watchdog is fed meanwhile.
const BARRIER_TURN: Duration = Duration::from_secs(1);

/// Whether a service manager wants to be told of the main process.
pub(super) fn has_manager() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Makes the process `pid` the main one of the service. Without a service manager nothing happens.
pub(super) fn make_main_process(pid: u32, watchdog: &Watchdog) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::MainPid(pid)])?;
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(path) => {
            let socket = UnixDatagram::unbound()?;
            socket.connect(path)?;
            barrier(&socket, watchdog)
        }
        None => Ok(()),
    }
}

/// Waits until the manager behind `socket` has dealt with all messages before: the manager closes the descriptor in the message.
fn barrier(socket: &UnixDatagram, watchdog: &Watchdog) -> io::Result<()> {
    let (watched, sent) = pipe2(OFlag::O_CLOEXEC)?;
    let descriptors = [sent.as_raw_fd()];
    let text = [IoSlice::new(b"BARRIER=1")];
    let control = [ControlMessage::ScmRights(&descriptors)];
    sendmsg::<UnixAddr>(socket.as_raw_fd(), &text, &control, MsgFlags::MSG_NOSIGNAL, None)?;
    drop(sent);
    let deadline = Instant::now() + BARRIER_PATIENCE;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut watched = [PollFd::new(watched.as_fd(), PollFlags::empty())];
        let turn = left.min(BARRIER_TURN);
        match poll(&mut watched, PollTimeout::try_from(turn).unwrap_or(PollTimeout::MAX)) {
            Ok(0) if left.is_zero() => return Err(io::ErrorKind::TimedOut.into()),
            Ok(0) => watchdog.feed(),
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The service manager's watchdog, as far as this process has to feed one.
#[derive(Debug)]
pub(super) struct Watchdog {
    interval: Option<Duration>,
    fed: Cell<Option<Instant>>,
}

impl Watchdog {
    pub fn new() -> Self {
        Self { interval: sd_notify::watchdog_enabled(), fed: Cell::new(None) }
    }

    /// Says that this process lives, whenever the last time was.
    pub fn feed_now(&self) {
        self.fed.set(None);
        self.feed();
    }

    /// Says that this process lives, if the time has come.
    pub fn feed(&self) {
        let Some(interval) = self.interval else { return };
        let now = Instant::now();
        if self.fed.get().is_none_or(|fed| now.duration_since(fed) >= interval / 4) {
            self.fed.set(Some(now));
            if let Err(error) = sd_notify::notify(&[NotifyState::Watchdog]) {
                tracing::debug!(error = %error, "systemd could not be told");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{FromRawFd, OwnedFd, RawFd};

    use nix::sys::socket::{ControlMessageOwned, recvmsg};

    use super::*;

    /// Receives one message with a descriptor.
    fn receive(socket: &UnixDatagram) -> (String, OwnedFd) {
        let mut bytes = [0; 64];
        let mut buffers = [io::IoSliceMut::new(&mut bytes)];
        let mut space = nix::cmsg_space!([RawFd; 1]);
        let received =
            recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut buffers, Some(&mut space), MsgFlags::empty())
                .unwrap();
        let mut descriptors = received.cmsgs().unwrap().filter_map(|message| match message {
            ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
            _ => None,
        });
        let descriptor = descriptors.next().unwrap();
        let length = received.bytes;
        // SAFETY: the kernel has just made the descriptor for this process, and nobody else knows of it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        (String::from_utf8(bytes[..length].to_vec()).unwrap(), descriptor)
    }

    #[test]
    fn the_barrier_ends_when_the_manager_closes_the_descriptor() {
        let (own, manager) = UnixDatagram::pair().unwrap();
        let managing = std::thread::spawn(move || {
            let (text, descriptor) = receive(&manager);
            std::thread::sleep(Duration::from_millis(20));
            let closed = Instant::now();
            drop(descriptor);
            (text, closed)
        });
        barrier(&own, &Watchdog::new()).unwrap();
        let returned = Instant::now();
        let (text, closed) = managing.join().unwrap();
        assert_eq!(text, "BARRIER=1");
        assert!(returned >= closed, "the barrier waited for nothing");
    }
}
