//! Queries of Prometheus in the dashboard, the alerts and the documents: their metrics and labels exist in `docs/metrics.md`,
//! and `promtool` can read those of the dashboard.
//!
//! `docs/metrics.md` agrees with the table in `observe` row by row, as a test of `observe` checks.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::{Value, json};

use super::sources::{SOURCES, Source, fail_if_any, read};

struct Metric {
    kind: String,
    labels: Vec<String>,
}

/// The metrics of `docs/metrics.md`, by name.
type Metrics = BTreeMap<String, Metric>;

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

fn metrics(document: &str) -> Metrics {
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
fn misnamed(query: &str, metrics: &Metrics, sources: &[Source]) -> Vec<String> {
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

/// The queries of the dashboard.
fn shown_queries() -> Vec<String> {
    let dashboard: Value =
        serde_json::from_str(&read("docs/grafana/glidefs.json")).expect("a dashboard is JSON");
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let targets = list(&dashboard, "panels").into_iter().flat_map(|panel| list(&panel, "targets"));
    targets.map(|target| target["expr"].as_str().unwrap_or_default().to_owned()).collect()
}

/// The queries of the dashboard, of the alerts and of the document of metrics.
fn all_queries() -> Vec<String> {
    let (document, rules) = (read("docs/metrics.md"), read("docs/glidefs.rules.yml"));
    let questions = document.lines().filter_map(|line| line.split_once(" | `")?.1.strip_suffix("` |"));
    let alerts = rules.split("- alert:").skip(1);
    let alerts = alerts.filter_map(|rule| Some(rule.split_once("expr:")?.1.split_once("labels:")?.0));
    shown_queries().into_iter().chain(questions.chain(alerts).map(str::to_owned)).collect()
}

#[test]
fn every_query_is_for_metrics_and_labels_that_exist() {
    let (metrics, queries) = (metrics(&read("docs/metrics.md")), all_queries());
    assert!(queries.len() > 80, "only {} queries were found: the test looks wrongly", queries.len());
    let wrong = queries.iter().flat_map(|query| misnamed(query, &metrics, &SOURCES));
    fail_if_any(&wrong.collect::<Vec<_>>());
}

#[test]
fn every_query_of_the_dashboard_is_promql() {
    let filled = |query: &str| query.replace("$__rate_interval", "5m").replace("$top", "5");
    let queries = shown_queries();
    assert!(queries.len() > 60, "only {} queries were found: the test looks wrongly", queries.len());
    let rule = |(number, query): (usize, &String)| json!({"record": format!("query_{number}"), "expr": filled(query)});
    let rules: Vec<Value> = queries.iter().enumerate().map(rule).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    serde_json::to_writer(&file, &json!({"groups": [{"name": "queries", "rules": rules}]})).unwrap();
    let output = Command::new("promtool").args(["check", "rules"]).arg(file.path()).output();
    let output = output.expect("promtool is missing: apt-get install -y prometheus");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn every_alert_fires_in_a_test_and_comes_with_advice() {
    let (rules, advice) = (read("docs/glidefs.rules.yml"), read("docs/operations.md"));
    let cases = read("scripts/lib/system/rules-test.yml");
    let fires = |alert: &str| {
        let named = format!("alertname: {alert}\n");
        cases.split(&named).skip(1).any(|case| case.trim_start().starts_with("exp_alerts:"))
    };
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).filter_map(|rule| rule.lines().next()).collect();
    assert!(alerts.len() > 20, "only {} alerts were found: the test looks wrongly", alerts.len());
    let unproven = alerts.iter().filter(|alert| !fires(alert) || !advice.contains(**alert));
    fail_if_any(
        &unproven
            .map(|alert| format!("{alert} needs a case in scripts/lib/system/rules-test.yml and a row in docs/operations.md"))
            .collect::<Vec<_>>(),
    );
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
