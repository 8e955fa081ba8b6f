//! One operation on many exports: batches sent to the daemon, progress on a terminal, a result for each export.
//!
//! Invariants: with `--json` standard output gets one array, in the order of the names, also when some exports fail; each failure
//! is a line of standard error; any failure fails the command.

use std::collections::HashMap;
use std::io::Write;

use serde::Serialize;

use crate::api::wire::{
    BATCH_EXPORTS_MAX, BatchRequest, BatchResult, CreateRequest, Deleted, ErrorDetail, Export,
};
use crate::cli::args::common::OutputArgs;
use crate::cli::client::{Client, ClientError};
use crate::cli::error::CliError;
use crate::cli::output::answer;
use crate::cli::print;
use crate::cli::progress::TerminalBar;
use crate::router::ExportName;

/// The bar of a batch.
const TEMPLATE: &str = "{msg} {wide_bar} {pos}/{len}, {eta} left";

/// One operation on many exports.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) enum Operation<'a> {
    /// Create exports as this one, but for the name.
    Create(&'a CreateRequest),
    Attach {
        unconfirmed: bool,
    },
    Detach {
        force: bool,
    },
    Delete {
        force: bool,
    },
}

impl Operation<'_> {
    fn path(self) -> &'static str {
        match self {
            Self::Attach { unconfirmed: true } => "/v1/batch?unconfirmed=true",
            Self::Detach { force: true } | Self::Delete { force: true } => "/v1/batch?force=true",
            _ => "/v1/batch",
        }
    }

    fn request(self, names: &[ExportName]) -> BatchRequest {
        let texts = || names.iter().map(ToString::to_string);
        match self {
            Self::Create(like) => {
                BatchRequest::Create(texts().map(|name| CreateRequest { name, ..like.clone() }).collect())
            }
            Self::Attach { .. } => BatchRequest::Attach(texts().collect()),
            Self::Detach { .. } => BatchRequest::Detach(texts().collect()),
            Self::Delete { .. } => BatchRequest::Delete(texts().collect()),
        }
    }
}

/// The result for one export, as printed with `--json`.
#[derive(Serialize)]
#[serde(untagged)]
enum Item<'a> {
    Export(&'a Export),
    Deleted(Deleted),
    Failed { name: &'a str, error: &'a ErrorDetail },
}

impl<'a> Item<'a> {
    fn of(result: &'a BatchResult) -> Self {
        match result {
            BatchResult { name, error: Some(error), .. } => Self::Failed { name, error },
            BatchResult { export: Some(export), .. } => Self::Export(export),
            BatchResult { name, existed, .. } => {
                Self::Deleted(Deleted { name: name.clone(), existed: *existed == Some(true) })
            }
        }
    }
}

/// Carries out `operation` on the exports of these names, and prints the results.
///
/// # Errors
/// [`CliError::SomeFailed`] when the operation failed for some exports, and the error of the connection when the daemon stopped
/// answering.
pub(in crate::cli) async fn run(
    client: &Client,
    operation: Operation<'_>,
    names: &[ExportName],
    output: OutputArgs,
) -> Result<(), CliError> {
    let mut results: HashMap<String, BatchResult> = HashMap::with_capacity(names.len());
    let sent = send(client, operation, names, &mut results).await;
    if sent.is_err() && results.is_empty() {
        // Nothing was done as far as known: the error says all.
        return sent.map_err(Into::into);
    }
    let results: Vec<BatchResult> = names.iter().filter_map(|name| results.remove(name.as_str())).collect();
    answer(output.json, &results.iter().map(Item::of).collect::<Vec<_>>(), |_| text(&results))?;
    let mut failed = 0_usize;
    for (result, error) in results.iter().filter_map(|result| Some((result, result.error.as_ref()?))) {
        failed += 1;
        // Nothing can be done when standard error is closed.
        let _ = writeln!(std::io::stderr(), "glidefs: {}: {}", result.name, error.message);
    }
    sent?;
    if results.len() < names.len() {
        return Err(CliError::NoResult { missing: names.len() - results.len(), of: names.len() });
    }
    if failed > 0 { Err(CliError::SomeFailed { failed, of: names.len() }) } else { Ok(()) }
}

async fn send(
    client: &Client,
    operation: Operation<'_>,
    names: &[ExportName],
    results: &mut HashMap<String, BatchResult>,
) -> Result<(), ClientError> {
    let bar = TerminalBar::new(TEMPLATE, names.len() as u64, names.len() > 1);
    for names in names.chunks(BATCH_EXPORTS_MAX) {
        let each = |result: BatchResult| {
            results.insert(result.name.clone(), result);
            bar.show(results.len() as u64);
        };
        client.post_lines(operation.path(), &operation.request(names), each).await?;
    }
    Ok(())
}

/// The results as text for people.
fn text(results: &[BatchResult]) -> String {
    let exports: Vec<Export> = results.iter().filter_map(|result| result.export.clone()).collect();
    if !exports.is_empty() {
        return print::exports(&exports);
    }
    let deleted = results.iter().filter_map(|result| match Item::of(result) {
        Item::Deleted(deleted) => Some(print::deleted(&deleted)),
        _ => None,
    });
    deleted.collect::<Vec<_>>().join("\n")
}
