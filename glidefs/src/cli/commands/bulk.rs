//! One operation on many exports: a request to the daemon for each, many at once, progress on a terminal, a result for each export.
//!
//! Does not own which request an operation makes (`exports`). Invariants: with `--json` standard output gets one array, in the order of the
//! names, also when some exports fail; each failure is a line of standard error; any failure fails the command, and none keeps the operation
//! from another export.

use std::time::Duration;

use futures_util::stream::{self, StreamExt};
use serde::Serialize;
use tokio::time::Instant;

use crate::api::wire::{ErrorDetail, ProblemCode};
use crate::cli::args::bulk::Chosen;
use crate::cli::args::common::OutputArgs;
use crate::cli::error::CliError;
use crate::cli::print::{ProgressLine, answer, complain, emit};
use crate::client::ClientError;
use crate::router::ExportName;

/// Requests under way at once. Operations at once share the commits of the daemon's catalog.
const AT_ONCE: usize = 64;
/// How long, and how often, a request is sent again to a daemon with too many requests under way.
const PLACE_MAX: Duration = Duration::from_mins(10);
const PLACE_PAUSE: Duration = Duration::from_secs(1);

/// The result for one export, as printed with `--json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(in crate::cli) enum Item<T> {
    Done(T),
    Failed { name: String, error: ErrorDetail },
}

/// The results of an operation on exports, in the order of the names, as far as the daemon answered.
#[derive(Debug)]
pub(in crate::cli) struct Results<T> {
    items: Vec<Item<T>>,
    /// Number of exports.
    of: usize,
    /// Why the daemon did not answer for all.
    broken: Option<ClientError>,
}

impl<T: Serialize> Results<T> {
    /// Prints the results, with `text` those for people.
    ///
    /// # Errors
    /// [`CliError::SomeFailed`] when the operation failed for some exports, and the error of the connection when the daemon
    /// stopped answering.
    pub fn print(self, output: OutputArgs, text: impl FnOnce(&[&T]) -> String) -> Result<(), CliError> {
        let Self { items, of, broken } = self;
        match broken {
            // Nothing was done as far as known: the error says all.
            Some(broken) if items.is_empty() => return Err(broken.into()),
            None if of == 0 => {
                complain("glidefs: standard input has no names: nothing to do");
                return if output.json { emit(b"[]\n") } else { Ok(()) };
            }
            _ => {}
        }
        let done = items.iter().filter_map(|item| match item {
            Item::Done(done) => Some(done),
            Item::Failed { .. } => None,
        });
        let done: Vec<&T> = done.collect();
        if output.json || !done.is_empty() {
            answer(output.json, &items, |_| text(&done))?;
        }
        for item in &items {
            if let Item::Failed { name, error } = item {
                let text = format!("glidefs: {name}: {}", error.message);
                complain(&if output.json { serde_json::to_string(item)? } else { text });
            }
        }
        if let Some(source) = broken {
            return Err(CliError::NoResult { missing: of - items.len(), of, source });
        }
        match items.len() - done.len() {
            0 => Ok(()),
            failed => Err(CliError::SomeFailed { failed, of }),
        }
    }
}

/// Sends the request of `operation` for each of `names`, many at a time.
pub(in crate::cli) async fn requests<T>(
    names: &[ExportName],
    operation: impl AsyncFn(ExportName) -> Result<T, ClientError>,
) -> Results<T> {
    let progress = ProgressLine::new(names.len() > 1);
    let operation = &operation;
    let requests = names
        .iter()
        .enumerate()
        .map(async |(at, name)| (at, placed(async || operation(name.clone()).await).await));
    let mut answers = std::pin::pin!(stream::iter(requests).buffer_unordered(AT_ONCE));
    let (mut items, mut broken) = (Vec::new(), None);
    while let Some((at, answer)) = answers.next().await {
        let failed = |error| Item::Failed { name: names[at].to_string(), error };
        let item = match answer {
            Ok(done) => Item::Done(done),
            Err(ClientError::Refused { code, message }) => failed(ErrorDetail { code, message }),
            // Another request may succeed: the daemon was reached.
            Err(error @ ClientError::Broken { .. }) => {
                failed(ErrorDetail { code: "no_answer".into(), message: error.to_string() })
            }
            Err(error) => {
                broken = Some(error);
                break;
            }
        };
        items.push((at, item));
        progress.show(&format!("{} of {}", items.len(), names.len()));
    }
    items.sort_unstable_by_key(|(at, _)| *at);
    Results { items: items.into_iter().map(|(_, item)| item).collect(), of: names.len(), broken }
}

/// The answer to `request`, which is sent again while the daemon has no place for another one.
async fn placed<T>(request: impl AsyncFn() -> Result<T, ClientError>) -> Result<T, ClientError> {
    let begun = Instant::now();
    loop {
        match request().await {
            Err(ClientError::Refused { code, .. })
                if code == ProblemCode::TooManyUnderWay.as_str() && begun.elapsed() < PLACE_MAX =>
            {
                tokio::time::sleep(PLACE_PAUSE).await;
            }
            answer => return answer,
        }
    }
}

/// Carries out `operation` on each of the chosen exports. Prints the one answer with `one`, the results of many exports as
/// [`Results::print`] does.
pub(in crate::cli) async fn each<T: Serialize>(
    chosen: &Chosen,
    operation: impl AsyncFn(ExportName) -> Result<T, ClientError>,
    output: OutputArgs,
    one: impl FnOnce(&T) -> String,
    several: impl FnOnce(&[&T]) -> String,
) -> Result<(), CliError> {
    let mut results = requests(&chosen.names, operation).await;
    match (chosen.is_one, results.items.pop()) {
        (true, Some(Item::Done(done))) => answer(output.json, &done, one),
        (true, Some(Item::Failed { error, .. })) => {
            Err(ClientError::Refused { code: error.code, message: error.message }.into())
        }
        (_, last) => {
            results.items.extend(last);
            results.print(output, several)
        }
    }
}
