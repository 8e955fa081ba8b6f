//! `glidefs trace`: requests live, as a table or as JSON.
//!
//! Owns the loop from the first line to the last, and the summary at the end. Does not own the lines of the table (`table`). Invariant:
//! however the trace ends, losses are told on standard error.

mod table;

use std::fmt::Write as _;
use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::signal::unix::{SignalKind, signal};

use super::args::trace::TraceArgs;
use super::error::CliError;
use super::print::emit;
use crate::api::wire::{TraceCounts, TraceKind, TraceLine};
use crate::client::Client;

/// A trace that is being printed, and its counts.
struct Shown {
    is_json: bool,
    /// Number of requests that were shown so far.
    requests: u64,
    count: Option<u64>,
    counts: TraceCounts,
    /// Whether the daemon ended the trace before the time asked for.
    is_cut: bool,
}

/// Shows requests until there are enough, the time is over, a signal comes or the daemon ends.
pub(super) async fn run(client: &Client, args: TraceArgs) -> Result<(), CliError> {
    let mut shown = Shown {
        is_json: args.json,
        requests: 0,
        count: args.count,
        counts: TraceCounts::default(),
        is_cut: false,
    };
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CliError::Terminal)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(CliError::Terminal)?;
    if !args.json {
        emit(table::header().as_bytes())?;
    }
    let path = path(&args);
    let read = {
        let reading = client.get_lines(&path, async |line| shown.line(&line));
        tokio::select! {
            read = reading => read.map(drop),
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    };
    // Also after an error: losses are told.
    let ended = shown.end();
    read.and(ended)
}

/// The request of a trace.
fn path(args: &TraceArgs) -> String {
    let kind = match (args.requests, args.store) {
        (true, false) => TraceKind::Requests,
        (false, true) => TraceKind::Store,
        _ => TraceKind::All,
    };
    let kind = match kind {
        TraceKind::Requests => "requests",
        TraceKind::Store => "store",
        TraceKind::All => "all",
    };
    let mut path = format!("/v1/trace?kind={kind}");
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a string does not fail.
            let _ = write!(path, "&{name}={value}");
        }
    };
    // Names need no escaping.
    add("export", args.export.as_ref().map(ToString::to_string));
    add("one_in", args.one_in.map(|one_in| one_in.to_string()));
    add("slower_than_nanoseconds", args.slower_than.as_ref().map(|span| span.0.as_nanos().to_string()));
    add("seconds", args.time.as_ref().map(|span| span.0.as_secs().to_string()));
    path
}

impl Shown {
    /// Takes a line of the daemon.
    fn line(&mut self, line: &TraceLine) -> Result<ControlFlow<()>, CliError> {
        match line {
            TraceLine::Counts(counts) => self.counts = *counts,
            TraceLine::End(end) => self.is_cut = end.reason != "time",
            TraceLine::Request(_) | TraceLine::Store(_) => self.requests += 1,
        }
        let text = if self.is_json { serde_json::to_string(line)? + "\n" } else { table::line(line) };
        emit(text.as_bytes())?;
        // Nothing to print is no write that would fail. Counts come at times also when nothing happens.
        if text.is_empty() && is_closed(std::io::stdout().as_fd()) {
            return Err(CliError::Output(std::io::ErrorKind::BrokenPipe.into()));
        }
        let is_enough = self.count.is_some_and(|count| self.requests >= count);
        Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// Ends the trace: tells losses, and whether the daemon went away.
    fn end(&self) -> Result<(), CliError> {
        if let Some(text) = losses(&self.counts) {
            // Nothing can be done when standard error is closed.
            let _ = writeln!(std::io::stderr(), "glidefs: {text}");
        }
        if self.is_cut { Err(CliError::TraceEnded) } else { Ok(()) }
    }
}

/// Whether nobody reads the pipe `out` any more.
fn is_closed(out: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(out, PollFlags::empty())];
    let is_told = poll(&mut polled, PollTimeout::ZERO).is_ok_and(|found| found > 0);
    is_told && polled.iter().any(|fd| fd.revents().is_some_and(|events| events.contains(PollFlags::POLLERR)))
}

/// What is said about requests that were not shown although they were chosen.
fn losses(counts: &TraceCounts) -> Option<String> {
    let TraceCounts { sampled, not_traced, dropped, .. } = *counts;
    if not_traced == 0 && dropped == 0 {
        return None;
    }
    let chosen = sampled.saturating_add(not_traced);
    let mut text = format!("of {chosen} requests that were chosen, ");
    let many =
        (not_traced > 0).then(|| format!("{not_traced} were not traced, as too many were at the same time"));
    let slow = (dropped > 0)
        .then(|| format!("{dropped} traces were dropped, as they came faster than they were read"));
    text.push_str(&many.into_iter().chain(slow).collect::<Vec<_>>().join(", and "));
    text.push_str(": use a larger --one-in, which traces fewer");
    Some(text)
}

#[cfg(test)]
mod tests;
