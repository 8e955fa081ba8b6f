//! The access rules: which client may send which request.
//!
//! Owns the rules for requests over TCP, and for web pages. Does not own the token (`token`), nor who may use the socket, which the mode of
//! its file says (`serve`). Invariant: over TCP a request without the token can read [`OPEN_PATHS`] and nothing else, but for the files
//! of the status page where there is a token.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::connection::Requester;
use super::error::ApiError;
use super::page;
use super::token::TokenFile;
use super::wire::ProblemCode as P;

/// The paths served over TCP without the token. `/metrics` names exports, so only a loopback address serves `/metrics`
/// without the token.
const OPEN_PATHS: [&str; 4] = ["/healthz", "/readyz", METRICS_PATH, "/openapi.json"];
const METRICS_PATH: &str = "/metrics";

/// The rules for requests over TCP.
#[derive(Debug)]
pub(super) struct TcpRules {
    token: Option<TokenFile>,
    /// The address that is listened on.
    listen: IpAddr,
    /// Further names of this host, by which clients may address the daemon, as [`plain`] makes them.
    names: Vec<String>,
}

impl TcpRules {
    /// The rules of the address `listen`. `names` are further names of this host.
    pub fn new(listen: IpAddr, names: &[String], token: Option<TokenFile>) -> Self {
        Self { token, listen, names: names.iter().map(|name| plain(name)).collect() }
    }

    /// Reads the token before the first request, so that its trouble is known.
    pub async fn read_token(&self) {
        if let Some(token) = &self.token {
            token.read().await;
        }
    }

    /// Whether `header`, the `Authorization` header of a request, carries the token.
    async fn is_authorized(&self, header: Option<HeaderValue>) -> bool {
        let Some((token, header)) = self.token.as_ref().zip(header) else { return false };
        token.is_carried_by(header.as_bytes()).await
    }

    /// Whether to serve a request without the token.
    fn check(&self, request: &Request) -> Result<(), ApiError> {
        self.check_host(request)?;
        let path = request.uri().path();
        // The files of the page have no figures in them: the page asks its user for the token.
        let is_page = self.token.is_some() && page::has_file(path);
        let is_known = OPEN_PATHS.contains(&path) && (self.listen.is_loopback() || path != METRICS_PATH);
        let is_open = is_page || is_known;
        match &self.token {
            _ if is_open && reads(request.method()) => Ok(()),
            Some(_) => Err(ApiError::from(P::Unauthorized)),
            None => Err(ApiError::new(
                P::Forbidden,
                "without a token TCP serves GET of /healthz, /readyz, /metrics and /openapi.json only: use the Unix socket \
                 ([api] socket, which the command line uses unless told otherwise), or set [api] token_file and send \
                 \"Authorization: Bearer TOKEN\"; the status page asks for the token",
            )),
        }
    }

    /// Refuses a name of another host: a web page may point a name of its own at this host (DNS rebinding).
    fn check_host(&self, request: &Request) -> Result<(), ApiError> {
        let header = host_header(request.headers(), request.version())?;
        // A request meant for a proxy names the host twice.
        for authority in [header, request.uri().authority().cloned()].into_iter().flatten() {
            if !self.knows(authority.host()) {
                return Err(ApiError::wrong_host(authority.host()));
            }
        }
        Ok(())
    }

    fn knows(&self, host: &str) -> bool {
        let host = plain(host);
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&host);
        match bare.parse::<IpAddr>() {
            // DNS plays no part in an address, so a page cannot redirect an address to this host.
            Ok(ip) => ip.is_loopback() || ip == self.listen || self.listen.is_unspecified(),
            Err(_) => host == "localhost" || self.names.contains(&host),
        }
    }
}

/// Serves or refuses a request over TCP.
pub(super) async fn tcp(State(rules): State<Arc<TcpRules>>, request: Request, next: Next) -> Response {
    let header = request.headers().get(header::AUTHORIZATION).cloned();
    // No web page knows the token, so the header `Host` need not be checked for a request with the token.
    let is_authorized = rules.is_authorized(header).await;
    if is_authorized {
        return next.run(request).await;
    }
    if let Some(requester) = request.extensions().get::<Requester>() {
        requester.note_anonymous();
    }
    match rules.check(&request) {
        Ok(()) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}

/// Refuses changes requested by a web page: a page could make a browser on this host send requests to the loopback address.
pub(super) async fn browsers(request: Request, next: Next) -> Response {
    if !reads(request.method()) && request.headers().contains_key(header::ORIGIN) {
        let message = "changes cannot be asked for by a web page: send the request without the header Origin";
        return ApiError::new(P::Forbidden, message).into_response();
    }
    next.run(request).await
}

fn reads(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

/// A host name in the form used for comparing: lower case, without a final dot.
fn plain(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// The value of the header `Host`. `None` for a client before HTTP/1.1 that sends no `Host`; no browser does so.
fn host_header(headers: &HeaderMap, version: Version) -> Result<Option<Authority>, ApiError> {
    let mut values = headers.get_all(header::HOST).iter();
    let text = match values.next() {
        None if version < Version::HTTP_11 => return Ok(None),
        value => value.and_then(|value| value.to_str().ok()).unwrap_or_default(),
    };
    match text.parse::<Authority>() {
        Ok(authority) if values.next().is_none() => Ok(Some(authority)),
        _ => Err(ApiError::wrong_host(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(listen: [u8; 4]) -> TcpRules {
        TcpRules::new(listen.into(), &["Storage.Example.".into()], None)
    }

    #[test]
    fn addresses_of_this_host_and_configured_names_are_known_and_other_names_are_not() {
        let local = hosts([127, 0, 0, 1]);
        for host in
            ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.9.9.9", "[::1]", "storage.example"]
        {
            assert!(local.knows(host), "{host}");
        }
        for host in
            ["", "evil.example", "localhost.evil.example", "10.0.0.7", "127.0.0.1.evil.example", "storage"]
        {
            assert!(!local.knows(host), "{host}");
        }
        assert!(hosts([10, 0, 0, 7]).knows("10.0.0.7") && !hosts([10, 0, 0, 7]).knows("10.0.0.8"));
        assert!(hosts([0, 0, 0, 0]).knows("10.0.0.8"), "all addresses of the host are listened on");
    }

    #[test]
    fn a_request_names_its_host_once_and_not_another_in_its_address() {
        let check = |uri: &str, values: &[&str], version| {
            let mut request = Request::builder().uri(uri).version(version);
            for value in values {
                request = request.header(header::HOST, *value);
            }
            hosts([127, 0, 0, 1]).check_host(&request.body(axum::body::Body::empty()).unwrap()).is_ok()
        };
        assert!(check("/", &["localhost:9470"], Version::HTTP_11));
        assert!(check("/", &[], Version::HTTP_10));
        assert!(check("http://localhost/", &["localhost"], Version::HTTP_11));
        assert!(!check("/", &[], Version::HTTP_11));
        assert!(!check("/", &["localhost", "localhost"], Version::HTTP_11));
        assert!(!check("/", &["evil example"], Version::HTTP_11));
        assert!(!check("http://evil.example/", &["localhost"], Version::HTTP_11));
        assert!(!check("http://localhost/", &["evil.example"], Version::HTTP_11));
    }
}
