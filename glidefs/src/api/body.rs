//! Reading requests: JSON bodies, paths and queries. Refusals use the words of this API instead of those of the HTTP
//! library.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use futures_util::StreamExt;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use super::wire::ProblemCode as P;
use crate::router::ExportName;

/// Largest body of a request, bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// How long a request may take to send the body.
pub(super) const BODY_TIME_MAX: Duration = Duration::from_secs(30);

/// A body of at most [`BODY_BYTES_MAX`] bytes that holds JSON for a `T`. The content type is not checked.
pub(super) struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, state: &S) -> Result<Self, ApiError> {
        DefaultBodyLimit::max(BODY_BYTES_MAX).apply(&mut request);
        let bytes = tokio::time::timeout(BODY_TIME_MAX, Bytes::from_request(request, state)).await;
        let late = "the body of the request did not come: send the request again";
        let bytes =
            bytes.map_err(|_| ApiError::new(P::Timeout, late))?.map_err(|rejection| refusal(&rejection))?;
        serde_json::from_slice(&bytes).map(Self).map_err(|error| {
            ApiError::new(P::BadRequest, format!("the body is not the JSON it should be: {error}"))
        })
    }
}

/// Reads the body of a request that is refused whatever the body is, and keeps nothing: a client that is still sending when the
/// connection closes may never read the answer.
pub(super) async fn discard(request: Request) {
    let mut chunks = request.into_body().into_data_stream();
    let mut left = BODY_BYTES_MAX;
    let reading = async {
        while let Some(Ok(chunk)) = chunks.next().await {
            let Some(less) = left.checked_sub(chunk.len()) else { return };
            left = less;
        }
    };
    // The refusal is the answer to a body that does not come as well.
    let _ = tokio::time::timeout(BODY_TIME_MAX, reading).await;
}

fn refusal(rejection: &BytesRejection) -> ApiError {
    if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return ApiError::new(
            P::TooLarge,
            format!("the body is too large: {BODY_BYTES_MAX} bytes is the most"),
        );
    }
    ApiError::new(P::BadRequest, "the body could not be read: send the request again")
}

/// The query of a request, read as a `T`.
pub(super) struct InQuery<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for InQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query
            .map(|Query(query)| Self(query))
            .map_err(|rejection| ApiError::new(P::BadRequest, rejection.body_text()))
    }
}

/// The variable parts of the path, read as a `T`: text, or a tuple of texts.
pub(super) struct InPath<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for InPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let not_text = |_| ApiError::new(P::BadRequest, "a name in the path is not UTF-8 text");
        Path::<T>::from_request_parts(parts, state).await.map(|Path(parts)| Self(parts)).map_err(not_text)
    }
}

/// The name of the export in the path.
pub(super) struct NameInPath(pub ExportName);

impl<S: Send + Sync> FromRequestParts<S> for NameInPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let InPath(name) = InPath::<String>::from_request_parts(parts, state).await?;
        Ok(Self(ExportName::new(&name)?))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::response::IntoResponse;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_not_waited_for_for_ever() {
        let never = futures_util::stream::pending::<Result<Bytes, Infallible>>();
        let request = Request::new(axum::body::Body::from_stream(never));
        let refusal = <JsonBody<serde_json::Value>>::from_request(request, &()).await.err().unwrap();
        assert_eq!(refusal.into_response().status(), StatusCode::REQUEST_TIMEOUT);
    }
}
