//! Figures and rows of `glidefs top` as short text.

use super::rates::{Rates, Sample};
use super::view::View;
use crate::api::wire::Top;
use crate::cli::print;

/// The columns behind the name.
pub(super) const HEADS: [&str; 9] =
    ["IOPS", "READ/s", "WRITE/s", "MEAN", "P99", "FLY", "DIRTY", "RISK", "WAIT/s"];

/// `number` with three digits or so, and the unit for each step of `step`.
fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while unit + 1 < units.len() && number >= step * 0.9995 {
        number /= step;
        unit += 1;
    }
    let has_tenths = if unit > 0 { number < 99.95 } else { number < 9.95 && number.fract() != 0.0 };
    let places = usize::from(has_tenths);
    format!("{number:.places$}{}", units.get(unit).unwrap_or(&""))
}

fn known(number: Option<f64>, text: impl FnOnce(f64) -> String) -> String {
    number.map_or_else(|| "-".into(), text)
}

pub(super) fn count(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G"])
}

pub(super) fn bytes(number: f64) -> String {
    scaled(number, 1024.0, &["B", "K", "M", "G", "T", "P", "E"])
}

/// A time in nanoseconds, in the largest fitting unit.
fn time(nanos: f64) -> String {
    scaled(nanos, 1000.0, &["ns", "us", "ms", "s"])
}

pub(super) fn seconds(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7200 => format!("{}m", seconds / 60),
        7200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// The name, with the state of an export that does not serve, and with what its writes wait for.
pub(super) fn name(export: &Rates) -> String {
    let state = if export.state == "serving" { String::new() } else { format!(" ({})", export.state) };
    let wait = export.waiting_for.as_ref().map(|wait| format!(" (waits: {wait})")).unwrap_or_default();
    format!("{}{state}{wait}", export.name)
}

/// The figures of an export, in the order of [`HEADS`].
pub(super) fn cells(export: &Rates) -> [String; 9] {
    [
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

/// The lines about the host.
pub(super) fn host(now: &Top, sample: &Sample) -> [String; 3] {
    let (host, counts, cache, risk) = (&sample.host, &now.counts, &now.cache, &now.at_risk);
    let bytes_of = |number: u64| bytes(number as f64);
    let trouble = match (counts.failed, counts.changing) {
        (0, 0) => String::new(),
        (failed, changing) => format!(", {failed} failed, {changing} changing"),
    };
    let first = format!(
        "glidefs {}  up {}  {}exports {}: {} serving, {} detached{trouble}",
        now.version,
        seconds(now.uptime_nanoseconds / 1_000_000_000),
        if now.ready { "" } else { "starting  " },
        counts.total,
        counts.serving,
        counts.detached,
    );
    let second = format!(
        "reads {}/s {}/s  writes {}/s {}/s  flushes {}/s  errors {}/s",
        known(host.reads, count),
        known(host.read_bytes, bytes),
        known(host.writes, count),
        known(host.written_bytes, bytes),
        known(host.flushes, count),
        known(host.errors, count),
    );
    let third = format!(
        "cache {} of {}, dirty {}  at risk {}, oldest {}, {} exports",
        bytes_of(cache.used_bytes),
        bytes_of(cache.size_bytes),
        bytes_of(cache.dirty_bytes),
        bytes_of(risk.bytes),
        seconds(risk.seconds),
        risk.exports,
    );
    [first, second, third]
}

/// The alerts that hold, a line each.
pub(super) fn alerts(now: &Top) -> Vec<String> {
    let line = |alert: &crate::api::wire::Alert| {
        let exports =
            if alert.exports.is_empty() { String::new() } else { format!(": {}", alert.exports.join(", ")) };
        let more = match alert.exports_count.saturating_sub(alert.exports.len() as u64) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{} {}{exports}{more}", alert.severity, alert.name)
    };
    now.alerts.iter().map(line).collect()
}

/// A sample as text, for pipes and files.
pub(super) fn text(now: &Top, sample: &Sample, view: &View) -> String {
    let mut lines = host(now, sample).to_vec();
    lines.extend(alerts(now));
    let heads: Vec<&str> = [&["NAME"], HEADS.as_slice()].concat();
    let mut table = print::table(&heads, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let exports = view.exports(sample);
    for export in &exports {
        table.add_row([vec![name(export)], cells(export).to_vec()].concat());
    }
    if !exports.is_empty() {
        lines.push(table.trim_fmt());
    }
    lines.join("\n") + "\n"
}
