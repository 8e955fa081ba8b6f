//! The identity of the peer of the Unix socket.
//!
//! Owns the rule for peers: root, the user of the daemon, and members of the configured group may use the socket. Invariant:
//! the rule judges the identity that the kernel noted when the peer connected. A process id used again, or a later change of
//! the user, makes no difference.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use tokio::net::UnixStream;

/// Most groups of a process: the kernel's NGROUPS_MAX.
const GROUPS_MAX: usize = 65_536;
/// Enough groups for most processes.
const GROUPS_USUAL: usize = 64;

/// User and groups of a peer.
#[derive(Clone, Debug)]
struct Peer {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Peer {
    /// Whether the peer may use the API of a daemon that runs as the user `own` and is configured with `group`.
    fn may_use(&self, own: u32, group: Option<u32>) -> bool {
        let is_member = |group| self.gid == group || self.groups.contains(&group);
        self.uid == 0 || self.uid == own || group.is_some_and(is_member)
    }
}

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

/// Whether the peer of `stream` may use the API. Members of `group` may.
pub(super) fn may_use(stream: &UnixStream, group: Option<u32>) -> io::Result<bool> {
    let credentials = stream.peer_cred()?;
    let groups = if group.is_some() { groups(stream)? } else { Vec::new() };
    let peer = Peer { uid: credentials.uid(), gid: credentials.gid(), groups };
    Ok(peer.may_use(nix::unistd::geteuid().as_raw(), group))
}

/// The supplementary groups of the peer at the time of the connection.
fn groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; GROUPS_USUAL];
    loop {
        // The conversion succeeds: the size is at most GROUPS_MAX times four.
        let mut bytes = libc::socklen_t::try_from(size_of_val(groups.as_slice())).unwrap_or(0);
        // SAFETY: `groups` has room for `bytes` bytes, and both variables live until the call returns.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        let count = bytes as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(count);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // With ERANGE the kernel has set `bytes` to the space needed.
        if error.raw_os_error() != Some(libc::ERANGE) || count <= groups.len() || count > GROUPS_MAX {
            return Err(error);
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_own_user_and_members_of_the_group_may_use_the_socket_and_nobody_else() {
        let peer = |uid, gid, groups: &[u32]| Peer { uid, gid, groups: groups.to_vec() };
        assert!(peer(0, 5, &[]).may_use(7, None));
        assert!(peer(7, 5, &[]).may_use(7, None));
        assert!(!peer(8, 5, &[5, 6]).may_use(7, None));
        assert!(peer(8, 5, &[]).may_use(7, Some(5)));
        assert!(peer(8, 4, &[1, 5, 9]).may_use(7, Some(5)));
        assert!(!peer(8, 7, &[1, 9, 7]).may_use(7, Some(5)), "a group is not a user");
    }

    #[tokio::test]
    async fn the_kernel_tells_the_groups_of_the_peer() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own: Vec<u32> = nix::unistd::getgroups().unwrap().iter().map(|group| group.as_raw()).collect();
        assert_eq!(groups(&one).unwrap(), own);
        assert!(may_use(&one, None).unwrap(), "the peer is this process");
    }
}
