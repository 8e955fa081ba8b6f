//! Listening: the TCP address and the Unix socket, and answering on both until told to stop.
//!
//! Invariants: the socket file is never connectable by others than its owner, not even for a moment; a socket on which a daemon
//! answers is never taken from it.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tokio::sync::watch;

use super::auth::{Token, require_token};
use super::{AppState, service};

/// Connections that wait to be accepted, at most.
const BACKLOG: u32 = 1024;
/// How long answers under way may take once the daemon stops.
const DRAIN_MAX: Duration = Duration::from_secs(5);

/// Why the API could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Somebody answers on the socket.
    #[error("a daemon is running already: it answers on {path}")]
    Running {
        /// The socket.
        path: PathBuf,
    },
    /// The path of the socket is taken by something else.
    #[error("{path} exists and is not a socket: move it away or change `[api] socket`")]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket could not be made.
    #[error("cannot listen on the socket {path}: check its directory, or change `[api] socket`")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The address could not be had.
    #[error("cannot listen on {address}: check that nothing else does, or change `[api] listen`")]
    Address {
        /// The address.
        address: SocketAddr,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
}

/// What the API listens on. The socket file is removed when this is dropped.
#[derive(Debug)]
pub struct Listeners {
    tcp: Option<TcpListener>,
    unix: UnixListener,
    _file: SocketFile,
}

/// Removes the socket file when dropped.
#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A file that is gone already is as good.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listeners {
    /// Listens on the Unix socket at `socket` and, where given, on the TCP address `listen`.
    pub async fn bind(listen: Option<SocketAddr>, socket: &Path) -> Result<Self, ServeError> {
        clear_path(socket).await?;
        let socket_error = |source| ServeError::Socket { path: socket.into(), source };
        if let Some(parent) = socket.parent() {
            std::fs::create_dir_all(parent).map_err(socket_error)?;
        }
        let unbound = UnixSocket::new_stream().map_err(socket_error)?;
        unbound.bind(socket).map_err(socket_error)?;
        let file = SocketFile(socket.into());
        // Nobody can connect before `listen`, so the mode is in force before the socket is of use.
        std::fs::set_permissions(socket, PermissionsExt::from_mode(0o600)).map_err(socket_error)?;
        let unix = unbound.listen(BACKLOG).map_err(socket_error)?;
        let tcp = match listen {
            Some(address) => {
                let bound = TcpListener::bind(address).await;
                Some(bound.map_err(|source| ServeError::Address { address, source })?)
            }
            None => None,
        };
        Ok(Self { tcp, unix, _file: file })
    }

    /// The TCP address, with the port that the kernel chose where it was asked to.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())
    }
}

/// Makes way for the socket: a stale one is removed, one that is in use or something else is not.
async fn clear_path(socket: &Path) -> Result<(), ServeError> {
    let socket_error = |source| ServeError::Socket { path: socket.into(), source };
    match std::fs::symlink_metadata(socket) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(socket_error(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(ServeError::NotASocket { path: socket.into() });
        }
        Ok(_) => {}
    }
    match UnixStream::connect(socket).await {
        Ok(_) => Err(ServeError::Running { path: socket.into() }),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(socket).map_err(socket_error)
        }
        Err(error) => Err(socket_error(error)),
    }
}

/// Answers on `listeners` until `stop` becomes true or its sender is gone; then answers under way are finished within a
/// time limit. Requests over TCP must carry `token`, where there is one.
pub async fn serve(
    listeners: Listeners,
    state: AppState,
    token: Option<Token>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let Listeners { tcp, unix, _file: file } = listeners;
    let plain = service(state);
    let stopped = |mut stop: watch::Receiver<bool>| async move {
        // An error means that the sender is gone, which means the same.
        let _ = stop.wait_for(|stop| *stop).await;
    };
    let over_unix = axum::serve(unix, plain.clone()).with_graceful_shutdown(stopped(stop.clone()));
    let over_tcp = {
        let guarded = match token {
            Some(token) => plain.layer(axum::middleware::from_fn_with_state(token, require_token)),
            None => plain,
        };
        let signal = stopped(stop.clone());
        async move {
            match tcp {
                Some(tcp) => axum::serve(tcp, guarded).with_graceful_shutdown(signal).await,
                None => Ok(()),
            }
        }
    };
    let both = async { tokio::try_join!(over_unix, over_tcp).map(|_| ()) };
    let drained = async {
        let _ = stop.wait_for(|stop| *stop).await;
        tokio::time::sleep(DRAIN_MAX).await;
    };
    let result = tokio::select! {
        result = both => result,
        () = drained => {
            tracing::warn!("some requests to the API were cut off at the end");
            Ok(())
        }
    };
    drop(file);
    result
}
