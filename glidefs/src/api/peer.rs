//! The user at the other end of the Unix socket, as the kernel noted it when the peer connected.
//!
//! Does not own who may connect: the mode of the socket's file says that (`serve`).

use tokio::net::UnixStream;

/// The user behind a connection over the Unix socket.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerUser {
    uid: u32,
}

impl PeerUser {
    /// The peer of `stream`; `None` when the kernel does not tell.
    pub fn of(stream: &UnixStream) -> Option<Self> {
        stream.peer_cred().ok().map(|credentials| Self { uid: credentials.uid() })
    }

    /// Whether the peer is root or the user of the daemon.
    pub fn is_the_daemons_or_root(self) -> bool {
        self.uid == 0 || self.uid == nix::unistd::geteuid().as_raw()
    }
}
