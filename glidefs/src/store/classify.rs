//! The meaning of an error of the store: missing, refused, try again, or never.
//!
//! Owns the judgement, and the HTTP layer that keeps the status of an answer, which `object_store` does not hand out. Does not
//! own waiting. Invariant: a request that can succeed later is tried again, and no other request is.

use std::error::Error;
use std::io;
use std::time::Duration;

use async_trait::async_trait;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};

/// Longest part of a store's explanation in an error, bytes.
const MESSAGE_BYTES_MAX: usize = 500;

/// What the caller does about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The object is not there.
    Missing,
    /// The store says that the object is there already, or that another request is in the way.
    Exists,
    /// The object is shorter than the requested range.
    TooShort,
    /// The store does not allow the request; the advice tells the user how to mend the cause.
    Refused(&'static str),
    /// The request can never succeed.
    Rejected,
    /// The request may succeed later, and is not repeated before so long.
    Again(Option<Duration>),
}

const NO_BUCKET: &str = "there is no such bucket: create it, or correct store.url";
const NO_PERMISSION: &str =
    "check the credentials (for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) and what they permit";
const CLOCK: &str = "the clock of this host is wrong: set it";
const EXPIRED: &str = "the credentials have expired: renew them";
const REGION: &str = "the bucket is in another region: set AWS_REGION";
const FILE_PERMISSION: &str = "run as the owner of the directory, or change its owner";

/// The verdict on `error`.
pub(super) fn classify(error: &object_store::Error) -> Verdict {
    use object_store::Error as E;
    match error {
        E::NotFound { .. }
            if ["<Code>NoSuchBucket", "<Code>ContainerNotFound"]
                .into_iter()
                .any(|code| says(error, code)) =>
        {
            Verdict::Refused(NO_BUCKET)
        }
        E::NotFound { .. } => Verdict::Missing,
        E::AlreadyExists { .. } => Verdict::Exists,
        E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
            if says(error, "RequestTimeTooSkewed") {
                Verdict::Refused(CLOCK)
            } else {
                Verdict::Refused(NO_PERMISSION)
            }
        }
        E::Generic { .. } => classify_chain(error),
        E::JoinError { .. } => Verdict::Again(None),
        _ => Verdict::Rejected,
    }
}

/// Judges by the causes of an error of no particular kind.
fn classify_chain(error: &object_store::Error) -> Verdict {
    let is_of_token = says(error, "Error performing token request");
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if let Some(answer) = error.downcast_ref::<Answer>() {
            return match answer.verdict() {
                // A metadata service that does not know the machine yet, or is replaced (Azure: 400, 410).
                Verdict::Rejected if is_of_token => Verdict::Again(None),
                verdict => verdict,
            };
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            match error.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    return Verdict::Refused(FILE_PERMISSION);
                }
                io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => return Verdict::Rejected,
                _ => {}
            }
        }
        cause = error.source();
    }
    if says(error, "Wanted range starting at") || says(error, "Out of range of file") {
        return Verdict::TooShort;
    }
    if says(error, "Received redirect without LOCATION") {
        return Verdict::Refused(REGION);
    }
    // Cut connections, time-outs, answers without sense: all of them pass, or look as if they could.
    Verdict::Again(None)
}

/// Whether the text of the error or of one of its causes contains `words`. The types of these causes are private to
/// `object_store`.
fn says(error: &object_store::Error, words: &str) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.to_string().contains(words) {
            return true;
        }
        cause = error.source();
    }
    false
}

/// An answer without success for which `object_store` has no error of its own.
#[derive(Clone, Debug, thiserror::Error)]
#[error("status {status}: {message}")]
pub(super) struct Answer {
    pub status: u16,
    /// Beginning of the body of the answer.
    pub message: String,
    /// How long the store wants the sender to wait.
    pub retry_after: Option<Duration>,
}

impl Answer {
    fn verdict(&self) -> Verdict {
        let says = |words: &str| self.message.contains(words);
        match self.status {
            404 | 408 | 409 | 425 | 429 | 500..=599 => Verdict::Again(self.retry_after),
            // Amazon: the body of a request came too slowly.
            400 if says("RequestTimeout") => Verdict::Again(None),
            400 if ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"].into_iter().any(says) => {
                Verdict::Refused(EXPIRED)
            }
            400 if says("AuthorizationHeaderMalformed") => Verdict::Refused(REGION),
            301 | 307 => Verdict::Refused(REGION),
            401 | 403 => Verdict::Refused(NO_PERMISSION),
            416 => Verdict::TooShort,
            _ => Verdict::Rejected,
        }
    }
}

/// Makes clients that turn answers without an error of their own into [`Answer`]s.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Service(ReqwestConnector::default().connect(options)?)))
    }
}

#[derive(Debug)]
struct Service(HttpClient);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.execute(request).await?;
        let status = response.status().as_u16();
        // `object_store` has errors of its own for these statuses.
        if response.status().is_success() || matches!(status, 304 | 401 | 403 | 409 | 412) {
            return Ok(response);
        }
        let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let retry_after = retry_after.and_then(|text| text.parse().ok()).map(Duration::from_secs);
        let (parts, body) = response.into_parts();
        let body = body.bytes().await.unwrap_or_default();
        // A store names the error; a proxy whose store is away does not.
        if status == 404 && String::from_utf8_lossy(&body).contains("<Code>") {
            return Ok(HttpResponse::from_parts(parts, body.into()));
        }
        let message = String::from_utf8_lossy(&body[..body.len().min(MESSAGE_BYTES_MAX)]).into_owned();
        Err(HttpError::new(HttpErrorKind::Unknown, Answer { status, message, retry_after }))
    }
}

#[cfg(test)]
mod tests {
    use object_store::aws::AmazonS3Builder;
    use object_store::path::Path;
    use object_store::{ObjectStoreExt, RetryConfig};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// What a GET means to which a server answers `status`, a status line's end, and `body`.
    async fn answered(status: &str, body: &str) -> Verdict {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert_ne!(stream.read_buf(&mut request).await.unwrap(), 0);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let (builder, retry) =
            (AmazonS3Builder::new(), RetryConfig { max_retries: 0, ..RetryConfig::default() });
        let builder = builder.with_bucket_name("bucket").with_endpoint(endpoint).with_allow_http(true);
        let builder = builder.with_access_key_id("key").with_secret_access_key("secret").with_retry(retry);
        let store = builder.with_http_connector(Connector).build().unwrap();
        classify(&store.get(&Path::from("object")).await.unwrap_err())
    }

    #[tokio::test]
    async fn an_object_is_missing_only_if_the_store_says_so_and_not_a_proxy_before_it() {
        let error = |code| format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code></Error>");
        assert_eq!(answered("404 Not Found", &error("NoSuchKey")).await, Verdict::Missing);
        assert_eq!(answered("404 Not Found", &error("NoSuchBucket")).await, Verdict::Refused(NO_BUCKET));
        for body in ["", "default backend - 404", "<html><h1>Not Found</h1></html>"] {
            assert_eq!(answered("404 Not Found", body).await, Verdict::Again(None), "{body}");
        }
    }

    fn generic(source: impl Error + Send + Sync + 'static) -> object_store::Error {
        object_store::Error::Generic { store: "test", source: Box::new(source) }
    }

    fn answer(status: u16, message: &str) -> Verdict {
        let answer = Answer { status, message: message.into(), retry_after: None };
        classify(&generic(HttpError::new(HttpErrorKind::Unknown, answer)))
    }

    #[test]
    fn only_what_can_succeed_later_is_tried_again() {
        for status in [404, 408, 429, 500, 502, 503, 504] {
            assert_eq!(answer(status, "SlowDown"), Verdict::Again(None), "{status}");
        }
        for status in [400, 402, 405, 411, 418, 451] {
            assert_eq!(answer(status, "InvalidArgument"), Verdict::Rejected, "{status}");
        }
        assert_eq!(answer(400, "RequestTimeout"), Verdict::Again(None));
        assert_eq!(answer(400, "ExpiredToken"), Verdict::Refused(EXPIRED));
        assert_eq!(answer(301, "PermanentRedirect"), Verdict::Refused(REGION));
        assert_eq!(answer(416, ""), Verdict::TooShort);
        for kind in [io::ErrorKind::ConnectionReset, io::ErrorKind::StorageFull, io::ErrorKind::TimedOut] {
            assert_eq!(classify(&generic(io::Error::from(kind))), Verdict::Again(None), "{kind:?}");
        }
        for kind in [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem] {
            assert_eq!(classify(&generic(io::Error::from(kind))), Verdict::Refused(FILE_PERMISSION));
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("Error performing token request: {0}")]
    struct TokenRequest(#[source] Answer);

    #[test]
    fn a_metadata_service_that_does_not_know_the_machine_is_asked_again_and_one_that_refuses_is_not() {
        for status in [400, 410] {
            let answer = Answer { status, message: String::new(), retry_after: None };
            assert_eq!(classify(&generic(TokenRequest(answer))), Verdict::Again(None), "{status}");
        }
        let answer = Answer { status: 403, message: String::new(), retry_after: None };
        assert_eq!(classify(&generic(TokenRequest(answer))), Verdict::Refused(NO_PERMISSION));
    }

    #[test]
    fn errors_with_a_kind_of_their_own_are_told_apart() {
        use object_store::Error as E;
        let source = |text: &str| -> Box<dyn Error + Send + Sync> { text.into() };
        let path = String::new;
        for (error, verdict) in [
            (E::NotFound { path: path(), source: source("x") }, Verdict::Missing),
            (E::NotFound { path: path(), source: source("<Code>NoSuchBucket") }, Verdict::Refused(NO_BUCKET)),
            (E::AlreadyExists { path: path(), source: source("412") }, Verdict::Exists),
            (E::PermissionDenied { path: path(), source: source("x") }, Verdict::Refused(NO_PERMISSION)),
            (
                E::PermissionDenied { path: path(), source: source("RequestTimeTooSkewed") },
                Verdict::Refused(CLOCK),
            ),
            (E::NotSupported { source: source("x") }, Verdict::Rejected),
        ] {
            assert_eq!(classify(&error), verdict, "{error}");
        }
    }
}
