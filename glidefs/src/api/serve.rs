//! Listening on the TCP address and the Unix socket, and answering on both until told to stop.
//!
//! Owns listeners. Does not own connections (`connection`). Invariants: only the intended users can ever connect to the socket, by the mode
//! of its file, which is set before the first connection; a socket on which a daemon answers is never taken from that daemon; what cannot
//! be had is a trouble, tried again for ever, and ends nothing; no error of accepting ends the service.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nix::unistd::Group;
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tokio::sync::watch;

use super::connection::{Door, Patience, Stream};
use super::guard;
use super::routes::service;
use super::state::AppState;
use super::token::TokenFile;
use crate::observe::chain;
use crate::observe::repeat::Repeat;
use crate::observe::troubles::{Part, Troubles};

/// Most connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// How long answers under way may take after the daemon was told to stop.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// Pause after accepting failed. The usual cause is a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pause before an address, a socket or a group that could not be had is tried again.
const TRY_PAUSE: Duration = Duration::from_secs(1);
/// How long the database of groups may take before that is a trouble.
const GROUP_PATIENCE: Duration = Duration::from_secs(5);

/// Who may use the API, and how many connections there may be.
#[derive(Debug)]
pub struct Access {
    /// The token that opens the whole API over TCP.
    pub token: Option<TokenFile>,
    /// Names of this host besides the addresses.
    pub hosts: Vec<String>,
    /// Most connections over TCP, and most over the socket.
    pub connections_max: usize,
}

impl Default for Access {
    fn default() -> Self {
        Self { token: None, hosts: Vec::new(), connections_max: 512 }
    }
}

/// Why there is no listener, or not for everybody who should have it.
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
    /// The group does not exist.
    #[error("there is no group {name:?}: make it (`groupadd --system {name}`) or change `[api] group`")]
    NoGroup {
        /// The name of the group.
        name: String,
    },
    /// The socket could not be given to the group.
    #[error(
        "cannot give the socket to the group {name:?} of `[api] group`: run the daemon with CAP_CHOWN or as a member of the group"
    )]
    Group {
        /// The name of the group.
        name: String,
        /// The reason that the kernel or the database of groups gave.
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

/// A Unix socket with its file, which dropping removes.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    fn drop(&mut self) {
        // The file may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Socket {
    /// Listens on a socket at `path`, open to the user of this process only.
    pub async fn bind(path: &Path) -> Result<Self, ServeError> {
        clear_path(path).await?;
        let error = |source| ServeError::Socket { path: path.into(), source };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty() && !parent.exists());
        if let Some(parent) = parent {
            std::fs::create_dir_all(parent).map_err(error)?;
            // The daemon's umask lets only its own user into a directory that was made; the socket has a mode of its own.
            std::fs::set_permissions(parent, PermissionsExt::from_mode(0o755)).map_err(error)?;
        }
        let unbound = UnixSocket::new_stream().map_err(error)?;
        unbound.bind(path).map_err(error)?;
        // Nobody can connect before `listen`, so the mode is in force before the first connection.
        let listener = std::fs::set_permissions(path, PermissionsExt::from_mode(0o600))
            .and_then(|()| unbound.listen(BACKLOG));
        match listener {
            Ok(listener) => Ok(Self { listener, path: path.into() }),
            Err(source) => {
                let _ = std::fs::remove_file(path);
                Err(error(source))
            }
        }
    }

    /// The next connection.
    pub async fn accept(&self) -> io::Result<UnixStream> {
        Ok(self.listener.accept().await?.0)
    }
}

/// The group `name`. The database of groups may take any time.
pub(crate) fn group(name: &str) -> Result<Group, ServeError> {
    let found = Group::from_name(name);
    let found = found.map_err(|source| ServeError::Group { name: name.into(), source: source.into() })?;
    found.ok_or_else(|| ServeError::NoGroup { name: name.into() })
}

/// Opens the socket at `path` to the members of the group `name`.
fn give(path: &Path, name: &str) -> Result<(), ServeError> {
    let error = |source| ServeError::Group { name: name.into(), source };
    std::os::unix::fs::lchown(path, None, Some(group(name)?.gid.as_raw())).map_err(error)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o660)).map_err(error)
}

/// As [`give`], tried until it succeeds, on a thread that may wait for the database of groups.
async fn give_at_last(path: &Path, name: &str, troubles: &Troubles) {
    loop {
        let (to_give, to) = (path.to_owned(), name.to_owned());
        let mut giving = tokio::task::spawn_blocking(move || give(&to_give, &to));
        let given = match tokio::time::timeout(GROUP_PATIENCE, &mut giving).await {
            Ok(given) => given,
            Err(_) => {
                troubles.set(Part::Group, Some("the database of groups does not answer".into()));
                giving.await
            }
        };
        // The thread does not panic; the runtime may end before it.
        let failed = |error| ServeError::Group { name: name.into(), source: io::Error::other(error) };
        if had(Part::Group, given.unwrap_or_else(|error| Err(failed(error))), troubles).is_some() {
            return;
        }
        tokio::time::sleep(TRY_PAUSE).await;
    }
}

/// The listeners of the API.
#[derive(Debug)]
pub struct Listeners {
    listen: Option<SocketAddr>,
    pub(super) tcp: Option<TcpListener>,
    path: PathBuf,
    unix: Option<Socket>,
    /// The name of the group that the socket is to be given to.
    group: Option<String>,
}

impl Listeners {
    /// Listens on the Unix socket at `socket`, and on the TCP address `listen` if given. What cannot be had now, [`serve`] tries again;
    /// it also opens the socket to the members of `group`. Waits for nothing.
    pub async fn open(
        listen: Option<SocketAddr>,
        socket: &Path,
        group: Option<&str>,
        troubles: &Troubles,
    ) -> Self {
        let unix = had(Part::Socket, Socket::bind(socket).await, troubles);
        let tcp = match listen {
            Some(address) => had(Part::Tcp, bind_tcp(address).await, troubles),
            None => None,
        };
        Self { listen, tcp, path: socket.into(), unix, group: group.map(Into::into) }
    }
}

async fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).await.map_err(|source| ServeError::Address { address, source })
}

/// What was tried for `part`, if it can be had; otherwise that is a trouble.
fn had<T>(part: Part, tried: Result<T, ServeError>, troubles: &Troubles) -> Option<T> {
    troubles.set(part, tried.as_ref().err().map(|error| chain(error)));
    tried.ok()
}

/// What `part` needs, which the tries after `first` may have later.
async fn at_last<T, F: Future<Output = Result<T, ServeError>>>(
    part: Part,
    first: Option<T>,
    attempt: impl Fn() -> F,
    troubles: &Troubles,
) -> T {
    let mut next = first;
    loop {
        match next {
            Some(had) => return had,
            None => tokio::time::sleep(TRY_PAUSE).await,
        }
        next = had(part, attempt().await, troubles);
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
pub async fn serve(listeners: Listeners, state: AppState, access: Access, stop: watch::Receiver<bool>) {
    serve_with(listeners, state, access, Patience::default(), stop).await;
}

/// As [`serve`], with another `patience` for clients.
pub(super) async fn serve_with(
    listeners: Listeners,
    state: AppState,
    access: Access,
    patience: Patience,
    stop: watch::Receiver<bool>,
) {
    let Listeners { listen, tcp, path, unix, group } = listeners;
    let Access { token, hosts, connections_max } = access;
    let stats = Arc::clone(&state.stats);
    let troubles = &*stats.troubles;
    let routes = service(state, connections_max);
    let over_tcp = async {
        let Some(address) = listen else { return };
        let opening = at_last(Part::Tcp, tcp, || bind_tcp(address), troubles);
        let Some(tcp) = unless_stopped(&stop, opening).await else { return };
        let ip = tcp.local_addr().unwrap_or(address).ip();
        let rules = Arc::new(guard::TcpRules::new(ip, &hosts, token));
        let layer = axum::middleware::from_fn_with_state(Arc::clone(&rules), guard::tcp);
        let routes = routes.clone().layer(layer);
        let door = Door::new(routes, connections_max, patience, Arc::clone(&stats.tcp));
        let accept = async move || {
            let (stream, _) = tcp.accept().await?;
            // Without TCP_NODELAY an answer may be sent later, nothing worse.
            let _ = stream.set_nodelay(true);
            Ok(stream)
        };
        tokio::join!(unless_stopped(&stop, rules.read_token()), admit(accept, stop.clone(), &door));
    };
    let over_unix = async {
        let opening = at_last(Part::Socket, unix, || Socket::bind(&path), troubles);
        let Some(unix) = unless_stopped(&stop, opening).await else { return };
        let give = async {
            if let Some(name) = &group {
                give_at_last(&path, name, troubles).await;
            }
        };
        let door = Door::new(routes.clone(), connections_max, patience, Arc::clone(&stats.socket));
        tokio::join!(
            unless_stopped(&stop, give),
            admit(async move || unix.accept().await, stop.clone(), &door)
        );
    };
    tokio::join!(over_tcp, over_unix);
}

/// What `work` comes to, unless the daemon stops before.
async fn unless_stopped<T>(stop: &watch::Receiver<bool>, work: impl Future<Output = T>) -> Option<T> {
    let mut stop = stop.clone();
    tokio::select! {
        done = work => Some(done),
        // An error means: the sender was dropped, and the daemon stops as well.
        _ = stop.wait_for(|stop| *stop) => None,
    }
}

/// Lets the connections of `accept`, which owns the listener, through `door` until told to stop, and then those finish that are under way.
async fn admit<S: Stream>(
    accept: impl AsyncFn() -> io::Result<S>,
    stop: watch::Receiver<bool>,
    door: &Arc<Door>,
) {
    let repeat = Repeat::default();
    let accepting = async {
        loop {
            match accept().await {
                Ok(stream) => door.enter(stream, stop.clone()).await,
                Err(error) if is_of_the_client(&error) => {}
                Err(error) => {
                    door.stats.accept_errors.fetch_add(1, Ordering::Relaxed);
                    if let Some(suppressed) = repeat.pass() {
                        tracing::warn!(error = %error, suppressed, "the API cannot accept connections");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    unless_stopped(&stop, accepting).await;
    drop(accept);
    if tokio::time::timeout(DRAIN_MAX, door.empty()).await.is_err() {
        tracing::warn!("some requests to the API were cut off at the end");
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
        async fn next(&self) -> io::Result<DuplexStream> {
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
        let (answer, ()) = tokio::join!(asking, admit(async || listener.next().await, stop, &door));
        assert!(answer.ends_with("here"), "{answer}");
        assert_eq!(door.stats.accept_errors.load(Ordering::Relaxed), 5);
        // The paused clock moves only while a task waits.
        assert!(began.elapsed() >= ACCEPT_PAUSE * 5);
    }
}
