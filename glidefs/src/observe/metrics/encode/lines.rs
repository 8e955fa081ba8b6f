//! Metrics with many samples, line by line.
//!
//! Owns the text of such metrics: cumulative buckets, seconds instead of nanoseconds, escapes. Invariant: the text equals the text of
//! the `prometheus` crate.

use std::fmt::{Display, Write};

use crate::observe::metrics::samples::Family;
use crate::observe::metrics::table::Unit;

/// Integers up to here are exact in Prometheus, where every number is a floating-point number.
const EXACT_MAX: u64 = 1 << 53;

/// Appends a metric with all samples.
pub(super) fn write_family(family: &Family, text: &mut String) {
    let definition = family.definition;
    let (name, unit) = (definition.name, definition.unit);
    // A row of the table has no character in its help to be escaped.
    put(
        text,
        format_args!("# HELP {name} {}\n# TYPE {name} {}\n", definition.help, definition.kind.type_name()),
    );
    let bounds: Vec<String> = definition.kind.bounds().iter().map(|bound| number(unit, *bound)).collect();
    let mut labels = String::new();
    for sample in family.samples() {
        labels.clear();
        for (label, value) in definition.labels.iter().zip(sample.labels()) {
            labels.push_str(if labels.is_empty() { "" } else { "," });
            labels.push_str(label);
            labels.push_str("=\"");
            push_escaped(&mut labels, value);
            labels.push('"');
        }
        match sample.cells {
            [value] => {
                text.push_str(name);
                push_braced(text, &labels);
                push_value(text, unit, *value);
            }
            [counts @ .., sum] => {
                write_histogram(text, name, &labels, unit, &bounds, counts, *sum);
            }
            [] => {}
        }
    }
}

/// `counts` has one count per bucket, not cumulative, and the count above the last bound.
fn write_histogram(
    text: &mut String,
    name: &str,
    labels: &str,
    unit: Unit,
    bounds: &[String],
    counts: &[u64],
    sum: u64,
) {
    let comma = if labels.is_empty() { "" } else { "," };
    let mut cumulative = 0_u64;
    for (bound, count) in bounds.iter().map(String::as_str).chain(["+Inf"]).zip(counts) {
        cumulative = cumulative.wrapping_add(*count);
        for part in [name, "_bucket{", labels, comma, "le=\"", bound, "\"}"] {
            text.push_str(part);
        }
        push_value(text, Unit::Number, cumulative);
    }
    for (ending, unit, value) in [("_sum", unit, sum), ("_count", Unit::Number, cumulative)] {
        text.push_str(name);
        text.push_str(ending);
        push_braced(text, labels);
        push_value(text, unit, value);
    }
}

fn push_braced(text: &mut String, labels: &str) {
    if !labels.is_empty() {
        text.push('{');
        text.push_str(labels);
        text.push('}');
    }
}

fn push_escaped(text: &mut String, value: &str) {
    for part in value.split_inclusive(['\\', '"', '\n']) {
        let (plain, escape) = match part.as_bytes().last() {
            Some(b'\\') => (part.strip_suffix('\\'), "\\\\"),
            Some(b'"') => (part.strip_suffix('"'), "\\\""),
            Some(b'\n') => (part.strip_suffix('\n'), "\\n"),
            _ => (None, ""),
        };
        text.push_str(plain.unwrap_or(part));
        text.push_str(escape);
    }
}

/// Ends a line with the value of a cell.
fn push_value(text: &mut String, unit: Unit, cell: u64) {
    text.push(' ');
    push_number(text, unit, cell);
    text.push('\n');
}

fn number(unit: Unit, cell: u64) -> String {
    let mut text = String::new();
    push_number(&mut text, unit, cell);
    text
}

/// The value of a cell in the metric's unit.
#[expect(clippy::cast_precision_loss, reason = "Prometheus has floating-point numbers only")]
fn push_number(text: &mut String, unit: Unit, cell: u64) {
    match unit {
        Unit::Seconds => put(text, cell as f64 / 1e9),
        Unit::Bytes | Unit::Number | Unit::Info if cell <= EXACT_MAX => put(text, cell),
        Unit::Bytes | Unit::Number | Unit::Info => put(text, cell as f64),
    }
}

fn put(text: &mut String, value: impl Display) {
    // Writing to a string does not fail.
    let _ = write!(text, "{value}");
}
