//! The arguments of `glidefs top`.

use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::config::TimeSpan;

/// Shortest interval: the daemon looks at every export for each answer.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
const INTERVAL_MAX: Duration = Duration::from_mins(10);

/// How to show the exports.
#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct TopArgs {
    /// Time between two looks: 200ms to 10min
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub interval: TimeSpan,
    /// Column to sort by, largest figure first
    #[arg(long, value_enum, value_name = "COLUMN", default_value_t = SortKey::Iops)]
    pub sort: SortKey,
    /// Print the figures of one interval, and end
    #[arg(long)]
    pub once: bool,
    /// Print a line of JSON an interval, or one with --once
    #[arg(long)]
    pub json: bool,
}

/// A column to sort by, largest first; names from A on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum SortKey {
    /// Name of the export, from A on
    Name,
    /// Requests of all kinds a second
    Iops,
    /// Bytes read and written a second
    Bandwidth,
    /// Latency below which 99 of 100 requests stay
    Latency,
    /// Bytes that are not in the store
    Dirty,
    /// Age of the oldest data that is not in the store
    Risk,
    /// Time that requests wait for limits, index and log
    Waits,
}

fn interval(text: &str) -> Result<TimeSpan, String> {
    let span: TimeSpan = text.parse().map_err(|error| format!("{error}"))?;
    if (INTERVAL_MIN..=INTERVAL_MAX).contains(&span.0) {
        Ok(span)
    } else {
        Err("an interval is 200ms to 10min".into())
    }
}
