//! The client of the daemon: one request a connection, over the Unix socket or TCP.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::rt::{Read, Write};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, UnixStream};

use super::args::DaemonArgs;
use crate::api::wire::ErrorBody;
use crate::api::{Token, TokenError};
use crate::router::ExportName;

/// How long a connection may take to be made.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Largest answer, bytes: 20,000 exports have a few megabytes.
const ANSWER_BYTES_MAX: usize = 256 << 20;

/// Why the daemon could not be asked, or what it refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// Nobody answers.
    #[error(
        "the glidefs daemon is not running (nothing answers on {place}): \
         start it with `systemctl start glidefs` or `glidefs run --config FILE`"
    )]
    NotRunning {
        /// Where it was looked for.
        place: String,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The user may not ask.
    #[error(
        "no permission to use {place}: run as root or as a member of the group of `[api] group`, or use --api and --token-file"
    )]
    NoPermission {
        /// The socket.
        place: String,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The URL is not one.
    #[error("{url:?} is not the address of an API: use http://HOST:PORT")]
    Url {
        /// What was given.
        url: String,
    },
    /// The token file was refused.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The connection broke.
    #[error("the daemon did not answer on {place}: see its log")]
    Broken {
        /// Where it was asked.
        place: String,
        /// What went wrong.
        #[source]
        source: hyper::Error,
    },
    /// The daemon refused; the text is its own.
    #[error("{message}")]
    Refused {
        /// A word for machines.
        code: String,
        /// What it said.
        message: String,
    },
    /// The answer makes no sense.
    #[error("what answers on {place} is not a glidefs daemon of this version (HTTP status {status})")]
    NotUnderstood {
        /// Where it was asked.
        place: String,
        /// The status.
        status: StatusCode,
    },
}

#[derive(Debug)]
enum Place {
    Socket(PathBuf),
    /// Host and port.
    Tcp(String),
}

/// Asks the daemon.
#[derive(Debug)]
pub(super) struct Client {
    place: Place,
    token: Option<Token>,
}

impl Client {
    /// A client of the daemon that `daemon` tells of.
    pub fn new(daemon: &DaemonArgs) -> Result<Self, ClientError> {
        let Some(url) = &daemon.api else {
            return Ok(Self { place: Place::Socket(daemon.socket.clone()), token: None });
        };
        let error = || ClientError::Url { url: url.clone() };
        let uri: Uri = url.parse().map_err(|_| error())?;
        let authority = uri.authority().ok_or_else(error)?;
        if uri.scheme_str() != Some("http") || uri.path() != "/" || authority.as_str().contains('@') {
            return Err(error());
        }
        let address = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(9470));
        let token = daemon.token_file.as_deref().map(Token::load).transpose()?;
        Ok(Self { place: Place::Tcp(address), token })
    }

    /// Whether the daemon is asked over its socket or a loopback address: where its devices are this host's.
    pub fn is_local(&self) -> bool {
        let Place::Tcp(address) = &self.place else { return true };
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        let ip = host.trim_start_matches('[').trim_end_matches(']').parse();
        host == "localhost" || ip.is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
    }

    fn place(&self) -> String {
        match &self.place {
            Place::Socket(path) => path.display().to_string(),
            Place::Tcp(address) => format!("http://{address}"),
        }
    }

    /// Asks for `path` and reads the answer.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        Ok(self.ask(Method::GET, path, Bytes::new()).await?.1)
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
        Ok(self.send(path, body).await?.1)
    }

    /// Sends `body` as JSON to `path`, which makes something; tells whether it was made just now, and reads the answer.
    pub async fn make<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(bool, T), ClientError> {
        let (status, answer) = self.send(path, body).await?;
        Ok((status == StatusCode::CREATED, answer))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<(StatusCode, T), ClientError> {
        // What is sent are plain structs, which always serialise.
        self.ask(Method::POST, path, serde_json::to_vec(body).unwrap_or_default().into()).await
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, T), ClientError> {
        let (status, body) = match &self.place {
            Place::Socket(socket) => {
                let stream = self.connect(UnixStream::connect(socket)).await?;
                self.exchange(TokioIo::new(stream), method, path, body).await?
            }
            Place::Tcp(address) => {
                let stream = self.connect(TcpStream::connect(address)).await?;
                self.exchange(TokioIo::new(stream), method, path, body).await?
            }
        };
        if !status.is_success() {
            let refusal: Result<ErrorBody, _> = serde_json::from_slice(&body);
            return Err(match refusal {
                Ok(refusal) => {
                    ClientError::Refused { code: refusal.error.code, message: refusal.error.message }
                }
                Err(_) => ClientError::NotUnderstood { place: self.place(), status },
            });
        }
        serde_json::from_slice(&body)
            .map(|answer| (status, answer))
            .map_err(|_| ClientError::NotUnderstood { place: self.place(), status })
    }

    async fn connect<S>(&self, connecting: impl Future<Output = io::Result<S>>) -> Result<S, ClientError> {
        let connected = tokio::time::timeout(CONNECT_MAX, connecting).await;
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|source| {
            let place = self.place();
            if source.kind() == io::ErrorKind::PermissionDenied {
                ClientError::NoPermission { place, source }
            } else {
                ClientError::NotRunning { place, source }
            }
        })
    }

    async fn exchange<S: Read + Write + Unpin + Send + 'static>(
        &self,
        stream: S,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let broken = |source| ClientError::Broken { place: self.place(), source };
        let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(broken)?;
        // The connection ends with the sender; its errors come back through the request.
        let connection = tokio::spawn(connection);
        let host = match &self.place {
            Place::Socket(_) => "localhost",
            Place::Tcp(address) => address,
        };
        let mut request = Request::builder().method(method).uri(path).header(HOST, host);
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token.header_value());
        }
        let request = request.body(Full::new(body)).map_err(|_| ClientError::Url { url: self.place() })?;
        let response = sender.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        connection.abort();
        let body = body.map_err(|_| ClientError::NotUnderstood { place: self.place(), status })?;
        Ok((status, body.to_bytes()))
    }
}

/// Path of an export; its name needs no escaping.
pub(super) fn export_path(name: &ExportName, operation: &str) -> String {
    format!("/v1/exports/{name}{operation}")
}
