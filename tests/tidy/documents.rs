//! Documents which must agree with the code: metrics, faults, configuration, the API.

use std::fmt::Write as _;
use std::fs;

use glidefs::testing::api::wire;
use glidefs::testing::config::keys;

use super::sources::{SOURCES, Source, compare_or_bless, fail_if_any, is_source, layer, read, repository};

/// Names of metrics: strings in `observe`.
fn metrics(sources: &[Source]) -> Vec<&str> {
    let is_ident = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let observe = sources.iter().filter(|source| layer(&source.path) == Some("observe"));
    let strings = observe.flat_map(Source::code).flat_map(|(_, code)| code.split('"').skip(1).step_by(2));
    let named =
        |name: &&str| name.strip_prefix("glidefs_").is_some_and(|n| !n.is_empty() && n.chars().all(is_ident));
    strings.filter(named).collect()
}

/// Metrics which only the code or only the document has.
fn misdocumented_metrics(defined: &[&str], document: &str) -> Vec<String> {
    let missing = defined.iter().filter(|name| !document.contains(&format!("`{name}`")));
    let missing = missing.map(|name| format!("docs/metrics.md: {name} is missing"));
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    let named = rows.map(|row| row.split('`').next().unwrap_or_default());
    let unknown = named.filter(|name| name.starts_with("glidefs_") && !defined.contains(name));
    missing.chain(unknown.map(|name| format!("docs/metrics.md: there is no metric {name}"))).collect()
}

#[test]
fn every_metric_is_documented_and_every_documented_metric_exists() {
    let defined = metrics(&SOURCES);
    assert!(defined.len() > 10, "only {} metrics were found: the test looks wrongly", defined.len());
    fail_if_any(&misdocumented_metrics(&defined, &read("docs/metrics.md")));
}

#[test]
fn a_metric_without_document_is_seen() {
    let sources = [Source::new(
        "glidefs/src/observe/a.rs",
        "f(\"glidefs_one\", \"glidefs_two_total\", \"glidefs_{x}\")",
    )];
    let defined = metrics(&sources);
    assert_eq!(defined, ["glidefs_one", "glidefs_two_total"]);
    let found = misdocumented_metrics(&defined, "| `glidefs_one` | |\n| `glidefs_three` | |");
    let expected = ["glidefs_two_total is missing", "there is no metric glidefs_three"];
    assert_eq!(found, expected.map(|text| format!("docs/metrics.md: {text}")));
}

/// Whether a name looks like the name of a test: a sentence.
fn is_test(name: &str) -> bool {
    name.matches('_').count() >= 3
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// Says which evidence named in `docs/faults.md` does not exist; `None` if the evidence does, or is no name.
fn missing_evidence(named: &str, sources: &[Source], metrics: &str) -> Option<String> {
    let words: Vec<&str> = named.split(' ').collect();
    let exists = if let Some(script) = words[0].strip_prefix("scripts/") {
        let text = fs::read_to_string(repository().join("scripts").join(script)).unwrap_or_default();
        let has_case = |case: &str| text.contains(&format!("case_{}()", case.replace('-', "_")));
        !text.is_empty() && (script != "faults" || words.get(1).is_none_or(|case| has_case(case)))
    } else if is_source(named) {
        sources.iter().any(|source| source.path == named)
    } else if named.starts_with("glidefs_") {
        metrics.contains(&format!("`{named}`"))
    } else if is_test(named) {
        let definition = format!("fn {named}(");
        sources.iter().any(|source| source.text.contains(&definition))
    } else {
        return None;
    };
    (!exists).then(|| format!("docs/faults.md: there is no {named}"))
}

#[test]
fn the_table_of_faults_names_tests_and_metrics_that_exist() {
    let (document, metrics) = (read("docs/faults.md"), read("docs/metrics.md"));
    let named: Vec<&str> = document.split('`').skip(1).step_by(2).collect();
    let tests = named.iter().filter(|name| is_source(name) || name.starts_with("scripts/"));
    assert!(tests.count() > 10, "the test looks in the wrong place");
    let missing = named.iter().filter_map(|name| missing_evidence(name, &SOURCES, &metrics));
    fail_if_any(&missing.collect::<Vec<_>>());
}

#[test]
fn evidence_which_does_not_exist_is_seen() {
    assert!(missing_evidence("no_test_has_this_name_here", &[], "").is_some());
    assert!(missing_evidence("scripts/faults no-such-case", &[], "").is_some());
    assert!(missing_evidence("tests/none.rs", &[], "").is_some());
    assert!(missing_evidence("glidefs_none", &[], "`glidefs_one`").is_some());
    assert!(missing_evidence("any text", &[], "").is_none());
}

/// `document`, the text of `path`, with `part` in the place of the part called `name`, which is made from the file `source`.
fn with_part(path: &str, document: &str, (name, source): (&str, &str), part: &str) -> String {
    let begin = format!("<!-- {name}: made from {source} by GLIDEFS_BLESS=1 cargo test --test tidy -->\n");
    let end = format!("<!-- end of {name} -->");
    let marked = document.split_once(&begin);
    let (before, rest) = marked.unwrap_or_else(|| panic!("{path} marks where the {name} begin"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{path} marks where the {name} end"));
    format!("{before}{begin}\n{part}{end}{after}")
}

/// The part of docs/configuration.md with the list of keys.
fn table_of_keys() -> String {
    // Writing to a string does not fail.
    let (mut text, defaults) = (String::new(), keys::defaults());
    for section in keys::SECTIONS {
        let _ = writeln!(text, "### `[{}]`\n\n{}\n", section.name, section.help.trim());
        text += "| Key | Default | Allowed | Meaning |\n|---|---|---|---|\n";
        for key in section.keys {
            let default = keys::default_of(&defaults, section.name, key);
            let default = default.map_or_else(|| "not set".to_owned(), |value| format!("`{value}`"));
            let _ = writeln!(text, "| `{}` | {default} | {} | {} |", key.name, key.allowed, key.help.trim());
        }
        text.push('\n');
    }
    text
}

/// The table of docs/api.md with all codes.
fn table_of_codes() -> String {
    let mut table = String::from("| Code | Status | Meaning | What to do |\n|---|---|---|---|\n");
    for code in wire::ProblemCode::ALL {
        let statuses: Vec<String> = code.statuses().iter().map(ToString::to_string).collect();
        let (name, statuses) = (code.as_str(), statuses.join(", "));
        let _ = writeln!(table, "| `{name}` | {statuses} | {} | {} |", code.title(), code.next_step());
    }
    table
}

#[test]
fn the_configuration_document_lists_every_key() {
    let path = "docs/configuration.md";
    let document = read(path);
    let part = ("keys", "glidefs/src/config/sections.rs");
    compare_or_bless(path, &document, &with_part(path, &document, part, &table_of_keys()));
}

#[test]
fn the_document_of_the_api_lists_every_code() {
    let path = "docs/api.md";
    let document = read(path);
    let part = ("problems", "glidefs/src/api/wire/codes.rs");
    compare_or_bless(path, &document, &with_part(path, &document, part, &table_of_codes()));
}

#[test]
fn the_example_configuration_is_what_init_writes() {
    let path = "systemd/glidefs.toml";
    let found = fs::read_to_string(repository().join(path)).unwrap_or_default();
    compare_or_bless(path, &found, &keys::commented_config());
}
