//! Answers of lines: a JSON value each, handed on as soon as the line comes.
//!
//! Invariant: the memory for an answer is bounded, whoever answers.

use std::ops::ControlFlow;

use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Bytes;
use serde::de::DeserializeOwned;

use super::{Client, ClientError};

/// Longest line of an answer without an end, bytes: a line of a trace has about a kilobyte.
const LINE_BYTES_MAX: usize = 1 << 20;

impl Client {
    /// Asks for `path`, and hands `each` every line of the answer as soon as the line comes, until `each` has enough or the answer ends.
    /// Returns whether `each` had enough.
    pub async fn get_lines<T: DeserializeOwned, E: From<ClientError>>(
        &self,
        path: &str,
        mut each: impl AsyncFnMut(T) -> Result<ControlFlow<()>, E>,
    ) -> Result<bool, E> {
        let (status, mut answer) = self.request(Method::GET, path, Bytes::new()).await?;
        let not_understood = || ClientError::NotUnderstood { address: self.address(), status };
        if !status.is_success() {
            return Err(self.refusal(status, &self.whole(status, answer).await?).into());
        }
        let mut rest = Vec::new();
        while let Some(frame) = answer.frame().await {
            let frame = frame.map_err(|source| ClientError::Cut { address: self.address(), source })?;
            rest.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
            let whole = rest.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
            let lines: Vec<u8> = rest.drain(..whole).collect();
            for line in lines.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                let line = serde_json::from_slice(line).map_err(|_| not_understood())?;
                if each(line).await?.is_break() {
                    return Ok(true);
                }
            }
            // Whoever sends more without an end of line is not the daemon.
            if rest.len() > LINE_BYTES_MAX {
                return Err(not_understood().into());
            }
        }
        if rest.is_empty() { Ok(false) } else { Err(not_understood().into()) }
    }
}
