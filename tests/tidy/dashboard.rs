//! The dashboard `docs/grafana/glidefs.json`, and all queries in documents: metrics, labels, answers; places of panels.
//!
//! No Grafana runs here: how a panel looks is not checked.

use serde_json::Value;

use super::queries::{Metrics, filled, metrics, misnamed, unanswered};
use super::sources::{SOURCES, Source, fail_if_any, read};

const DASHBOARD: &str = "docs/grafana/glidefs.json";
/// Width of a dashboard, in Grafana's units.
const WIDTH: u64 = 24;
/// Subjects of the dashboard: each has a panel with a metric which begins so.
const SUBJECTS: [&str; 12] = [
    "glidefs_worker_requests_total",
    "glidefs_ublk_buffer_pool_backpressure_waits_total",
    "glidefs_cache_used_bytes",
    "glidefs_export_dirty_bytes",
    "glidefs_export_at_risk_seconds",
    "glidefs_store_requests_total",
    "glidefs_store_errors_total",
    "glidefs_export_damaged_bytes",
    "glidefs_cache_lost_frames_total",
    "glidefs_export_operations_total",
    "glidefs_export_bytes_total",
    "glidefs_export_latency_seconds_bucket",
];

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn parsed(json: &str) -> Value {
    serde_json::from_str(json).expect("a dashboard is JSON")
}

/// The queries of all panels.
fn queries(dashboard: &Value) -> Vec<String> {
    let targets = list(dashboard, "panels").iter().flat_map(|panel| list(panel, "targets"));
    targets.map(|target| text(target, "expr").to_owned()).collect()
}

/// Names behind `$`, without those of Grafana itself.
fn variables(text: &str) -> Vec<&str> {
    let names = text.split('$').skip(1).map(|rest| rest.strip_prefix('{').unwrap_or(rest));
    let names = names.map(|rest| {
        &rest[..rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len())]
    });
    names.filter(|name| !name.starts_with("__")).collect()
}

/// Panels which Grafana would not show, or which a reader would not understand.
fn misbuilt(json: &str) -> Vec<String> {
    let dashboard = parsed(json);
    let mut wrong = Vec::new();
    let defined: Vec<&str> = list(&dashboard["templating"], "list").iter().map(|v| text(v, "name")).collect();
    let unknown = variables(json).into_iter().filter(|name| !defined.contains(name));
    wrong.extend(unknown.map(|name| format!("the variable ${name} is not defined")));
    let panels = list(&dashboard, "panels");
    let (mut ids, mut taken) = (Vec::new(), Vec::new());
    for panel in panels {
        let title = text(panel, "title");
        let mut fault = |what: &str| wrong.push(format!("{title:?}: {what}"));
        if title.is_empty() || ids.contains(&&panel["id"]) {
            fault("a panel has a title, and an id of its own");
        }
        ids.push(&panel["id"]);
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap_or(WIDTH + 1);
        let (x, y, w, h) = (place("x"), place("y"), place("w"), place("h"));
        if x + w > WIDTH || w == 0 || h == 0 {
            fault("the panel is not within the width of the dashboard");
        }
        if taken.iter().any(|&(x2, y2, w2, h2)| x < x2 + w2 && x2 < x + w && y < y2 + h2 && y2 < y + h) {
            fault("the panel lies over another");
        }
        taken.push((x, y, w, h));
        if text(panel, "type") == "row" {
            continue;
        }
        if text(panel, "description").is_empty() {
            fault("say in the description how to read the panel");
        }
        if text(&panel["fieldConfig"]["defaults"], "unit").is_empty()
            && text(&panel["options"]["yAxis"], "unit").is_empty()
        {
            fault("the values have no unit");
        }
        let targets = list(panel, "targets");
        if targets.is_empty() || targets.iter().any(|t| text(&t["datasource"], "uid") != "${datasource}") {
            fault("every target asks the data source that was chosen");
        }
        if targets.iter().any(|t| {
            text(t, "expr").matches("glidefs_").count()
                != text(t, "expr").matches("instance=\"$instance\"").count()
        }) {
            fault("every metric of a query is of the host that was chosen");
        }
    }
    wrong
}

#[test]
fn every_query_of_the_dashboard_has_an_answer() {
    let metrics = metrics(&read("docs/metrics.md"));
    let queries = queries(&parsed(&read(DASHBOARD)));
    assert!(queries.len() > 50, "only {} queries were found: the test looks wrongly", queries.len());
    fail_if_any(&misnamed_in(&queries, &metrics, &SOURCES));
    let filled: Vec<String> = queries.iter().map(|query| filled(query)).collect();
    unanswered(&metrics, &filled).unwrap_or_else(|said| {
        let numbered = filled.iter().enumerate().map(|(index, query)| format!("Q{index}: {query}\n"));
        panic!("{said}\n{}", numbered.collect::<String>());
    });
}

fn misnamed_in(queries: &[String], metrics: &Metrics, sources: &[Source]) -> Vec<String> {
    queries.iter().flat_map(|query| misnamed(query, metrics, sources)).collect()
}

#[test]
fn every_panel_of_the_dashboard_can_be_shown_and_read() {
    fail_if_any(&misbuilt(&read(DASHBOARD)));
}

#[test]
fn the_dashboard_shows_every_subject() {
    let queries = queries(&parsed(&read(DASHBOARD)));
    let missing = SUBJECTS.iter().filter(|subject| !queries.iter().any(|query| query.contains(**subject)));
    fail_if_any(&missing.map(|subject| format!("{DASHBOARD}: no panel shows {subject}")).collect::<Vec<_>>());
}

#[test]
fn alerts_and_documents_ask_for_metrics_and_labels_that_exist() {
    let (document, rules) = (read("docs/metrics.md"), read("docs/glidefs.rules.yml"));
    let metrics = metrics(&document);
    let questions = document.lines().filter_map(|line| line.split_once(" | `")?.1.strip_suffix("` |"));
    let rules =
        rules.split("- alert:").skip(1).filter_map(|rule| rule.split_once("expr:")?.1.split_once("labels:"));
    let queries: Vec<String> =
        questions.chain(rules.map(|(expression, _)| expression)).map(str::to_owned).collect();
    assert!(queries.len() > 30, "only {} queries were found: the test looks wrongly", queries.len());
    fail_if_any(&misnamed_in(&queries, &metrics, &SOURCES));
}

/// Alerts without a case in which they fire, or without advice.
fn untested_alerts(rules: &str, cases: &str, advice: &str) -> Vec<String> {
    let alerts = rules.split("- alert: ").skip(1).filter_map(|rule| rule.lines().next());
    let fires = |alert: &str| {
        let named = format!("alertname: {alert}\n");
        cases.split(&named).skip(1).any(|case| case.trim_start().starts_with("exp_alerts:"))
    };
    let mut wrong = Vec::new();
    for alert in alerts {
        if !fires(alert) {
            wrong.push(format!("scripts/lib/system/rules-test.yml: {alert} never fires"));
        }
        if !advice.contains(alert) {
            wrong.push(format!("docs/operations.md: {alert} is missing"));
        }
    }
    wrong
}

#[test]
fn every_alert_fires_in_a_test_and_comes_with_advice() {
    let (rules, cases) = (read("docs/glidefs.rules.yml"), read("scripts/lib/system/rules-test.yml"));
    assert!(rules.matches("- alert: ").count() > 20, "the test looks wrongly");
    fail_if_any(&untested_alerts(&rules, &cases, &read("docs/operations.md")));
}

#[test]
fn an_alert_that_never_fires_is_seen() {
    let fires = "- eval_time: 1m\n  alertname: Up\n  exp_alerts:\n";
    assert!(untested_alerts("- alert: Up\n", fires, "| Up |").is_empty());
    let silent = "- {eval_time: 9m, alertname: Up}\n";
    assert_eq!(untested_alerts("- alert: Up\n", silent, "").len(), 2);
}

#[test]
fn a_panel_that_cannot_be_shown_is_seen() {
    let panel = r#"{"id": 1, "title": "A", "description": "A.", "gridPos": {"x": 0, "y": 0, "w": 12, "h": 8},
        "fieldConfig": {"defaults": {"unit": "s"}}, "targets": [{"datasource": {"uid": "${datasource}"},
        "expr": "glidefs_a{instance=\"$instance\"}"}]}"#;
    let dashboard = |panels: &str| {
        let variables = r#"{"list": [{"name": "datasource"}, {"name": "instance"}]}"#;
        misbuilt(&format!(r#"{{"templating": {variables}, "panels": [{panels}]}}"#)).join("; ")
    };
    assert_eq!(dashboard(panel), "");
    let other = panel.replace("\"id\": 1", "\"id\": 2");
    for (panels, error) in [
        (panel.replace("\"title\": \"A\"", "\"title\": \"\""), "has a title"),
        (format!("{panel}, {}", panel.replace("\"y\": 0", "\"y\": 8")), "an id of its own"),
        (format!("{panel}, {other}"), "lies over another"),
        (panel.replace("\"x\": 0", "\"x\": 13"), "within the width"),
        (panel.replace("\"A.\"", "\"\""), "description"),
        (panel.replace("\"unit\"", "\"other\""), "no unit"),
        (panel.replace("${datasource}", "one"), "data source"),
        (panel.replace("instance=", "other="), "of the host"),
        (panel.replace("glidefs_a", "$what"), "$what is not defined"),
    ] {
        assert!(dashboard(&panels).contains(error), "{error}: {}", dashboard(&panels));
    }
}
