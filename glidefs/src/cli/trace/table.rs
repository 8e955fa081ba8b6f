//! The table of `glidefs trace`: one line a request, in columns of fixed width.
//!
//! Invariant: a text of the daemon reaches the terminal without control characters.

use std::fmt::Write as _;

use chrono::DateTime;

use crate::api::wire::{TraceLine, TracedRequest, TracedStoreRequest};
use crate::cli::print;

/// The names of the columns.
pub(super) fn header() -> String {
    line_of(["TIME (UTC)", "EXPORT", "REQUEST", "OFFSET", "SIZE", "TOTAL"], &HEADS.map(Into::into), "RESULT")
}

const HEADS: [&str; 7] = ["QUEUE", "WAIT", "COPY", "LOG", "SYNC", "STORE", "REST"];

/// The line of a request; nothing for other lines.
pub(super) fn line(line: &TraceLine) -> String {
    match line {
        TraceLine::Request(traced) => request(traced),
        TraceLine::Store(traced) => store(traced),
        TraceLine::Counts(_) | TraceLine::End(_) => String::new(),
    }
}

fn request(traced: &TracedRequest) -> String {
    let parts = &traced.parts;
    let sum = |parts: &[u64]| parts.iter().fold(0_u64, |sum, part| sum.saturating_add(*part));
    let columns = [
        parts.queue,
        sum(&[parts.limit, parts.brake, parts.slot]),
        parts.copy,
        sum(&[parts.batch, parts.log]),
        parts.sync,
        parts.store,
        sum(&[parts.reply, parts.other]),
    ];
    let has_range = traced.length_bytes > 0;
    let operation = if traced.fua { format!("{} fua", traced.operation) } else { traced.operation.clone() };
    line_of(
        [
            &time_of_day(traced.unix_nanoseconds),
            &traced.export,
            &operation,
            &if has_range { traced.offset_bytes.to_string() } else { "-".into() },
            &if has_range { print::bytes(traced.length_bytes) } else { "-".into() },
            &span(traced.total_nanoseconds),
        ],
        &columns.map(|nanos| if nanos == 0 { "-".into() } else { span(nanos) }),
        &traced.result,
    )
}

fn store(traced: &TracedStoreRequest) -> String {
    let mut rest = traced.result.clone();
    if traced.tries != 1 {
        // Writing to a string does not fail.
        let _ = write!(rest, " after {} tries", traced.tries);
    }
    if traced.waited_nanoseconds > 0 {
        let _ = write!(rest, ", waited {}", span(traced.waited_nanoseconds));
    }
    let start = columns([
        &time_of_day(traced.unix_nanoseconds),
        traced.export.as_deref().unwrap_or("-"),
        &format!("store {}", traced.operation),
        "-",
        &print::bytes(traced.bytes),
        &span(traced.total_nanoseconds),
    ]);
    format!("{start}  {}  {}\n", plain(&traced.key), plain(&rest))
}

fn columns([time, export, operation, offset, size, total]: [&str; 6]) -> String {
    let (export, operation) = (plain(export), plain(operation));
    format!("{time:<12} {export:<16} {operation:<12} {offset:>14} {size:>9} {total:>8}")
}

fn line_of(first: [&str; 6], parts: &[String; 7], result: &str) -> String {
    let mut line = columns(first);
    for part in parts {
        let _ = write!(line, " {part:>8}");
    }
    format!("{line}  {}\n", plain(result))
}

/// The time of day, to the millisecond.
fn time_of_day(unix_nanos: u64) -> String {
    let moment = DateTime::from_timestamp_nanos(i64::try_from(unix_nanos).unwrap_or(i64::MAX));
    moment.format("%H:%M:%S%.3f").to_string()
}

/// A length of time in three digits or four.
#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
pub(super) fn span(nanos: u64) -> String {
    let shown = |value: f64, unit: &str| {
        // What would be rounded to four digits has no decimal.
        if value < 9.995 {
            format!("{value:.2}{unit}")
        } else if value < 99.95 {
            format!("{value:.1}{unit}")
        } else {
            format!("{value:.0}{unit}")
        }
    };
    match nanos {
        0..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => shown(nanos as f64 / 1e3, "µs"),
        1_000_000..1_000_000_000 => shown(nanos as f64 / 1e6, "ms"),
        _ => shown(nanos as f64 / 1e9, "s"),
    }
}

/// `text` without characters that a terminal obeys.
pub(super) fn plain(text: &str) -> String {
    // Marks that change the direction of the text behind them are no control characters by name.
    let is_obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if is_obeyed(c) { '\u{fffd}' } else { c }).collect()
}
