//! `glidefs trace`: where the time of slow requests went, as a table or as JSON.
//!
//! Owns the question to the daemon, once or each second, and the columns. Does not own the requests, which the daemon keeps.
//! Invariant: a text of the daemon reaches the terminal without control characters.

use std::fmt::Write as _;
use std::time::Duration;

use chrono::DateTime;

use super::args::TraceArgs;
use super::error::CliError;
use super::print::{self, emit};
use crate::api::wire::{Trace, TracedRequest};
use crate::client::Client;
use crate::observe::one_line;

/// Time between two questions with `--follow`.
const INTERVAL: Duration = Duration::from_secs(1);

/// Prints what the daemon has, and with `--follow` what comes, until a signal ends the program.
pub(super) async fn run(client: &Client, args: TraceArgs) -> Result<(), CliError> {
    if !args.json {
        emit(header().as_bytes())?;
    }
    let mut since = 0;
    loop {
        let trace: Trace = client.get(&path(&args, since)).await?;
        let mut text = String::new();
        for request in &trace.requests {
            if args.json {
                text.push_str(&serde_json::to_string(request)?);
                text.push('\n');
            } else {
                text.push_str(&line(request));
            }
        }
        emit(text.as_bytes())?;
        if !args.follow {
            return Ok(());
        }
        // A daemon that has started anew counts from 1 again.
        since = if trace.last < since { 0 } else { trace.last };
        tokio::time::sleep(INTERVAL).await;
    }
}

fn path(args: &TraceArgs, since: u64) -> String {
    let mut path = format!("/v1/trace?since={since}");
    // Names need no escaping. Writing to a string does not fail.
    if let Some(export) = &args.export {
        let _ = write!(path, "&export={export}");
    }
    if let Some(span) = &args.slower_than {
        let _ = write!(path, "&slower_than_nanoseconds={}", span.0.as_nanos());
    }
    path
}

fn header() -> String {
    columns(
        ["TIME (UTC)", "EXPORT", "REQUEST", "OFFSET", "SIZE"],
        &["TOTAL", "QUEUE", "WAIT", "COPY", "LOG", "SYNC", "STORE"].map(Into::into),
        "RESULT",
    )
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn line(request: &TracedRequest) -> String {
    let parts = &request.parts;
    let times = [
        request.total_nanoseconds,
        parts.queue,
        parts.limit.saturating_add(parts.brake).saturating_add(parts.slot),
        parts.copy,
        parts.log,
        parts.sync,
        parts.store,
    ];
    let fua = if request.fua { " fua" } else { "" };
    let (offset, size) = match request.length_bytes {
        0 => ("-".into(), "-".into()),
        bytes => (request.offset_bytes.to_string(), print::bytes(bytes)),
    };
    let moment = i64::try_from(request.unix_nanoseconds).unwrap_or(i64::MAX);
    columns(
        [
            &DateTime::from_timestamp_nanos(moment).format("%H:%M:%S%.3f").to_string(),
            &one_line(&request.export),
            &one_line(&format!("{}{fua}", request.operation)),
            &offset,
            &size,
        ],
        &times.map(|nanos| if nanos == 0 { "-".into() } else { print::time(nanos as f64) }),
        &one_line(&request.result),
    )
}

fn columns([time, export, operation, offset, size]: [&str; 5], times: &[String; 7], result: &str) -> String {
    let mut line = format!("{time:<12} {export:<16} {operation:<12} {offset:>14} {size:>9}");
    for time in times {
        let _ = write!(line, " {time:>8}");
    }
    format!("{line}  {result}\n")
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::api::wire::TraceParts;
    use crate::cli::args::{Cli, Command};

    #[test]
    fn the_arguments_are_the_parameters_of_the_question() {
        for (text, expected) in [
            ("", "/v1/trace?since=7"),
            ("vm-1 --follow --json", "/v1/trace?since=7&export=vm-1"),
            ("--slower-than 10ms", "/v1/trace?since=7&slower_than_nanoseconds=10000000"),
        ] {
            let cli = Cli::try_parse_from(["glidefs", "trace"].into_iter().chain(text.split_whitespace()));
            let Command::Trace(args) = cli.unwrap().command else { panic!("another command") };
            assert_eq!(path(&args, 7), expected, "{text}");
        }
        assert!(Cli::try_parse_from(["glidefs", "trace", "bad/name"]).is_err());
    }

    #[test]
    fn a_line_has_its_figures_under_the_names_of_the_columns() {
        let traced = TracedRequest {
            unix_nanoseconds: 1_700_000_000_123_456_789,
            export: "vm-1".into(),
            operation: "write".into(),
            offset_bytes: 8192,
            length_bytes: 4096,
            fua: true,
            result: "ok".into(),
            total_nanoseconds: 123_400_000,
            parts: TraceParts { queue: 1_500, brake: 40, slot: 2, log: 12_340, ..TraceParts::default() },
            ..TracedRequest::default()
        };
        let (header, line) = (header(), line(&traced));
        let ends = |text: &str, word: &str| {
            let at = text.find(word).unwrap_or_else(|| panic!("{word} in {text}"));
            text[..at + word.len()].chars().count()
        };
        assert!(line.starts_with("22:13:20.123 vm-1 "), "{line}");
        for (head, figure) in [
            ("OFFSET", "8192"),
            ("SIZE", "4 KiB"),
            ("TOTAL", "123ms"),
            ("QUEUE", "1.5us"),
            ("WAIT", "42ns"),
            ("LOG", "12.3us"),
        ] {
            assert_eq!(ends(&header, head), ends(&line, figure), "{head}\n{header}{line}");
        }
        assert!(line.contains("write fua") && line.ends_with("ok\n"), "{line}");
    }

    #[test]
    fn a_text_of_the_daemon_cannot_command_the_terminal() {
        let traced = TracedRequest {
            export: "vm\u{7}\u{202e}".into(),
            operation: "\u{1b}[2J".into(),
            result: "ok\r".into(),
            ..TracedRequest::default()
        };
        let line = line(&traced);
        assert_eq!(line.chars().filter(|c| c.is_control()).count(), 1, "{line:?}");
        assert!(!line.contains('\u{202e}'), "{line:?}");
    }
}
