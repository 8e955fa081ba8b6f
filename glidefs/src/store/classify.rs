//! The meaning of an error of the store: missing, refused, try again, or never; and its text for people.
//!
//! Owns the judgement and the sentence. Does not own the HTTP layer that keeps the status of an answer (`http`), nor waiting. Invariant: a
//! request that can succeed later is tried again, and no other request is.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use super::error::BoxError;
use super::stats::Operation;
use crate::observe::{chain, one_line};

/// Longest part of a store's explanation in an error, bytes.
const MESSAGE_BYTES_MAX: usize = 500;
/// Longest code and id of an answer in an error, bytes.
const WORD_BYTES_MAX: usize = 80;

/// What the caller does about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The object is not there.
    Missing,
    /// The store says that the object is there already, or that another request is in the way.
    Exists,
    /// The object is shorter than the requested range.
    TooShort,
    /// The object is in an archive, and cannot be read.
    Archived,
    /// The credentials do not permit the request; or, of a read, the object is not there.
    Denied,
    /// The store does not allow the request; the advice tells the user how to mend the cause.
    Refused(&'static str),
    /// The request can never succeed.
    Rejected,
    /// The request may succeed later, and is not repeated before so long.
    Again(Option<Duration>),
}

/// Advice for [`Verdict::Denied`]: the permission that the request needs.
pub(super) fn permission_for(operation: Operation) -> &'static str {
    match operation {
        Operation::Get | Operation::Head => {
            "the credentials must permit this (for S3 s3:GetObject); S3 also says so of a missing object where s3:ListBucket is not permitted"
        }
        Operation::Put => "the credentials must permit this (for S3 s3:PutObject)",
        Operation::Delete => "the credentials must permit this (for S3 s3:DeleteObject)",
        Operation::List => "the credentials must permit this (for S3 s3:ListBucket, for the bucket)",
    }
}
const NO_BUCKET: &str = "there is no such bucket: create it, or correct store.url";
const NO_PERMISSION: &str =
    "check the credentials (for S3 AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) and what they permit";
const UNKNOWN_KEY: &str = "the store does not know the access key: correct AWS_ACCESS_KEY_ID, or the place where the key comes from";
const WRONG_SECRET: &str = "the secret does not belong to the access key: correct AWS_SECRET_ACCESS_KEY, or the place where it comes from";
const CLOCK: &str = "the clock of this host is wrong: set it";
const EXPIRED: &str = "the credentials have expired: renew them";
const REGION: &str = "the bucket is in another region: set AWS_REGION";
const FILE_PERMISSION: &str = "run as the owner of the directory, or change its owner";

/// The verdict on `error`.
pub(super) fn classify(error: &object_store::Error) -> Verdict {
    use object_store::Error as E;
    match error {
        E::AlreadyExists { .. } => Verdict::Exists,
        E::NotFound { .. } | E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
            let verdict = answer_of(error).and_then(|answer| verdict_on(answer.code.as_deref()?));
            verdict.unwrap_or(match error {
                E::NotFound { .. } => Verdict::Missing,
                _ => Verdict::Refused(NO_PERMISSION),
            })
        }
        E::Generic { .. } => classify_chain(error),
        E::JoinError { .. } => Verdict::Again(None),
        _ => Verdict::Rejected,
    }
}

/// The meaning of an error that the store names by `code`, whatever the status; `None`: the status decides.
fn verdict_on(code: &str) -> Option<Verdict> {
    Some(match code {
        "NoSuchBucket" | "ContainerNotFound" => Verdict::Refused(NO_BUCKET),
        "AccessDenied" => Verdict::Denied,
        "InvalidAccessKeyId" => Verdict::Refused(UNKNOWN_KEY),
        "SignatureDoesNotMatch" => Verdict::Refused(WRONG_SECRET),
        "RequestTimeTooSkewed" => Verdict::Refused(CLOCK),
        "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired" => Verdict::Refused(EXPIRED),
        "AuthorizationHeaderMalformed" => Verdict::Refused(REGION),
        "InvalidObjectState" => Verdict::Archived,
        // Amazon: the body of a request came too slowly.
        "RequestTimeout" => Verdict::Again(None),
        _ => return None,
    })
}

/// Judges by the causes of an error of no particular kind.
fn classify_chain(error: &object_store::Error) -> Verdict {
    let is_of_token = says(error, "Error performing token request");
    for error in causes(error).skip(1) {
        if let Some(answer) = error.downcast_ref::<Answer>() {
            return match answer.verdict() {
                // A metadata service that does not know the machine yet, or is replaced (Azure: 400, 410).
                Verdict::Rejected if is_of_token => Verdict::Again(None),
                verdict => verdict,
            };
        }
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
                return Verdict::Refused(FILE_PERMISSION);
            }
            Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename) => return Verdict::Rejected,
            _ => {}
        }
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

/// `error` and its causes.
fn causes(error: &object_store::Error) -> impl Iterator<Item = &(dyn Error + 'static)> {
    std::iter::successors(Some(error as &(dyn Error + 'static)), |cause| (*cause).source())
}

/// Whether the text of the error or of one of its causes contains `words`. The types of these causes are private to
/// `object_store`.
fn says(error: &object_store::Error, words: &str) -> bool {
    causes(error).any(|cause| cause.to_string().contains(words))
}

/// `error` as text that is safe to print, whatever the store has sent. In one short sentence where it is an answer of the store: libraries
/// repeat the whole answer in each cause.
pub(super) fn in_short(error: object_store::Error) -> BoxError {
    match answer_of(&error) {
        Some(answer) => {
            tracing::debug!(error = &error as &dyn Error, "an answer without success");
            Box::new(answer)
        }
        None => one_line(&chain(&error)).into(),
    }
}

/// The answer in `error`, if the store has given one, and named the error.
fn answer_of(error: &object_store::Error) -> Option<Answer> {
    use object_store::Error as E;
    let status = match error {
        E::NotFound { .. } => 404,
        E::PermissionDenied { .. } => 403,
        E::Unauthenticated { .. } => 401,
        E::AlreadyExists { .. } => 409,
        E::Generic { .. } => {
            return causes(error).find_map(|cause| cause.downcast_ref::<Answer>()).cloned();
        }
        _ => return None,
    };
    let answer = Answer::new(status, &error.to_string(), None);
    answer.code.is_some().then_some(answer)
}

/// An answer without success: those for which `object_store` has no error of its own, and, for people, all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: u16,
    /// The store's name of the error.
    pub code: Option<String>,
    /// The store's id of the request.
    pub request: Option<String>,
    /// The id of the access key that the store does not accept, the region of the bucket, or the store's time, as the store says.
    pub(super) about: Option<String>,
    /// Beginning of the body of the answer.
    pub message: String,
    /// How long the store wants the sender to wait.
    pub retry_after: Option<Duration>,
}

impl Error for Answer {}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { status, code, request, about, message, retry_after: _ } = self;
        match code {
            Some(code) => write!(f, "{status} {code}")?,
            None => write!(f, "status {status}: {message}")?,
        }
        about.iter().try_for_each(|about| write!(f, ", {about}"))?;
        request.iter().try_for_each(|request| write!(f, " (request {request})"))
    }
}

impl Answer {
    pub fn new(status: u16, body: &str, retry_after: Option<Duration>) -> Self {
        let message = body.chars().scan(0, |bytes, c| {
            *bytes += c.len_utf8();
            (*bytes <= MESSAGE_BYTES_MAX).then_some(c)
        });
        let (code, request) = (element(body, "Code"), element(body, "RequestId"));
        let message = one_line(&message.collect::<String>());
        let key = element(body, "AWSAccessKeyId").map(|key| format!("access key {key}"));
        let region = || element(body, "Region").map(|region| in_region(&region));
        let time = || element(body, "ServerTime").map(|time| format!("the store's time is {time}"));
        let about = key.or_else(region).or_else(time);
        Self { status, code, request, about, message, retry_after }
    }

    fn verdict(&self) -> Verdict {
        match (self.status, self.code.as_deref().and_then(verdict_on)) {
            (404 | 408 | 409 | 425 | 429 | 500..=599, _) => Verdict::Again(self.retry_after),
            (_, Some(verdict)) => verdict,
            (301 | 307, _) => Verdict::Refused(REGION),
            (401 | 403, _) => Verdict::Refused(NO_PERMISSION),
            (416, _) => Verdict::TooShort,
            _ => Verdict::Rejected,
        }
    }
}

pub(super) fn in_region(region: &str) -> String {
    format!("the bucket is in {region}")
}

/// The content of the first XML element `name` in `text`, where the content is one word.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (word, _) = rest.split_once("</")?;
    let is_word = word.len() <= WORD_BYTES_MAX && word.bytes().all(|byte| byte.is_ascii_graphic());
    (is_word && !word.is_empty()).then(|| word.to_owned())
}

#[cfg(test)]
mod tests {
    use object_store::aws::AmazonS3Builder;
    use object_store::client::{HttpError, HttpErrorKind};
    use object_store::path::Path;
    use object_store::{ObjectStoreExt, RetryConfig};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::store::http::Connector;

    /// What a GET means to which a server answers `status`, a status line's end, and `body`.
    async fn answered(status: &str, body: &str) -> Verdict {
        classify(&error_of(status, body).await)
    }

    /// The error of such a GET.
    async fn error_of(status: &str, body: &str) -> object_store::Error {
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
        store.get(&Path::from("object")).await.unwrap_err()
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

    #[tokio::test]
    async fn an_answer_is_told_by_status_code_and_request_and_without_xml() {
        let xml = |code: &str| {
            format!(
                "<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>It is so.</Message><RequestId>4442587FB7D0A2F9</RequestId></Error>"
            )
        };
        for (status, code, verdict) in [
            ("403 Forbidden", "AccessDenied", Verdict::Denied),
            ("403 Forbidden", "InvalidAccessKeyId", Verdict::Refused(UNKNOWN_KEY)),
            ("403 Forbidden", "SignatureDoesNotMatch", Verdict::Refused(WRONG_SECRET)),
            ("403 Forbidden", "RequestTimeTooSkewed", Verdict::Refused(CLOCK)),
            ("403 Forbidden", "InvalidObjectState", Verdict::Archived),
            ("403 Forbidden", "AccountProblem", Verdict::Refused(NO_PERMISSION)),
            ("401 Unauthorized", "ExpiredToken", Verdict::Refused(EXPIRED)),
            ("400 Bad Request", "ExpiredToken", Verdict::Refused(EXPIRED)),
            ("400 Bad Request", "AuthorizationHeaderMalformed", Verdict::Refused(REGION)),
            ("404 Not Found", "NoSuchBucket", Verdict::Refused(NO_BUCKET)),
            ("503 Slow Down", "SlowDown", Verdict::Again(None)),
        ] {
            let error = error_of(status, &xml(code)).await;
            assert_eq!(classify(&error), verdict, "{status} {code}");
            let text = chain(&*in_short(error));
            assert_eq!(text, format!("{} {code} (request 4442587FB7D0A2F9)", &status[..3]));
        }
        // A code that is no word is not taken for one, and no terminal obeys an answer.
        for status in ["503 Slow Down", "403 Forbidden", "409 Conflict"] {
            let body = "<Code>\u{1b}[31m</Code>\nglidefs: all is well\u{9b}2J\u{202e}";
            let text = chain(&*in_short(error_of(status, body).await));
            assert!(text.contains("<Code>\u{fffd}[31m</Code> glidefs: all is well"), "{text}");
            assert_eq!(text, one_line(&text));
        }
        for (status, code, more, says) in [
            (
                "403 Forbidden",
                "InvalidAccessKeyId",
                "<AWSAccessKeyId>AKIAEXAMPLE</AWSAccessKeyId>",
                "403 InvalidAccessKeyId, access key AKIAEXAMPLE (request 4442587FB7D0A2F9)",
            ),
            (
                "400 Bad Request",
                "AuthorizationHeaderMalformed",
                "<Region>eu-west-1</Region>",
                "400 AuthorizationHeaderMalformed, the bucket is in eu-west-1 (request 4442587FB7D0A2F9)",
            ),
            (
                "403 Forbidden",
                "RequestTimeTooSkewed",
                "<ServerTime>2026-11-29T01:18:31Z</ServerTime>",
                "403 RequestTimeTooSkewed, the store's time is 2026-11-29T01:18:31Z (request 4442587FB7D0A2F9)",
            ),
        ] {
            let error =
                error_of(status, &xml(code).replace("<RequestId>", &format!("{more}<RequestId>"))).await;
            assert_eq!(in_short(error).to_string(), says);
        }
        let status = "301 Moved Permanently\r\nx-amz-bucket-region: eu-west-1";
        let error = error_of(status, &xml("PermanentRedirect")).await;
        assert_eq!(classify(&error), Verdict::Refused(REGION));
        assert!(in_short(error).to_string().contains("the bucket is in eu-west-1"));
    }

    fn generic(source: impl Error + Send + Sync + 'static) -> object_store::Error {
        object_store::Error::Generic { store: "test", source: Box::new(source) }
    }

    fn answer(status: u16, code: &str) -> Verdict {
        let answer = Answer::new(status, &format!("<Code>{code}</Code>"), None);
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
            let answer = Answer::new(status, "", None);
            assert_eq!(classify(&generic(TokenRequest(answer))), Verdict::Again(None), "{status}");
        }
        let answer = Answer::new(403, "", None);
        assert_eq!(classify(&generic(TokenRequest(answer))), Verdict::Refused(NO_PERMISSION));
    }

    #[test]
    fn errors_with_a_kind_of_their_own_are_told_apart() {
        use object_store::Error as E;
        let source = |text: &str| -> Box<dyn Error + Send + Sync> { text.into() };
        let path = String::new;
        for (error, verdict) in [
            (E::NotFound { path: path(), source: source("x") }, Verdict::Missing),
            (
                E::NotFound { path: path(), source: source("<Code>NoSuchBucket</Code>") },
                Verdict::Refused(NO_BUCKET),
            ),
            (E::AlreadyExists { path: path(), source: source("412") }, Verdict::Exists),
            (E::PermissionDenied { path: path(), source: source("x") }, Verdict::Refused(NO_PERMISSION)),
            (
                E::PermissionDenied { path: path(), source: source("<Code>RequestTimeTooSkewed</Code>") },
                Verdict::Refused(CLOCK),
            ),
            (E::NotSupported { source: source("x") }, Verdict::Rejected),
        ] {
            assert_eq!(classify(&error), verdict, "{error}");
        }
    }
}
