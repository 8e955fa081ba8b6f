//! Answers on standard output: JSON, or text for people.
//!
//! Invariant: with `--json` standard output gets JSON and nothing else.

use std::fmt::Write;
use std::io::{IsTerminal, Write as _};
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::error::CliError;
use crate::api::wire::{
    AtRisk, Bound, Deleted, DeletedExport, Drained, Durability, Export, Flushed, GcReport, Limits, Memory,
    Snapshot, Status, StoredVolume, Upgrade,
};
use crate::config::TimeSpan;
use crate::observe::printable;

/// Prints `text` without characters that a terminal obeys: much of it is a daemon's.
pub(super) fn emit(text: &[u8]) -> Result<(), CliError> {
    emit_after("", text)
}

/// As [`emit`], behind `control` for the terminal.
pub(super) fn emit_after(control: &str, text: &[u8]) -> Result<(), CliError> {
    let text = control.to_owned() + &printable(&String::from_utf8_lossy(text));
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Prints `text` to standard error, without characters that a terminal obeys.
pub(super) fn complain(text: &str) {
    // Nothing can be done when standard error is closed.
    let _ = writeln!(std::io::stderr(), "{}", printable(text));
}

pub(super) fn answer<T: Serialize>(
    json: bool,
    value: &T,
    text: impl FnOnce(&T) -> String,
) -> Result<(), CliError> {
    let mut text = if json { serde_json::to_string_pretty(value)? } else { text(value) };
    text.push('\n');
    emit(text.as_bytes())
}

/// How far a command is, in one line of a terminal that is written again and again; nothing where standard error is no terminal. A dropped
/// line leaves nothing there.
pub(super) struct ProgressLine {
    is_shown: bool,
}

impl ProgressLine {
    pub fn new(is_wanted: bool) -> Self {
        Self { is_shown: is_wanted && std::io::stderr().is_terminal() }
    }

    /// Shows `text` in place of the text before.
    pub fn show(&self, text: &str) {
        if self.is_shown {
            eprint!("\r\x1b[K{text}");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.show("");
    }
}

/// A number of bytes in the largest fitting unit, with one decimal.
pub(super) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    while unit + 1 < UNITS.len() && bytes >> (10 * (unit + 1)) > 0 {
        unit += 1;
    }
    let whole = bytes >> (10 * unit);
    let tenth = if unit == 0 { 0 } else { ((bytes >> (10 * (unit - 1))) & 1023) * 10 / 1024 };
    if tenth == 0 { format!("{whole} {}", UNITS[unit]) } else { format!("{whole}.{tenth} {}", UNITS[unit]) }
}

/// `number` with three digits or so, and the unit for each step of `step`.
pub(super) fn scaled(mut number: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while unit + 1 < units.len() && number >= step * 0.9995 {
        number /= step;
        unit += 1;
    }
    let has_tenths = if unit > 0 { number < 99.95 } else { number < 9.95 && number.fract() != 0.0 };
    let places = usize::from(has_tenths);
    format!("{number:.places$}{}", units[unit])
}

/// A length of time in the largest fitting unit.
pub(super) fn time(nanos: f64) -> String {
    scaled(nanos, 1000.0, &["ns", "us", "ms", "s"])
}

/// A table without lines, the columns `right` aligned to the right.
pub(super) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(header.iter().copied());
    for &column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// `items` in a table, a row each; or the text `none`.
fn list<T, const N: usize>(
    items: &[T],
    none: &str,
    header: [&str; N],
    right: &[usize],
    row: impl Fn(&T) -> [String; N],
) -> String {
    if items.is_empty() {
        return none.into();
    }
    let mut table = table(&header, right);
    table.add_rows(items.iter().map(row));
    table.trim_fmt()
}

/// A time of the API, to the second.
fn second(time: &str) -> String {
    time.split('.').next().unwrap_or_default().replace('T', " ")
}

/// All exports, a line each.
pub(super) fn exports(exports: &[Export]) -> String {
    let none = "no exports: `glidefs export create NAME --size 10GiB` makes one";
    list(exports, none, ["NAME", "SIZE", "DEVICE", "STATE", "CREATED", "REASON"], &[1], |export| {
        let device = export.device.clone().unwrap_or_else(|| "-".into());
        let created = second(&export.created);
        // `show` has the rest, with the ways out.
        let reason =
            export.reason.as_deref().and_then(|reason| reason.split(". ").next()).unwrap_or_default();
        let (size, state) = (bytes(export.size_bytes), export.state.clone());
        [export.name.clone(), size, device, state, created, reason.into()]
    })
}

/// What stands in the place of a device.
fn no_device(export: &Export) -> String {
    match export.state.as_str() {
        "detached" => format!("none: `glidefs export attach {}` makes one", export.name),
        _ => "-".into(),
    }
}

/// One export, a line each field that there is.
pub(super) fn export(export: &Export) -> String {
    let text = |text: &str| Some(text.to_owned());
    let damaged_bytes = export.damaged_bytes.filter(|bytes| *bytes > 0);
    let damaged =
        |damaged| format!("{}, which fail until they are written again or discarded", bytes(damaged));
    let unreleased = |why| format!("{why}; another host needs --take-over to open it");
    let at_risk = |risk: &AtRisk| {
        let reason = risk.reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
        format!("{}, for {} s{reason}", bytes(risk.bytes), risk.seconds)
    };
    let fields = [
        ("name", text(&export.name)),
        ("size", Some(format!("{} ({} bytes)", bytes(export.size_bytes), export.size_bytes))),
        ("device", Some(export.device.clone().unwrap_or_else(|| no_device(export)))),
        ("path", export.path.clone()),
        ("no path", export.no_path.clone()),
        ("state", text(&export.state)),
        ("durability", Some(durability(export.durability))),
        ("assumed", export.assumed.clone()),
        ("on unreachable", Some(export.on_unreachable.to_string())),
        ("limits", export.limits.as_ref().map(limits_of)),
        ("weight", Some(export.weight.to_string())),
        ("reason", export.reason.clone()),
        ("not released", export.unreleased.as_ref().map(unreleased)),
        ("damaged", damaged_bytes.map(damaged)),
        ("not in the store", export.at_risk.as_ref().map(at_risk)),
        ("last pause", export.last_pause_seconds.map(|seconds| format!("{seconds:.3} s"))),
        ("writes wait for", export.waiting_for.clone()),
        ("queues", Some(format!("{} of depth {}", export.queues, export.queue_depth))),
        ("id", Some(export.id.to_string())),
        ("created", text(&export.created)),
    ];
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in fields.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        table.add_row([name, &value]);
    }
    table.trim_fmt()
}

/// The limits in words: "5000 reads/s, 100 MiB/s written, bursts of 100ms".
fn limits_of(limits: &Limits) -> String {
    let mut parts: Vec<String> = Vec::new();
    parts.extend(limits.read_iops.map(|rate| format!("{rate} reads/s")));
    parts.extend(limits.write_iops.map(|rate| format!("{rate} writes/s")));
    parts.extend(limits.read_bytes_per_second.map(|rate| format!("{}/s read", bytes(rate))));
    parts.extend(limits.write_bytes_per_second.map(|rate| format!("{}/s written", bytes(rate))));
    parts.push(format!("bursts of {}", TimeSpan(Duration::from_millis(limits.burst_milliseconds))));
    parts.join(", ")
}

fn durability(durability: Durability) -> String {
    match durability {
        Durability::Local => "local".into(),
        Durability::Store => "store".into(),
        Durability::Bounded(Bound { max_bytes, max_age }) => {
            format!("bounded: {}, {} s", bytes(max_bytes), max_age.as_secs())
        }
    }
}

/// The result of a deletion.
pub(super) fn deleted(deleted: &Deleted) -> String {
    if deleted.existed {
        format!("deleted {}", deleted.name)
    } else {
        format!("there was no {}", deleted.name)
    }
}

/// The result of a writeback.
pub(super) fn written_back(flushed: &Flushed) -> String {
    format!("{}: everything up to write {} is in the store", flushed.name, flushed.sequence_number)
}

/// The result of a drain.
pub(super) fn drained(drained: &Drained) -> String {
    let released = drained.flushed.saturating_sub(drained.kept);
    let mut lines = vec![format!(
        "everything of {} exports is in the store, and other hosts may open {released} of them",
        drained.flushed
    )];
    if drained.kept > 0 {
        lines.push(format!(
            "{} exports have a device and stay this host's until they are detached, or the daemon stops and removes its devices",
            drained.kept
        ));
    }
    lines.extend(drained.failed.iter().cloned());
    lines.join("\n")
}

pub(super) fn snapshots(snapshots: &[Snapshot]) -> String {
    list(snapshots, "no snapshots", ["EXPORT", "SNAPSHOT", "CREATED"], &[], |snapshot| {
        [snapshot.export.clone(), snapshot.name.clone(), snapshot.created.clone()]
    })
}

/// The result of garbage collection, done or planned.
pub(super) fn gc(gc: &GcReport) -> String {
    let removed = if gc.dry_run { "would be removed" } else { "removed" };
    let mut text = format!(
        "{} volumes; in use: {} packs, {}\nwaiting: {} packs, {}\n{removed}: {} packs, {}, \
         and {} other objects",
        gc.volumes,
        gc.packs_in_use,
        bytes(gc.bytes_in_use),
        gc.packs_waiting,
        bytes(gc.bytes_waiting),
        gc.packs_removed,
        bytes(gc.bytes_removed),
        gc.objects_removed,
    );
    for key in &gc.damaged {
        text.push_str("\nmissing, or cannot be read, and then what it may list is kept: ");
        text.push_str(key);
    }
    if gc.not_looked_for > 0 {
        let _ = write!(text, "\nand {} more packs that may be missing", gc.not_looked_for);
    }
    for key in &gc.stale_records {
        text.push_str("\nleft by a run that ended early, and keeps forks and snapshots waiting; see docs/operations.md: ");
        text.push_str(key);
    }
    for key in &gc.would_remove {
        text.push_str("\n  ");
        text.push_str(key);
    }
    text
}

/// The volumes in the store, a line each.
pub(super) fn stored(stored: &[&StoredVolume]) -> String {
    let header = ["NAME", "SIZE", "OPEN ON", "DURABILITY", "ON UNREACHABLE", "LIMITS", "WEIGHT"];
    list(stored, "nothing in the store", header, &[1, 6], |volume| {
        let host = match &volume.host {
            _ if volume.open_here => "this host",
            _ if volume.released => "-",
            Some(host) => host.as_str(),
            None => "a host without a name",
        };
        [
            volume.name.clone(),
            bytes(volume.size_bytes),
            host.into(),
            durability(volume.durability),
            volume.on_unreachable.to_string(),
            volume.limits.as_ref().map_or_else(|| "-".into(), limits_of),
            volume.weight.to_string(),
        ]
    })
}

/// Deleted exports that can be undeleted, a line each.
pub(super) fn deleted_exports(deleted: &[DeletedExport]) -> String {
    let none = "no deleted export can be undeleted";
    list(deleted, none, ["NAME", "SIZE", "DELETED", "KEPT UNTIL"], &[1], |export| {
        [export.name.clone(), bytes(export.size_bytes), second(&export.deleted), second(&export.kept_until)]
    })
}

pub(super) fn status(status: &Status) -> String {
    let (exports, cache) = (&status.exports, &status.daemon.cache);
    let ready = if status.ready { "ready" } else { "recovering" };
    let mut text = format!("glidefs {}, {ready}, up {} s\n", status.version, status.uptime_seconds);
    // Writing to a string does not fail.
    if let Some(upgrade) = &status.last_upgrade {
        let text_of = |reason: &String| format!("failed: {reason}");
        let end = upgrade.reason.as_ref().map_or_else(|| upgrade.outcome.clone(), text_of);
        let to = upgrade.to.as_deref().unwrap_or("?");
        let _ = writeln!(text, "last upgrade: {}, from {} to {to}, {end}", upgrade.began, upgrade.from);
    }
    let _ = writeln!(
        text,
        "exports: {} of {} ({} serving, {} detached, {} failed, {} changing)",
        exports.total, exports.max, exports.serving, exports.detached, exports.failed, exports.changing
    );
    let _ = writeln!(
        text,
        "cache: {} of {} used in {}, {} dirty, {} corrupt frames",
        bytes(cache.used_bytes),
        bytes(cache.size_bytes),
        cache.dir,
        bytes(cache.dirty_bytes),
        cache.corrupt_frames
    );
    if let Some(store) = &status.daemon.store {
        let _ = writeln!(text, "store: {store}");
    }
    if status.exports_at_risk > 0 {
        let exports = format!("{} exports", status.exports_at_risk);
        let _ = writeln!(text, "at risk: {}", described(&exports, status.at_risk.bytes, &status.at_risk));
    }
    for warning in &status.daemon.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    let _ = writeln!(text, "engine: {}", cache.engine);
    let _ = writeln!(text, "bounce mode: {}", if status.daemon.bounce_mode { "on" } else { "off" });
    let mut workers = table(
        &["WORKER", "CPU", "NODE", "QUEUES", "BUSY", "REQUESTS", "BUFFERS IN USE", "BUFFERS"],
        &[0, 1, 2, 3, 4, 5, 6, 7],
    );
    for (number, worker) in status.daemon.workers.iter().enumerate() {
        workers.add_row([
            number.to_string(),
            worker.cpu.to_string(),
            worker.node.map_or_else(|| "-".to_owned(), |node| node.to_string()),
            worker.queues.to_string(),
            format!("{} %", worker.busy_percent),
            worker.requests.to_string(),
            bytes(worker.live_bytes),
            bytes(worker.arena_bytes),
        ]);
    }
    text + &workers.trim_fmt()
}

/// The end of an upgrade.
pub(super) fn upgrade(upgrade: &Upgrade) -> String {
    let to = upgrade.to.as_deref().unwrap_or("of an unknown version");
    let mut text = format!("upgraded: glidefs {to} serves, before {}", upgrade.from);
    if let Some(pauses) = &upgrade.pauses {
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "; {} devices, longest pause {:.3} s, median {:.3} s",
            pauses.devices, pauses.longest_seconds, pauses.median_seconds
        );
    }
    text
}

/// The categories of memory, a line each, and the part in none of them.
pub(super) fn memory(memory: &Memory) -> String {
    let mut lines = table(&["CATEGORY", "MEMORY"], &[1]);
    let mut rest = memory.resident_bytes;
    for category in &memory.categories {
        lines.add_row([category.category.clone(), bytes(category.bytes)]);
        rest = rest.saturating_sub(category.bytes);
    }
    lines.add_row(["not in a category".into(), bytes(rest)]);
    lines.add_row(["resident".into(), bytes(memory.resident_bytes)]);
    lines.trim_fmt()
}

/// `bytes_at_risk` of `whose` data that are not in the store, and the reason.
pub(super) fn described(whose: &str, bytes_at_risk: u64, risk: &AtRisk) -> String {
    let since = format!("{} of {whose} not in the store, for {} s", bytes(bytes_at_risk), risk.seconds);
    match &risk.reason {
        Some(reason) => format!("{since}: {reason}"),
        None => since,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::wire::MemoryCategory;

    #[test]
    fn bytes_are_short_and_keep_the_unit_of_two_to_the_ten() {
        for (number, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (10 << 30, "10 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(bytes(number), text);
        }
    }

    #[test]
    fn an_export_shows_the_stable_path_or_why_there_is_none() {
        let shown = |key: &str, value: &str| {
            let mut json = serde_json::json!({
                "name": "vm1", "id": 1, "size_bytes": 512, "device": "/dev/ublkb0", "state": "serving", "reason": null, "queues": 1,
                "queue_depth": 64, "created": "2026-01-01T00:00:00Z",
            });
            json[key] = value.into();
            export(&serde_json::from_value(json).unwrap())
        };
        let has = |text: String, words: &[&str]| {
            text.lines().any(|line| {
                line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).eq(words.iter().copied())
            })
        };
        assert!(has(shown("path", "/dev/glidefs/vm1"), &["path", "/dev/glidefs/vm1"]));
        assert!(has(shown("no_path", "no /dev"), &["no path", "no /dev"]));
    }

    #[test]
    fn memory_in_no_category_is_shown_as_well() {
        let category = |category: &str, bytes| MemoryCategory { category: category.into(), bytes };
        let categories = vec![category("arenas", 3 << 20), category("index", 512)];
        let shown = memory(&Memory { resident_bytes: 4 << 20, categories });
        let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split("  ").collect()).collect();
        let shows = |name: &str, bytes: &str| {
            let is_line = |line: &Vec<&str>| line[0].trim() == name && line.last().unwrap().trim() == bytes;
            assert!(lines.iter().any(is_line), "{name} {bytes} is not in\n{shown}");
        };
        shows("arenas", "3 MiB");
        shows("index", "512 B");
        shows("not in a category", "1023.5 KiB");
        shows("resident", "4 MiB");
    }
}
