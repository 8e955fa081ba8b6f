//! Writing to standard output.
//!
//! Invariant: with `--json` standard output gets JSON and nothing else.

use std::io::Write;

use serde::Serialize;

use super::error::CliError;

pub(super) fn emit(text: &[u8]) -> Result<(), CliError> {
    let mut out = std::io::stdout().lock();
    out.write_all(text).and_then(|()| out.flush()).map_err(CliError::Output)
}

pub(super) fn answer<T: Serialize>(
    json: bool,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), CliError> {
    let mut text = if json { serde_json::to_string_pretty(value)? } else { text(value) };
    text.push('\n');
    emit(text.as_bytes())
}
