//! Queries of Prometheus: the metrics and labels of a query, compared with `docs/metrics.md`, and answers from `promtool`.
//!
//! `docs/metrics.md` agrees with the table in `observe` row by row, as a test of `observe` checks. Does not parse PromQL as a
//! whole: `promtool` does.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use serde_json::{Value, json};

use super::sources::Source;

pub struct Metric {
    kind: String,
    labels: Vec<String>,
}

/// The metrics of `docs/metrics.md`, by name.
pub type Metrics = BTreeMap<String, Metric>;

/// A metric as a query names it: `name{label="value"}`.
struct Selector<'a> {
    name: &'a str,
    /// Labels and values; a value of `=~` counts once for each alternative.
    matchers: Vec<(&'a str, Vec<&'a str>)>,
    /// Whether the growth is asked for.
    is_rate: bool,
}

/// Labels which Prometheus adds to every series.
const ADDED: [&str; 2] = ["instance", "job"];
/// Functions of growth, which make no sense of a gauge.
const RATES: [&str; 2] = ["rate(", "increase("];
/// Endings of the series of a histogram.
const ENDINGS: [&str; 3] = ["_bucket", "_sum", "_count"];

pub fn metrics(document: &str) -> Metrics {
    let rows = document.lines().filter(|line| line.starts_with("| `glidefs_"));
    let metric = |row: &str| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let labels = cells[3].split('`').skip(1).step_by(2).map(str::to_owned).collect();
        (cells[1].trim_matches('`').to_owned(), Metric { kind: cells[2].to_owned(), labels })
    };
    rows.map(metric).collect()
}

fn is_ident(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn selectors(query: &str) -> Vec<Selector<'_>> {
    let mut found = Vec::new();
    for (start, _) in query.match_indices("glidefs_") {
        let rest = &query[start..];
        let (name, rest) = rest.split_at(rest.find(|c| !is_ident(c)).unwrap_or(rest.len()));
        let inside =
            rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).map_or("", |(inside, _)| inside);
        let matchers = inside.split(", ").filter_map(|matcher| {
            let (label, value) = matcher.split_once('=')?;
            let value = value.trim_start_matches('~').trim_matches('"');
            Some((label.trim_end_matches('!'), value.split('|').collect()))
        });
        let is_rate = RATES.iter().any(|function| query[..start].ends_with(function));
        found.push(Selector { name, matchers: matchers.collect(), is_rate });
    }
    found
}

/// The labels of `by (…)` and `on (…)`.
fn grouping(query: &str) -> Vec<&str> {
    let lists = ["by (", "on ("].into_iter().flat_map(|word| query.split(word).skip(1));
    let lists = lists.filter_map(|rest| rest.split_once(')')).flat_map(|(list, _)| list.split(", "));
    lists.filter(|label| !label.is_empty()).collect()
}

/// The metric of a series, and whether the series is a bucket.
fn metric_of<'a>(series: &str, metrics: &'a Metrics) -> Option<(&'a Metric, bool)> {
    let histogram = || {
        let base = ENDINGS.iter().find_map(|ending| series.strip_suffix(ending))?;
        metrics.get(base).filter(|metric| metric.kind == "histogram")
    };
    let plain = metrics.get(series).filter(|metric| metric.kind != "histogram");
    plain.or_else(histogram).map(|metric| (metric, series.ends_with("_bucket")))
}

/// Metrics, labels and values in a query which do not exist.
pub fn misnamed(query: &str, metrics: &Metrics, sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut known: BTreeSet<&str> = ADDED.into();
    for Selector { name, matchers, is_rate } in selectors(query) {
        let Some((metric, is_bucket)) = metric_of(name, metrics) else {
            wrong.push(format!("there is no series {name}: {query}"));
            continue;
        };
        let labels = metric.labels.iter().map(String::as_str).chain(is_bucket.then_some("le"));
        known.extend(labels.clone());
        if is_rate && metric.kind == "gauge" {
            wrong.push(format!("{name} is a gauge and has no rate: {query}"));
        }
        for (label, values) in matchers {
            if !ADDED.contains(&label) && !labels.clone().any(|other| other == label) {
                wrong.push(format!("{name} has no label {label}: {query}"));
            }
            let values =
                values.iter().filter(|value| label != "le" && label != "job" && !value.starts_with('$'));
            let is_said =
                |value: &str| sources.iter().any(|source| source.text.contains(&format!("\"{value}\"")));
            wrong.extend(
                values
                    .filter(|value| !is_said(value))
                    .map(|value| format!("nothing is called {value:?}: {query}")),
            );
        }
    }
    let unknown = grouping(query).into_iter().filter(|label| !known.contains(label));
    wrong.extend(unknown.map(|label| format!("no series has the label {label}: {query}")));
    wrong
}

/// The variables of a dashboard as the values of [`series`].
pub fn filled(query: &str) -> String {
    ["$__rate_interval", "$instance", "$export", "$top"]
        .iter()
        .zip(["5m", "host", "vm", "10"])
        .fold(query.to_owned(), |query, (name, value)| query.replace(name, value))
}

/// Series of every metric, as a test of `promtool` takes them, with the label values for which the queries ask.
fn series(metrics: &Metrics, queries: &[String]) -> Vec<Value> {
    let mut asked: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (label, values) in
        queries.iter().flat_map(|query| selectors(query)).flat_map(|selector| selector.matchers)
    {
        asked.entry(label).or_default().extend(values);
    }
    asked.insert("export", ["vm"].into());
    let other: BTreeSet<&str> = ["x"].into();
    let mut found = Vec::new();
    for (name, metric) in metrics {
        let mut names = vec![format!("{name}{{instance=\"host\"")];
        for label in &metric.labels {
            let values = asked.get(label.as_str()).unwrap_or(&other);
            names = names
                .iter()
                .flat_map(|n| values.iter().map(move |v| format!("{n}, {label}=\"{v}\"")))
                .collect();
        }
        if metric.kind == "histogram" {
            let bucket = |n: &String| n.replacen('{', "_bucket{", 1);
            let bounds = ["0.001", "1", "65536", "+Inf"];
            names =
                names.iter().flat_map(|n| bounds.map(|le| format!("{}, le=\"{le}\"", bucket(n)))).collect();
        }
        let values = if metric.kind == "gauge" { "1x40" } else { "0+1x40" };
        found.extend(names.iter().map(|name| json!({"series": format!("{name}}}"), "values": values})));
    }
    found
}

/// Queries which `promtool` does not understand, or which find nothing although there are series of every metric.
pub fn unanswered(metrics: &Metrics, queries: &[String]) -> Result<(), String> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (rules, tests) = (dir.path().join("rules.json"), dir.path().join("tests.json"));
    // An alert on the absence of an answer is expected not to fire. JSON is YAML.
    let alert = |(index, query): (usize, &String)| json!({"alert": format!("Q{index}"), "expr": format!("absent({query})")});
    let group = json!({"name": "q", "rules": queries.iter().enumerate().map(alert).collect::<Vec<_>>()});
    let silent = |index| json!({"eval_time": "9m", "alertname": format!("Q{index}"), "exp_alerts": []});
    let test = json!({
        "interval": "15s",
        "input_series": series(metrics, queries),
        "alert_rule_test": (0..queries.len()).map(silent).collect::<Vec<_>>(),
    });
    let suite = json!({"rule_files": ["rules.json"], "evaluation_interval": "15s", "tests": [test]});
    for (path, content) in [(&rules, json!({"groups": [group]})), (&tests, suite)] {
        fs::write(path, content.to_string()).expect("the temporary directory can be written");
    }
    for (kind, path) in [("check", &rules), ("test", &tests)] {
        let output = Command::new("promtool").args([kind, "rules"]).arg(path).output();
        let output = output.expect("promtool is missing: apt-get install -y prometheus");
        if !output.status.success() {
            let said = [output.stdout, output.stderr].concat();
            return Err(String::from_utf8_lossy(&said).into_owned());
        }
    }
    Ok(())
}

#[test]
fn a_query_of_what_does_not_exist_is_seen() {
    let metrics =
        metrics("| `glidefs_a` | gauge | `state` | A. |\n| `glidefs_b_seconds` | histogram | – | B. |");
    let sources = [Source::new("a.rs", "\"up\"")];
    let misnamed = |query: &str| misnamed(query, &metrics, &sources).join("; ");
    for query in [
        "sum by (state) (glidefs_a{instance=\"$instance\", state=~\"up|$state\"})",
        "histogram_quantile(0.5, sum by (le) (rate(glidefs_b_seconds_bucket{le=\"1\"}[5m])))",
    ] {
        assert_eq!(misnamed(query), "");
    }
    for (query, error) in [
        ("glidefs_c > 1", "there is no series glidefs_c"),
        ("glidefs_b_seconds", "there is no series glidefs_b_seconds"),
        ("glidefs_a_sum", "there is no series glidefs_a_sum"),
        ("glidefs_a{worker=\"$w\"}", "glidefs_a has no label worker"),
        ("glidefs_a{state=\"down\"}", "nothing is called \"down\""),
        ("sum by (le) (glidefs_a)", "no series has the label le"),
        ("rate(glidefs_a[5m])", "is a gauge"),
    ] {
        assert!(misnamed(query).contains(error), "{query}: {}", misnamed(query));
    }
}

#[test]
fn a_query_without_an_answer_is_seen() {
    let metrics = metrics("| `glidefs_a` | gauge | `state` | A. |\n| `glidefs_b_total` | counter | – | B. |");
    let unanswered = |query: &str| unanswered(&metrics, &[filled(query)]);
    assert_eq!(
        unanswered("glidefs_a{state=\"up\"} / on (instance) rate(glidefs_b_total[$__rate_interval])"),
        Ok(())
    );
    for query in
        ["glidefs_a{state=\"up\"} / glidefs_b_total", "sum(glidefs_a", "glidefs_a{instance=\"other\"}"]
    {
        assert!(unanswered(query).is_err(), "{query}");
    }
}
