//! `glidefs top`: the exports that do most, as a table that is printed again each interval, or as JSON.
//!
//! Owns the table. Does not own the arithmetic (`rates`). Invariants: the daemon is asked once an interval; nothing is changed in the
//! daemon; the mode of the terminal is left alone, so Ctrl-C ends the command and nothing has to be given back.

#![allow(clippy::cast_precision_loss, reason = "figures for people, not for arithmetic that must be exact")]

mod rates;

use std::cmp::Ordering;
use std::fmt::Write;
use std::io::IsTerminal;

use tokio::time::{Instant, sleep_until};

use self::rates::{Rates, Sample};
use super::args::top::{SortKey, TopArgs};
use super::error::CliError;
use super::print::{self, emit_after, scaled, time};
use crate::api::wire::{Top, TopStore};
use crate::client::Client;

/// Goes to the first line of the terminal, and clears everything from there on.
const CLEAR: &str = "\x1b[H\x1b[J";
const HEADS: [&str; 10] =
    ["NAME", "IOPS", "READ/s", "WRITE/s", "MEAN", "P99", "FLY", "DIRTY", "RISK", "WAIT/s"];

/// Prints a table or a line of JSON an interval; with `--once` one.
pub(super) async fn run(client: &Client, args: TopArgs) -> Result<(), CliError> {
    let mut before: Top = client.get("/v1/top").await?;
    let mut next = Instant::now();
    loop {
        next = Instant::now().max(next + args.interval.0);
        sleep_until(next).await;
        let now: Top = client.get("/v1/top").await?;
        let mut sample = Sample::of(&before, &now);
        sample.exports.sort_by(|one, other| order(args.sort, one, other));
        let (control, text) = match terminal_size::terminal_size().filter(|_| std::io::stdout().is_terminal())
        {
            _ if args.json => ("", serde_json::to_string(&sample)? + "\n"),
            Some((width, height)) if !args.once => {
                (CLEAR, fitted(&text(&now, &sample), width.0.into(), height.0.into()))
            }
            _ => ("", text(&now, &sample) + "\n"),
        };
        emit_after(control, text.as_bytes())?;
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

/// Largest figures first, unknown ones last.
fn order(sort: SortKey, one: &Rates, other: &Rates) -> Ordering {
    let figure = |export: &Rates| match sort {
        SortKey::Name => None,
        SortKey::Iops => export.iops,
        SortKey::Bandwidth => Some(export.read_bytes? + export.written_bytes?),
        SortKey::Latency => export.p99_nanoseconds,
        SortKey::Dirty => Some(export.dirty_bytes as f64),
        SortKey::Risk => Some(export.at_risk_seconds as f64),
        SortKey::Waits => export.wait_nanoseconds,
    };
    let by_figure = figure(other).partial_cmp(&figure(one)).unwrap_or(Ordering::Equal);
    by_figure.then_with(|| one.name.cmp(&other.name))
}

/// The part of `text` that has room on a terminal.
fn fitted(text: &str, width: usize, height: usize) -> String {
    let lines = text.lines().take(height.saturating_sub(1));
    lines.flat_map(|line| line.chars().take(width).chain(['\n'])).collect()
}

/// Three lines about the host, one about its store, its warnings, and a line for each export.
fn text(now: &Top, sample: &Sample) -> String {
    let (host, counts, cache, risk) = (&sample.host, &now.counts, &now.cache, &now.at_risk);
    let size = |number: u64| bytes(number as f64);
    let mut text = format!(
        "glidefs {}  up {}  {}exports {}: {} serving, {} detached, {} failed\n\
         reads {}/s {}/s  writes {}/s {}/s  flushes {}/s  errors {}/s\n\
         cache {} of {}, dirty {}  at risk {}, oldest {}, {} exports\n",
        now.version,
        seconds(now.uptime_nanoseconds / 1_000_000_000),
        if now.ready { "" } else { "starting  " },
        counts.total,
        counts.serving,
        counts.detached,
        counts.failed,
        known(host.reads, count),
        known(host.read_bytes, bytes),
        known(host.writes, count),
        known(host.written_bytes, bytes),
        known(host.flushes, count),
        known(host.errors, count),
        size(cache.used_bytes),
        size(cache.size_bytes),
        size(cache.dirty_bytes),
        size(risk.bytes),
        seconds(risk.seconds),
        risk.exports,
    );
    if let Some(TopStore { status, .. }) = &now.store {
        let _ = writeln!(text, "store {} {}  {}", status.state, seconds(status.since_seconds), status.url);
    }
    for warning in &now.warnings {
        // Writing to a string does not fail.
        let _ = writeln!(text, "warning: {warning}");
    }
    let mut table = print::table(&HEADS, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    for export in &sample.exports {
        table.add_row(row(export));
    }
    text + &table.trim_fmt()
}

/// The figures of an export below [`HEADS`]; its name with the state if it does not serve, and with what its writes wait for.
fn row(export: &Rates) -> [String; 10] {
    let mut name = export.name.clone();
    if export.state != "serving" {
        name = format!("{name} ({})", export.state);
    }
    if let Some(wait) = &export.waiting_for {
        name = format!("{name} (waits: {wait})");
    }
    [
        name,
        known(export.iops, count),
        known(export.read_bytes, bytes),
        known(export.written_bytes, bytes),
        known(export.mean_nanoseconds, time),
        known(export.p99_nanoseconds, time),
        export.in_flight.to_string(),
        bytes(export.dirty_bytes as f64),
        seconds(export.at_risk_seconds),
        known(export.wait_nanoseconds, |nanos| if nanos == 0.0 { "0".into() } else { time(nanos) }),
    ]
}

fn known(number: Option<f64>, text: impl FnOnce(f64) -> String) -> String {
    number.map_or_else(|| "-".into(), text)
}

fn count(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G"])
}

fn bytes(number: f64) -> String {
    scaled(number, 1024.0, &["B", "K", "M", "G", "T", "P", "E"])
}

fn seconds(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::{Condition, StoreState, TopExport, TopIo, TopRequests};

    fn top(seconds: u64, exports: &[(&str, u64)]) -> Top {
        let export = |(name, operations): &(&str, u64)| {
            let read = TopRequests {
                operations: *operations,
                bytes: operations * 4096,
                latency_nanoseconds: operations * 50,
                latency: vec![0, *operations],
                ..TopRequests::default()
            };
            let io = TopIo { id: 1, read, ..TopIo::default() };
            TopExport { name: (*name).into(), state: "serving".into(), io: Some(io), ..TopExport::default() }
        };
        let away = StoreState {
            url: "s3://b".into(),
            state: Condition::NotFound,
            since_seconds: 180,
            error: Some("moved".into()),
        };
        Top {
            instance: "first".into(),
            uptime_nanoseconds: seconds * 1_000_000_000,
            latency_bounds_nanoseconds: vec![10, 100, 1000],
            exports: exports.iter().map(export).collect(),
            warnings: vec!["the store cannot be used: moved".into()],
            store: Some(TopStore { status: away, ..TopStore::default() }),
            ..Top::default()
        }
    }

    #[test]
    fn a_table_has_warnings_and_a_line_of_eighty_columns_for_each_export() {
        let now = top(12, &[("db-1", 300), ("web-1", 100)]);
        let sample = Sample::of(&top(10, &[("db-1", 100), ("web-1", 100)]), &now);
        let text = text(&now, &sample);
        let row: Vec<_> = text
            .lines()
            .find(|line| line.trim_start().starts_with("db-1"))
            .unwrap()
            .split_whitespace()
            .collect();
        assert_eq!(row, ["db-1", "100", "400K", "0B", "50ns", "99ns", "0", "0B", "0s", "0"]);
        assert!(text.contains("warning: the store cannot be used: moved\n"), "{text}");
        assert!(text.contains("\nstore not_found 3m  s3://b\n"), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        let small = fitted(&text, 20, 5);
        assert!(small.lines().count() == 4 && small.lines().all(|line| line.len() <= 20), "{small}");
    }

    #[test]
    fn exports_are_sorted_by_the_column_and_unknown_figures_come_last() {
        let rates = |name: &str, iops| Rates { name: name.into(), iops, ..Rates::default() };
        let mut exports =
            [rates("b", Some(1.0)), rates("d", None), rates("a", Some(5.0)), rates("c", Some(1.0))];
        let mut sorted = |sort| {
            exports.sort_by(|one, other| order(sort, one, other));
            exports.iter().map(|export| export.name.clone()).collect::<String>()
        };
        assert_eq!(sorted(SortKey::Iops), "abcd");
        assert_eq!(sorted(SortKey::Bandwidth), "abcd");
        assert_eq!(sorted(SortKey::Name), "abcd");
    }
}
