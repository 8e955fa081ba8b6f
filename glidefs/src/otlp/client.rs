//! One request to the collector.
//!
//! Owns the HTTP client, and which answers are worth another try. Does not own tries (`send`). Invariants: a request ends within the time
//! limit, whatever the other side does; of an answer at most [`ANSWER_BYTES_MAX`] bytes are read, and neither the body nor the headers are
//! logged (an error of TLS may quote the other side's certificate); redirects are not followed, so headers go to the configured place, and
//! with http:// to a proxy that the environment names.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode, Url};

use super::headers;
use super::proto::ExportTraceServiceResponse;
use crate::config::TracesSection;
use crate::observe::chain;

/// The path behind the URL of a collector.
const PATH: &str = "/v1/traces";
/// Most bytes that are read of an answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// How long a connection without a request stays open.
const IDLE: Duration = Duration::from_secs(30);

/// Why forwarding cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum OtlpError {
    /// The file with headers could not be read.
    #[error("cannot read {path}, which `[traces] otlp_headers_file` names")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The path names a directory, a device or a pipe.
    #[error("{path}, which `[traces] otlp_headers_file` names, is not a regular file")]
    NotAFile { path: PathBuf },
    /// Group or others have permissions on the file.
    #[error(
        "{path} has mode {mode:04o}, so that others than its owner may use the headers of `[traces] otlp_headers_file`: `chmod 600 {path}`"
    )]
    Exposed { path: PathBuf, mode: u32 },
    /// A line of the file is not a header.
    #[error(
        "{path}, line {line}, is not a header for the collector: use at most 32 lines such as `Authorization: Bearer TOKEN`, and none \
         about the content, the host or the connection"
    )]
    NotAHeader { path: PathBuf, line: usize },
    /// The URL cannot be used.
    #[error(
        "`[traces] otlp_endpoint` is not the URL of a collector: use http://HOST:PORT or https://HOST:PORT"
    )]
    Url,
    /// The client could not be made, most often for lack of certificates.
    #[error("no client for the collector of `[traces] otlp_endpoint`: {reason}")]
    Client { reason: String },
}

/// How a request to the collector ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The collector has taken the spans, but for so many.
    Taken { rejected: u64 },
    /// The same request would be refused again.
    Refused { reason: String },
    /// Another try may succeed, after the time that the collector asks for.
    Failed { reason: String, pause: Option<Duration> },
}

/// The way to the collector: client, address and headers.
#[derive(Debug)]
pub struct Collector {
    client: Client,
    url: Url,
    headers: HeaderMap,
}

impl Collector {
    /// The collector of `traces`, if one is configured. Asks nobody, and reads files: headers, and certificates for https://.
    pub fn of(traces: &TracesSection) -> Result<Option<Self>, OtlpError> {
        let headers = traces.otlp_headers_file.as_deref().map(Path::new).map(headers::load).transpose()?;
        let Some(endpoint) = &traces.otlp_endpoint else { return Ok(None) };
        let url = format!("{}{PATH}", endpoint.trim_end_matches('/'));
        let url = Url::parse(&url).map_err(|_| OtlpError::Url)?;
        if !["http", "https"].contains(&url.scheme()) || !url.has_host() {
            return Err(OtlpError::Url);
        }
        let mut headers = headers.unwrap_or_default();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let mut client = Client::builder();
        if url.scheme() == "http" {
            // A host without certificates can use a collector without TLS.
            client = client.tls_certs_only([]);
        }
        let client = client
            .timeout(traces.otlp_timeout.0)
            .connect_timeout(traces.otlp_timeout.0)
            .redirect(Policy::none())
            .pool_max_idle_per_host(1)
            .pool_idle_timeout(IDLE)
            .user_agent(concat!("glidefs/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| OtlpError::Client { reason: chain(&error) })?;
        Ok(Some(Self { client, url, headers }))
    }

    /// Where requests go, for the log.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    /// Posts `body`, and waits for the answer.
    pub(super) async fn post(&self, body: Bytes) -> Outcome {
        let request = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body);
        match request.send().await {
            Ok(response) => judge(response).await,
            Err(error) => failed(error),
        }
    }
}

async fn judge(mut response: Response) -> Outcome {
    let status = response.status();
    if !status.is_success() {
        let reason = format!("the collector answered with status {}", status.as_u16());
        let pause = pause(response.headers());
        return if is_passing(status) {
            Outcome::Failed { reason, pause }
        } else {
            Outcome::Refused { reason }
        };
    }
    let mut answer = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if answer.len() + chunk.len() <= ANSWER_BYTES_MAX => {
                answer.extend_from_slice(&chunk);
            }
            Ok(None) => break,
            // The collector has taken the spans: another try would send them twice.
            Ok(Some(_)) | Err(_) => return Outcome::Taken { rejected: 0 },
        }
    }
    let partial = ExportTraceServiceResponse::decode(answer.as_slice()).unwrap_or_default().partial_success;
    let rejected = partial.map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0));
    Outcome::Taken { rejected }
}

/// Whether the specification of OTLP has requests tried again behind `status`.
fn is_passing(status: StatusCode) -> bool {
    [429, 502, 503, 504].contains(&status.as_u16())
}

/// The pause that the collector asks for, in seconds.
fn pause(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

fn failed(error: reqwest::Error) -> Outcome {
    Outcome::Failed { reason: chain(&error.without_url()), pause: None }
}
