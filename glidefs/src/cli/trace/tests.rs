//! What `glidefs trace` prints and asks for.

use clap::Parser as _;

use super::*;
use crate::api::wire::{TraceEnd, TraceParts, TracedRequest, TracedStoreRequest};
use crate::cli::args::{Cli, Command};

fn args(text: &str) -> TraceArgs {
    let cli = Cli::try_parse_from(["glidefs", "trace"].into_iter().chain(text.split_whitespace()));
    let Command::Trace(args) = cli.unwrap().command else { panic!("another command") };
    args
}

#[test]
fn the_arguments_are_the_parameters_of_the_request() {
    for (text, expected) in [
        ("", "/v1/trace?kind=all"),
        ("vm-1 --store", "/v1/trace?kind=store&export=vm-1"),
        ("--requests --store", "/v1/trace?kind=all"),
        (
            "--requests --one-in 10 --slower-than 10ms --for 1min",
            "/v1/trace?kind=requests&one_in=10&slower_than_nanoseconds=10000000&seconds=60",
        ),
        // The name of the option in releases before.
        ("--rate 3", "/v1/trace?kind=all&one_in=3"),
    ] {
        assert_eq!(path(&args(text)), expected, "{text}");
    }
    for refused in ["--one-in 0", "--count 0", "--for 2h", "--for 1ms", "--for 1500ms", "bad/name"] {
        let words = ["glidefs", "trace"].into_iter().chain(refused.split(' '));
        assert!(Cli::try_parse_from(words).is_err(), "{refused}");
    }
}

#[test]
fn a_line_has_its_figures_under_the_names_of_the_columns() {
    let parts = TraceParts {
        queue: 1_500,
        batch: 2_000,
        log: 10_340,
        store: 123_400_000,
        reply: 30,
        ..TraceParts::default()
    };
    let traced = TracedRequest {
        unix_nanoseconds: 1_700_000_000_123_456_789,
        export: "vm-1".into(),
        operation: "write".into(),
        offset_bytes: 8192,
        length_bytes: 4096,
        fua: true,
        result: "ok".into(),
        total_nanoseconds: parts.sum(),
        parts,
        ..TracedRequest::default()
    };
    let (header, line) = (table::header(), table::line(&TraceLine::Request(traced)));
    let ends = |text: &str, word: &str| {
        let at = text.find(word).unwrap_or_else(|| panic!("{word} in {text}"));
        text[..at + word.len()].chars().count()
    };
    assert!(line.starts_with("22:13:20.123 vm-1 "), "{line}");
    for (head, figure) in [
        ("OFFSET", "8192"),
        ("SIZE", "4 KiB"),
        ("TOTAL", "123ms"),
        ("QUEUE", "1.50µs"),
        ("LOG", "12.3µs"),
        ("REST", "30ns"),
    ] {
        assert_eq!(ends(&header, head), ends(&line, figure), "{head}\n{header}{line}");
    }
    assert!(line.contains("write fua") && line.ends_with("ok\n"), "{line}");
}

#[test]
fn spans_have_three_digits_whatever_their_length() {
    for (nanos, expected) in [
        (0, "0ns"),
        (999, "999ns"),
        (1_000, "1.00µs"),
        (9_994, "9.99µs"),
        (9_996, "10.0µs"),
        (99_960, "100µs"),
        (999_999, "1000µs"),
        (4_560_000, "4.56ms"),
        (12_000_000_000, "12.0s"),
    ] {
        assert_eq!(table::span(nanos), expected);
    }
}

#[test]
fn a_text_of_the_daemon_cannot_command_the_terminal() {
    let traced = TracedStoreRequest {
        key: "volumes/\u{1b}[2Jx\u{202e}/packs\n".into(),
        export: Some("vm\u{7}".into()),
        operation: "put".into(),
        result: "ok\r".into(),
        tries: 3,
        ..TracedStoreRequest::default()
    };
    let line = table::line(&TraceLine::Store(traced));
    assert_eq!(line.chars().filter(|c| c.is_control()).count(), 1, "{line:?}");
    assert!(line.ends_with("after 3 tries\n") && !line.contains('\u{202e}'), "{line:?}");
}

#[test]
fn a_trace_ends_with_its_count_and_fails_where_the_daemon_stops_before() {
    let mut shown =
        Shown { is_json: true, requests: 0, count: Some(2), counts: TraceCounts::default(), is_cut: false };
    let request = || TraceLine::Request(TracedRequest::default());
    assert!(shown.line(&request()).unwrap().is_continue());
    assert!(shown.line(&TraceLine::Counts(TraceCounts::default())).unwrap().is_continue());
    assert!(shown.line(&request()).unwrap().is_break());
    assert!(shown.end().is_ok());
    let end = |reason: &str| TraceLine::End(TraceEnd { reason: reason.into() });
    let _ = shown.line(&end("time")).unwrap();
    assert!(shown.end().is_ok());
    let _ = shown.line(&end("stopping")).unwrap();
    assert!(matches!(shown.end(), Err(CliError::TraceEnded)));
}

#[test]
fn losses_are_told_and_no_losses_are_not() {
    assert_eq!(losses(&TraceCounts { sampled: 5, ..TraceCounts::default() }), None);
    let text =
        losses(&TraceCounts { sampled: 5, not_traced: 2, dropped: 1, ..TraceCounts::default() }).unwrap();
    assert!(
        text.contains("of 7 requests")
            && text.contains("2 were not traced")
            && text.contains("1 traces were dropped"),
        "{text}"
    );
}

#[test]
fn a_pipe_without_a_reader_is_closed() {
    let (reader, writer) = std::io::pipe().unwrap();
    assert!(!is_closed(writer.as_fd()));
    drop(reader);
    assert!(is_closed(writer.as_fd()));
}
