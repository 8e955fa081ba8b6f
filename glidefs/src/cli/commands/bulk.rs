//! One operation on many exports: batches or single requests to the daemon, progress on a terminal, a result for each export.
//!
//! Invariants: with `--json` standard output gets one array, in the order of the names, also when some exports fail; each failure
//! is a line of standard error; any failure fails the command, and none keeps the operation from another export.

use std::collections::HashMap;
use std::io::Write;

use futures_util::stream::{self, StreamExt};
use serde::Serialize;

use crate::api::wire::{
    BATCH_BYTES_MAX, BATCH_EXPORTS_MAX, BatchRequest, BatchResult, CreateRequest, Deleted, ErrorDetail,
    Export,
};
use crate::cli::args::bulk::Chosen;
use crate::cli::args::common::OutputArgs;
use crate::cli::error::CliError;
use crate::cli::output::{answer, emit};
use crate::cli::print;
use crate::cli::progress::TerminalBar;
use crate::client::{Client, ClientError};
use crate::router::ExportName;

/// The bar of a batch.
const TEMPLATE: &str = "{msg} {wide_bar} {pos}/{len}, {eta} left";

/// Single requests to the daemon under way at once.
const AT_ONCE: usize = 8;

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

    /// The names in the order of `names`, in parts that each make a body of a batch.
    fn parts(self, names: &[ExportName]) -> Vec<&[ExportName]> {
        // A request for one export has all that each of many exports adds to a body, apart from the length of the name.
        let without_name = |name| encoded_bytes(&self.request(std::slice::from_ref(name)));
        let Some(each) = names.first().map(without_name) else { return Vec::new() };
        let (mut parts, mut begin, mut bytes) = (Vec::new(), 0, 0);
        for (at, name) in names.iter().enumerate() {
            let added = each + name.as_str().len();
            if bytes + added > BATCH_BYTES_MAX || at - begin == BATCH_EXPORTS_MAX {
                parts.push(&names[begin..at]);
                (begin, bytes) = (at, 0);
            }
            bytes += added;
        }
        parts.push(&names[begin..]);
        parts
    }
}

/// Bytes of `request` as JSON.
fn encoded_bytes(request: &BatchRequest) -> usize {
    // Plain structs always serialise.
    serde_json::to_vec(request).map_or(0, |bytes| bytes.len())
}

/// The result for one export, as printed with `--json`.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(in crate::cli) enum Item<T> {
    Done(T),
    Failed { name: String, error: ErrorDetail },
}

impl<T> Item<T> {
    fn done(&self) -> Option<&T> {
        match self {
            Self::Done(done) => Some(done),
            Self::Failed { .. } => None,
        }
    }
}

/// The answer about one export of a batch.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Answer {
    Export(Box<Export>),
    Deleted(Deleted),
}

impl From<BatchResult> for Item<Answer> {
    fn from(result: BatchResult) -> Self {
        match result {
            BatchResult { name, error: Some(error), .. } => Self::Failed { name, error: error.into() },
            BatchResult { export: Some(export), .. } => Self::Done(Answer::Export(Box::new(export))),
            BatchResult { name, existed, .. } => {
                Self::Done(Answer::Deleted(Deleted { name, existed: existed == Some(true) }))
            }
        }
    }
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
        let missing = of - items.len();
        if broken.is_some() && missing > 0 && of > 1 {
            // Nothing can be done when standard error is closed.
            let _ = writeln!(std::io::stderr(), "glidefs: {}", CliError::NoResult { missing, of });
        }
        match broken {
            // Nothing was done as far as known: the error says all.
            Some(broken) if items.is_empty() => return Err(broken.into()),
            None if of == 0 => return nothing_to_do(output),
            _ => {}
        }
        let done: Vec<&T> = items.iter().filter_map(Item::done).collect();
        if output.json || !done.is_empty() {
            answer(output.json, &items, |_| text(&done))?;
        }
        let failed = items.len() - done.len();
        for item in &items {
            if let Item::Failed { name, error } = item {
                // Nothing can be done when standard error is closed.
                let _ = writeln!(std::io::stderr(), "glidefs: {name}: {}", error.message);
            }
        }
        match broken {
            Some(broken) => Err(broken.into()),
            None if missing > 0 => Err(CliError::NoResult { missing, of }),
            None if failed > 0 => Err(CliError::SomeFailed { failed, of }),
            None => Ok(()),
        }
    }
}

/// The end of a command for which standard input had no names.
fn nothing_to_do(output: OutputArgs) -> Result<(), CliError> {
    // Nothing can be done when standard error is closed.
    let _ = writeln!(std::io::stderr(), "glidefs: standard input has no names: nothing to do");
    if output.json { emit(b"[]\n") } else { Ok(()) }
}

/// Carries out `operation` on the exports of these names by batches, and prints the results.
///
/// # Errors
/// Those of [`Results::print`].
pub(in crate::cli) async fn run(
    client: &Client,
    operation: Operation<'_>,
    names: &[ExportName],
    output: OutputArgs,
) -> Result<(), CliError> {
    let mut results: HashMap<String, BatchResult> = HashMap::with_capacity(names.len());
    let sent = send(client, operation, names, &mut results).await;
    let items = names.iter().filter_map(|name| results.remove(name.as_str())).map(Item::from).collect();
    Results { items, of: names.len(), broken: sent.err() }.print(output, text)
}

async fn send(
    client: &Client,
    operation: Operation<'_>,
    names: &[ExportName],
    results: &mut HashMap<String, BatchResult>,
) -> Result<(), ClientError> {
    let bar = TerminalBar::new(TEMPLATE, names.len() as u64, names.len() > 1);
    // The first error, of a batch that does not keep the others from being sent.
    let mut broken = Ok(());
    for names in operation.parts(names) {
        let each = |result: BatchResult| {
            results.insert(result.name.clone(), result);
            bar.show(results.len() as u64);
        };
        match client.post_lines(operation.path(), &operation.request(names), each).await {
            Err(error) if !error.is_of_one_request() => return Err(error),
            Err(error) => broken = broken.and(Err(error)),
            Ok(()) => {}
        }
    }
    broken
}

/// The results as text for people.
fn text(answers: &[&Answer]) -> String {
    let exports = answers.iter().filter_map(|answer| match answer {
        Answer::Export(export) => Some(&**export),
        Answer::Deleted(_) => None,
    });
    let exports: Vec<Export> = exports.cloned().collect();
    if !exports.is_empty() {
        return print::exports(&exports);
    }
    let deleted = answers.iter().filter_map(|answer| match answer {
        Answer::Deleted(deleted) => Some(print::deleted(deleted)),
        Answer::Export(_) => None,
    });
    deleted.collect::<Vec<_>>().join("\n")
}

/// Sends the request of `operation` for each of `names`, several at a time.
pub(in crate::cli) async fn requests<T, F: Future<Output = Result<T, ClientError>>>(
    names: &[ExportName],
    operation: impl Fn(ExportName) -> F,
) -> Results<T> {
    let requests = names.iter().map(|name| {
        let request = operation(name.clone());
        async move { (name, request.await) }
    });
    let mut answers = std::pin::pin!(stream::iter(requests).buffered(AT_ONCE));
    let mut results = Results { items: Vec::new(), of: names.len(), broken: None };
    while let Some((name, answer)) = answers.next().await {
        results.items.push(match answer {
            Ok(done) => Item::Done(done),
            Err(ClientError::Refused { code, message }) => {
                Item::Failed { name: name.to_string(), error: ErrorDetail { code, message } }
            }
            Err(error) if error.is_of_one_request() => {
                let code = "no_answer".to_owned();
                Item::Failed {
                    name: name.to_string(),
                    error: ErrorDetail { code, message: error.to_string() },
                }
            }
            Err(broken) => {
                results.broken = Some(broken);
                break;
            }
        });
    }
    results
}

/// The one answer of `results` with `one`, the results of many exports as [`Results::print`] does.
pub(in crate::cli) fn print_chosen<T: Serialize>(
    chosen: &Chosen,
    mut results: Results<T>,
    output: OutputArgs,
    one: impl FnOnce(&T) -> String,
    several: impl FnOnce(&[&T]) -> String,
) -> Result<(), CliError> {
    match (chosen, results.items.pop()) {
        (Chosen::One(_), Some(Item::Done(done))) => answer(output.json, &done, one),
        (Chosen::One(_), Some(Item::Failed { error, .. })) => {
            Err(ClientError::Refused { code: error.code, message: error.message }.into())
        }
        (_, last) => {
            results.items.extend(last);
            results.print(output, several)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::{Durability, LimitsChange, RiskBound, Size};
    use crate::config::ByteSize;

    fn names(count: usize, length: usize) -> Vec<ExportName> {
        (0..count).map(|number| ExportName::new(&format!("{number:0length$}")).unwrap()).collect()
    }

    #[test]
    fn every_part_of_a_long_list_makes_a_body_that_the_daemon_takes() {
        let like = CreateRequest {
            name: String::new(),
            size: Size(ByteSize(u64::MAX >> 1)),
            durability: Durability::Bounded(RiskBound { max_bytes: u64::MAX, max_age_seconds: u64::MAX }),
            on_unreachable: None,
            limits: LimitsChange { read_iops: Some(Some(u64::MAX)), ..LimitsChange::default() },
            weight: Some(1000),
            queues: Some(128),
            queue_depth: Some(4096),
            detached: true,
        };
        for (operation, length, most) in [
            (Operation::Create(&like), 128, usize::MAX),
            (Operation::Create(&like), 6, usize::MAX),
            (Operation::Delete { force: true }, 128, 3),
            (Operation::Delete { force: true }, 6, 3),
        ] {
            let names = names(2 * BATCH_EXPORTS_MAX + 1, length);
            let parts = operation.parts(&names);
            assert_eq!(parts.concat(), names);
            assert!(parts.len() <= most, "{} parts", parts.len());
            for part in parts {
                assert!((1..=BATCH_EXPORTS_MAX).contains(&part.len()));
                assert!(encoded_bytes(&operation.request(part)) <= BATCH_BYTES_MAX);
            }
        }
        assert!(Operation::Attach { unconfirmed: false }.parts(&[]).is_empty());
    }
}
