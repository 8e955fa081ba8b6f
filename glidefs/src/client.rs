//! The client of the daemon: one request a connection, over the Unix socket or TCP.
//!
//! Owns how requests are sent and refusals are read. Does not own where the daemon is (`cli::args`), nor the requests themselves
//! (`api::wire`). Invariant: a request is sent once.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::rt::{Read, Write};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use nix::unistd::geteuid;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, UnixStream};

use crate::api::wire::Problem;
use crate::api::{Token, TokenError};
use crate::router::ExportName;

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Largest answer, bytes: 20,000 exports have a few megabytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Why a request to the daemon failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(
        "the glidefs daemon is not running (nothing answers on {address}): \
         start it with `systemctl start glidefs` or `glidefs run --config FILE`"
    )]
    NotRunning {
        /// The socket or URL that was tried.
        address: String,
        #[source]
        source: io::Error,
    },
    /// The user lacks permission to open the socket.
    #[error(
        "no permission to use {address}: run as root or as a member of the group of `[api] group`, or use --api and --token-file"
    )]
    NoPermission {
        address: String,
        #[source]
        source: io::Error,
    },
    /// The text of `--api` is no HTTP address.
    #[error("{url:?} is not the address of an API: use http://HOST:PORT")]
    Url { url: String },
    /// The token file was refused.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// Another user's program may have taken the daemon's port: it must not have the token, and does not say which device to write to.
    #[error(
        "the program that listens on {address} is neither root's nor yours, but of user {uid}: nothing was sent. Leave --api out, \
         which takes the socket, and see whose program that is with `ss -lptn`"
    )]
    Stranger { address: String, uid: u32 },
    #[error("the daemon did not answer on {address}: see its log")]
    Broken {
        address: String,
        #[source]
        source: hyper::Error,
    },
    /// The daemon refused. The message is the daemon's own text.
    #[error("{message}")]
    Refused { code: String, message: String },
    /// The answer is not in the daemon's format.
    #[error(
        "the answer on {address} (status {status}) is not one of this version of glidefs: check --api or --socket, and compare \
         `glidefs --version` with the daemon's"
    )]
    NotUnderstood { address: String, status: StatusCode },
}

#[derive(Debug)]
enum DaemonAddress {
    Socket(PathBuf),
    Tcp(String),
}

#[derive(Debug)]
pub(crate) struct Client {
    address: DaemonAddress,
    token: Option<Token>,
}

impl Client {
    /// A client of the daemon behind the Unix socket `socket`.
    pub fn of_socket(socket: &Path) -> Self {
        Self { address: DaemonAddress::Socket(socket.into()), token: None }
    }

    /// A client of the daemon at `url`, which has the form http://HOST:PORT, with the token of `token_file`.
    pub fn of_url(url: &str, token_file: Option<&Path>) -> Result<Self, ClientError> {
        let error = || ClientError::Url { url: url.into() };
        let uri: Uri = url.parse().map_err(|_| error())?;
        let authority = uri.authority().ok_or_else(error)?;
        if uri.scheme_str() != Some("http") || uri.path() != "/" || authority.as_str().contains('@') {
            return Err(error());
        }
        let address = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(9470));
        let token = token_file.map(Token::load).transpose()?;
        Ok(Self { address: DaemonAddress::Tcp(address), token })
    }

    /// Whether the daemon's address is a socket or a loopback address, so that the daemon's devices are on this host.
    pub fn is_local(&self) -> bool {
        let DaemonAddress::Tcp(address) = &self.address else { return true };
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse();
        host == "localhost" || ip.is_ok_and(|ip: IpAddr| ip.is_loopback())
    }

    fn address(&self) -> String {
        match &self.address {
            DaemonAddress::Socket(path) => path.display().to_string(),
            DaemonAddress::Tcp(address) => format!("http://{address}"),
        }
    }

    /// Asks for `path` and reads the answer.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        Ok(self.ask(Method::GET, path, Bytes::new()).await?.1)
    }

    /// Asks for `path` and returns the answer as it is.
    pub async fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let (_, body) = self.request(Method::GET, path, Bytes::new()).await?;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }

    /// Asks for `path` to be deleted and reads the answer.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        Ok(self.ask(Method::DELETE, path, Bytes::new()).await?.1)
    }

    /// Sends `body` as JSON to `path` and reads the answer.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        Ok(self.ask(Method::POST, path, json(body)).await?.1)
    }

    /// Sends `body` as JSON to `path`, to change what is there, and reads the answer.
    pub async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        Ok(self.ask(Method::PATCH, path, json(body)).await?.1)
    }

    /// Sends `body` as JSON to `path`, to make something. Returns whether the request made something new, and the answer.
    pub async fn make<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(bool, T), ClientError> {
        let (status, answer) = self.ask(Method::POST, path, json(body)).await?;
        Ok((status == StatusCode::CREATED, answer))
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, T), ClientError> {
        let (status, body) = self.request(method, path, body).await?;
        serde_json::from_slice(&body)
            .map(|answer| (status, answer))
            .map_err(|_| ClientError::NotUnderstood { address: self.address(), status })
    }

    /// Sends a request on a connection of its own. Returns the status and the body, up to [`ANSWER_BYTES_MAX`].
    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let answer = match &self.address {
            DaemonAddress::Socket(socket) => {
                let stream = self.connect(UnixStream::connect(socket)).await?;
                self.exchange(TokioIo::new(stream), method, path, body).await
            }
            DaemonAddress::Tcp(address) => {
                let stream = self.connect(TcpStream::connect(address)).await?;
                let (own, peer) = (stream.local_addr(), stream.peer_addr());
                if let (Ok(own), Ok(peer)) = (own, peer)
                    && peer.ip().is_loopback()
                    && let Some(uid) = server_of(own, peer, &own_tables())
                    && uid != 0
                    && uid != geteuid().as_raw()
                {
                    return Err(ClientError::Stranger { address: self.address(), uid });
                }
                self.exchange(TokioIo::new(stream), method, path, body).await
            }
        }?;
        let status = answer.status();
        let not_understood = || ClientError::NotUnderstood { address: self.address(), status };
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|_| not_understood())?.to_bytes();
        if status.is_success() {
            return Ok((status, body));
        }
        // Daemons of all versions have this member.
        let Problem { error, .. } = serde_json::from_slice(&body).map_err(|_| not_understood())?;
        Err(ClientError::Refused { code: error.code, message: error.message })
    }

    async fn connect<S>(&self, connecting: impl Future<Output = io::Result<S>>) -> Result<S, ClientError> {
        let connected = tokio::time::timeout(CONNECT_MAX, connecting).await;
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|source| {
            let address = self.address();
            if source.kind() == io::ErrorKind::PermissionDenied {
                ClientError::NoPermission { address, source }
            } else {
                ClientError::NotRunning { address, source }
            }
        })
    }

    async fn exchange<S: Read + Write + Unpin + Send + 'static>(
        &self,
        stream: S,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Response<Incoming>, ClientError> {
        let broken = |source| ClientError::Broken { address: self.address(), source };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(broken)?;
        // The connection ends with the answer. Errors of the connection come back through the request.
        tokio::spawn(connection);
        let host = match &self.address {
            DaemonAddress::Socket(_) => "localhost",
            DaemonAddress::Tcp(address) => address,
        };
        let mut request = Request::builder().method(method).uri(path).header(HOST, host);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.header_value());
        }
        let request = request.body(Full::new(body)).map_err(|_| ClientError::Url { url: self.address() })?;
        sender.send_request(request).await.map_err(broken)
    }
}

/// The kernel's tables of the sockets of TCP, as text.
fn own_tables() -> String {
    ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default()).concat()
}

/// The user whose program listens at the loopback address `peer`, or has the other end of the connection from `own`, by the kernel's
/// `tables`; `None` where nothing is known, as of an address that is forwarded. Of several that of a user counts, not that of root.
fn server_of(own: SocketAddr, peer: SocketAddr, tables: &str) -> Option<u32> {
    const LISTENS: &str = "0A";
    let is = |field: &str, address: SocketAddr| {
        let digits = format!("{}:{:04X}", digits_of(address.ip()), address.port());
        field.ends_with(&digits)
    };
    let is_any = |field: &str| {
        field
            .strip_suffix(&format!(":{:04X}", peer.port()))
            .is_some_and(|ip| ip.bytes().all(|digit| digit == b'0'))
    };
    let servers = tables.lines().filter_map(|line| {
        // sl, local address, remote address, state, queues, timer, retransmissions, uid.
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (local, remote, state) = (fields.get(1)?, fields.get(2)?, fields.get(3)?);
        let is_meant = match *state {
            LISTENS => is(local, peer) || is_any(local),
            _ => is(local, peer) && is(remote, own),
        };
        is_meant.then(|| fields.get(7)?.parse().ok())?
    });
    servers.max()
}

/// An address as the kernel's tables have it: words of the machine's own order, in hexadecimal digits.
fn digits_of(ip: IpAddr) -> String {
    let octets = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.as_chunks().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
    words.collect()
}

/// A body as JSON. Bodies are plain structs, and a plain struct always serialises.
fn json(body: &impl Serialize) -> Bytes {
    serde_json::to_vec(body).unwrap_or_default().into()
}

/// Path of an export. Export names need no escaping.
pub(crate) fn export_path(name: &ExportName, operation: &str) -> String {
    format!("/v1/exports/{name}{operation}")
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_user_of_a_server_is_read_from_the_tables_of_the_kernel() {
        for address in ["127.0.0.1:0", "0.0.0.0:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            let peer = SocketAddr::from(([127, 0, 0, 1], port));
            let connected = std::net::TcpStream::connect(peer).unwrap();
            let server = || server_of(connected.local_addr().unwrap(), peer, &own_tables());
            assert_eq!(server(), Some(geteuid().as_raw()), "{address}");
            let _accepted = listener.accept().unwrap();
            drop(listener);
            assert_eq!(server(), Some(geteuid().as_raw()), "{address}: the one who has accepted");
        }
    }

    #[test]
    fn of_a_port_that_root_and_a_user_listen_on_the_user_counts_and_so_does_who_has_the_connection() {
        let line = |address: &str, state: &str, uid: u32| {
            format!(
                "   0: {address} 0100007F:0050 {state} 00000000:00000000 00:00000000 00000000  {uid}  0 1 1 0\n"
            )
        };
        let any = format!("{:08X}:24FE", 0);
        let own = format!("{:08X}:24FE", u32::from_ne_bytes([127, 0, 0, 1]));
        let table = line(&any, "0A", 0) + &line(&own, "0A", 1000) + &line(&own, "01", 2000);
        let from = |own: &str, peer: &str| server_of(own.parse().unwrap(), peer.parse().unwrap(), &table);
        let user = |peer| from("127.0.0.1:81", peer);
        assert_eq!(
            (user("127.0.0.1:9470"), from("127.0.0.1:80", "127.0.0.1:9470")),
            (Some(1000), Some(2000))
        );
        assert_eq!(user("127.0.0.2:9470"), Some(0));
        assert_eq!(user("127.0.0.1:9471"), None);
        // As the kernel has [::1], and 127.0.0.1 in a table of IPv6.
        let words =
            |words: [[u8; 4]; 4]| words.map(|word| format!("{:08X}", u32::from_ne_bytes(word))).concat();
        let six = format!("{}:24FE", words([[0; 4], [0; 4], [0; 4], [0, 0, 0, 1]]));
        let mapped = format!("{}:24FE", words([[0; 4], [0; 4], [0, 0, 255, 255], [127, 0, 0, 1]]));
        for (address, peer) in [(six, "[::1]:9470"), (mapped, "127.0.0.1:9470")] {
            let own = "127.0.0.1:81".parse().unwrap();
            assert_eq!(
                server_of(own, peer.parse().unwrap(), &line(&address, "0A", 3000)),
                Some(3000),
                "{peer}"
            );
        }
    }
}
