//! What benches and tests of the documents ask the command line.
//!
//! Owns nothing. The program uses nothing of this.

use clap::Parser;

use super::args::Cli;
use super::print;
use crate::api::wire::Export;

/// The table that `glidefs export list` prints of the daemon's answer `json`.
///
/// # Errors
/// When `json` is no list of exports.
pub fn listing(json: &[u8]) -> serde_json::Result<String> {
    serde_json::from_slice::<Vec<Export>>(json).map(|exports| print::exports(&exports))
}

/// Why the program refuses the arguments `words`; `None` if it takes them. Values that are missing or wrong are a reason only if
/// the arguments are `whole`.
pub fn refusal(words: &[&str], whole: bool) -> Option<String> {
    use clap::error::ErrorKind::{DisplayHelp, DisplayVersion, InvalidSubcommand, UnknownArgument};

    let error = Cli::try_parse_from(std::iter::once("glidefs").chain(words.iter().copied())).err()?;
    let counts = match error.kind() {
        DisplayHelp | DisplayVersion => false,
        InvalidSubcommand | UnknownArgument => true,
        _ => whole,
    };
    counts.then(|| error.to_string().lines().next().unwrap_or_default().to_owned())
}
