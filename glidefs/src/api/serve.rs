//! Listening on the TCP address and the Unix socket, and answering on both until told to stop.
//!
//! Owns listeners. Does not own connections (`connection`). Invariants: only the intended users can ever connect to the socket, by the mode
//! of its file, which is set before the first connection; a socket on which a daemon answers is never taken from that daemon; no error of
//! accepting ends the service.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tokio::sync::watch;

use super::connection::{Door, Patience, Stream};
use super::guard;
use super::routes::service;
use super::state::AppState;
use super::token::TokenFile;
use crate::observe::repeat::Repeat;

/// Most connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// How long answers under way may take after the daemon was told to stop.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Pause after accepting failed. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Who may use the API, and how many connections there may be.
#[derive(Debug)]
pub struct Access {
    /// The token that opens the whole API over TCP.
    pub token: Option<TokenFile>,
    /// Names of this host besides the addresses.
    pub hosts: Vec<String>,
    /// The group whose members may use the socket.
    pub group: Option<u32>,
    /// Most connections over TCP, and most over the socket.
    pub connections_max: usize,
}

impl Default for Access {
    fn default() -> Self {
        Self { token: None, hosts: Vec::new(), group: None, connections_max: 512 }
    }
}

/// Why the API could not be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another daemon answers on the socket.
    #[error("a daemon or driver is running already: it answers on {path}")]
    Running {
        /// Path of the socket in the configuration.
        path: PathBuf,
    },
    /// A file that is not a socket has the path of the socket.
    #[error(
        "{path} exists and is not a socket: move it away, or name another path (`[api] socket`, --endpoint)"
    )]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket could not be created.
    #[error(
        "cannot listen on the socket {path}: check its directory, or name another path (`[api] socket`, --endpoint)"
    )]
    Socket {
        /// Path of the socket in the configuration.
        path: PathBuf,
        /// The reason that the kernel gave.
        #[source]
        source: io::Error,
    },
    /// The socket could not be given to the group.
    #[error(
        "cannot give the socket {path} to the group {group} of `[api] group`: run the daemon with CAP_CHOWN or as a member of \
         the group"
    )]
    Group {
        /// Path of the socket in the configuration.
        path: PathBuf,
        /// The group.
        group: u32,
        /// The reason that the kernel gave.
        #[source]
        source: io::Error,
    },
    /// The TCP address could not be bound.
    #[error("cannot listen on {address}: check that nothing else does, or change `[api] listen`")]
    Address {
        /// The address.
        address: SocketAddr,
        /// The reason that the kernel gave.
        #[source]
        source: io::Error,
    },
}

/// The listeners of the API. Dropping removes the socket file.
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
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Listeners {
    /// Listens on the Unix socket at `socket`, open to the members of `group`, and on the TCP address `listen` if given.
    pub async fn bind(
        listen: Option<SocketAddr>,
        socket: &Path,
        group: Option<u32>,
    ) -> Result<Self, ServeError> {
        clear_path(socket).await?;
        let socket_error = |source| ServeError::Socket { path: socket.into(), source };
        let parent = socket.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists());
        if let Some(parent) = parent {
            std::fs::create_dir_all(parent).map_err(socket_error)?;
        }
        let unbound = UnixSocket::new_stream().map_err(socket_error)?;
        unbound.bind(socket).map_err(socket_error)?;
        let file = SocketFile(socket.into());
        // Nobody can connect before `listen`, so the mode is in force before the first connection.
        std::fs::set_permissions(socket, PermissionsExt::from_mode(0o600)).map_err(socket_error)?;
        if let Some(group) = group {
            let error = |source| ServeError::Group { path: socket.into(), group, source };
            std::os::unix::fs::chown(socket, None, Some(group)).map_err(error)?;
            std::fs::set_permissions(socket, PermissionsExt::from_mode(0o660)).map_err(socket_error)?;
            // The daemon's umask lets only its own user into a directory that was made.
            if let Some(parent) = parent {
                std::fs::set_permissions(parent, PermissionsExt::from_mode(0o755)).map_err(socket_error)?;
            }
        }
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

    /// A connection over the Unix socket.
    pub async fn accept_unix(&self) -> io::Result<UnixStream> {
        Ok(self.unix.accept().await?.0)
    }

    /// The TCP address, with the port chosen by the kernel if `listen` had port 0.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().and_then(|tcp| tcp.local_addr().ok())
    }
}

/// Makes way for the socket: removes a stale socket, and refuses a socket in use or another kind of file.
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

/// Answers on `listeners` until `stop` becomes true or the sender is dropped. Answers under way are then finished within a
/// time limit.
pub async fn serve(
    listeners: Listeners,
    state: AppState,
    access: Access,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    serve_with(listeners, state, access, Patience::default(), stop).await
}

/// As [`serve`], with another `patience` for clients.
pub(super) async fn serve_with(
    listeners: Listeners,
    state: AppState,
    access: Access,
    patience: Patience,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let address = listeners.tcp_address();
    let Listeners { tcp, unix, _file: file } = listeners;
    let Access { token, hosts, connections_max, .. } = access;
    let stats = Arc::clone(&state.stats);
    let routes = service(state, connections_max);
    let door = |routes, max, stats: &Arc<_>| Door::new(routes, max, patience, Arc::clone(stats));
    let over_tcp = address.map(|address| {
        let rules = guard::TcpRules::new(address, &hosts, token);
        let routes = routes.clone().layer(axum::middleware::from_fn_with_state(rules, guard::tcp));
        door(routes, connections_max, &stats.tcp)
    });
    let over_unix = door(routes, connections_max, &stats.socket);
    let accepting_tcp = async {
        if let (Some(tcp), Some(door)) = (&tcp, &over_tcp) {
            let next = async || {
                let (stream, _) = tcp.accept().await?;
                // Without TCP_NODELAY an answer may be sent later, nothing worse.
                let _ = stream.set_nodelay(true);
                Ok(stream)
            };
            accept(next, stop.clone(), door).await;
        }
    };
    let next = async || Ok(unix.accept().await?.0);
    tokio::join!(accept(next, stop.clone(), &over_unix), accepting_tcp);
    drop((tcp, unix));
    let doors = [&over_unix].into_iter().chain(&over_tcp);
    let drained = join_all(doors.map(|door| door.empty()));
    if tokio::time::timeout(DRAIN_MAX, drained).await.is_err() {
        tracing::warn!("some requests to the API were cut off at the end");
    }
    drop(file);
    Ok(())
}

/// Lets the `next` connections through `door` until told to stop.
async fn accept<S: Stream, F: Future<Output = io::Result<S>>>(
    next: impl Fn() -> F,
    mut stop: watch::Receiver<bool>,
    door: &Arc<Door>,
) {
    let (repeat, of_connections) = (Repeat::default(), stop.clone());
    let accepting = async {
        loop {
            match next().await {
                Ok(stream) => door.enter(stream, of_connections.clone()).await,
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    door.stats().accept_errors.fetch_add(1, Ordering::Relaxed);
                    if let Some(suppressed) = repeat.pass() {
                        tracing::warn!(error = %error, suppressed, "the API cannot accept connections");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        // An error means: the sender was dropped, and the daemon stops as well.
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

/// Whether accepting failed because the client has closed the connection already.
fn is_of_the_client(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    use super::*;

    /// Fails as often as told for lack of descriptors, then accepts once.
    struct Scarce(Mutex<(u32, Option<DuplexStream>)>);

    impl Scarce {
        async fn accept(&self) -> io::Result<DuplexStream> {
            let next = {
                let mut left = self.0.lock().unwrap();
                if left.0 > 0 {
                    left.0 -= 1;
                    return Err(io::Error::from_raw_os_error(libc::EMFILE));
                }
                left.1.take()
            };
            match next {
                Some(stream) => Ok(stream),
                None => std::future::pending().await,
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_door_outlives_a_lack_of_descriptors_and_waits_between_its_tries() {
        let (mut client, server) = tokio::io::duplex(4096);
        let (stopping, stop) = watch::channel(false);
        let routes = axum::Router::new().route("/", axum::routing::get(async || "here"));
        let door = Door::new(routes, 1, Patience::default(), Arc::default());
        let listener = Scarce(Mutex::new((5, Some(server))));
        let began = tokio::time::Instant::now();
        let asking = async {
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).await.unwrap();
            stopping.send(true).unwrap();
            answer
        };
        let (answer, ()) = tokio::join!(asking, accept(|| listener.accept(), stop, &door));
        assert!(answer.ends_with("here"), "{answer}");
        assert_eq!(door.stats().accept_errors.load(Ordering::Relaxed), 5);
        // The paused clock moves only while a task waits.
        assert!(began.elapsed() >= ACCEPT_PAUSE * 5);
    }
}
