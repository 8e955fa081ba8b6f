//! Who may ask: the bearer token on TCP, and no web pages.
//!
//! Owns reading and comparing the token. Invariants: the comparison takes the same time wherever the first difference is; the
//! token is never logged.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use subtle::ConstantTimeEq;

use super::error::ApiError;

/// Shortest token: fewer characters could be guessed.
const TOKEN_CHARS_MIN: usize = 16;

/// The token that requests over TCP must carry.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

/// Why a token file was refused.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// It could not be read.
    #[error("cannot read the token file {path}: `[api] token_file` names it")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        #[source]
        source: std::io::Error,
    },
    /// Its first line is not a token.
    #[error(
        "the first line of the token file {path} is not a token: use {TOKEN_CHARS_MIN} or more printable characters \
         without spaces, such as the output of `openssl rand -hex 32`"
    )]
    NotAToken {
        /// The file.
        path: PathBuf,
    },
}

impl Token {
    /// Reads the token from the first line of `path`.
    pub fn load(path: &Path) -> Result<Self, TokenError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| TokenError::Read { path: path.into(), source })?;
        let token = text.lines().next().unwrap_or_default().trim();
        if token.len() < TOKEN_CHARS_MIN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::NotAToken { path: path.into() });
        }
        Ok(Self(token.into()))
    }

    /// The value of the header `Authorization` that carries the token.
    pub fn header_value(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Whether `header` carries this token.
    fn is_carried_by(&self, header: &[u8]) -> bool {
        let Some((scheme, given)) = header.split_at_checked(7) else { return false };
        scheme.eq_ignore_ascii_case(b"Bearer ") && bool::from(given.ct_eq(self.0.as_bytes()))
    }
}

/// Lets requests pass that carry the token, and those that ask only whether the daemon lives.
pub(super) async fn require_token(State(token): State<Token>, request: Request, next: Next) -> Response {
    let open = matches!(request.uri().path(), "/healthz" | "/readyz");
    let header = request.headers().get(header::AUTHORIZATION);
    if open || header.is_some_and(|header| token.is_carried_by(header.as_bytes())) {
        return next.run(request).await;
    }
    ApiError::unauthorized().into_response()
}

/// Refuses changes asked for by a web page: a browser on this host could be made to send them to the loopback address.
pub(super) async fn refuse_browsers(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reads && request.headers().contains_key(header::ORIGIN) {
        let message = "changes cannot be asked for by a web page: send the request without the header Origin";
        return ApiError::forbidden(message).into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_is_taken() {
        let token = Token("0123456789abcdef".into());
        assert!(token.is_carried_by(b"Bearer 0123456789abcdef"));
        assert!(token.is_carried_by(b"bearer 0123456789abcdef"));
        for header in
            ["", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdeF", "Basic 0123456789abcdef"]
        {
            assert!(!token.is_carried_by(header.as_bytes()), "{header}");
        }
    }

    #[test]
    fn short_empty_and_missing_token_files_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(matches!(Token::load(&path), Err(TokenError::Read { .. })));
        for text in ["", "short", "has spaces in the middle of it", "\n0123456789abcdef"] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(Token::load(&path), Err(TokenError::NotAToken { .. })), "{text:?}");
        }
        std::fs::write(&path, "0123456789abcdef\nsecond line").unwrap();
        assert_eq!(Token::load(&path).unwrap().header_value(), "Bearer 0123456789abcdef");
        assert!(!format!("{:?}", Token::load(&path).unwrap()).contains("0123"));
    }
}
