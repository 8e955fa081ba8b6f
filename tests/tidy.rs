//! What the compiler does not check: which folder may import which, that documents and code agree, and how files are written.
//!
//! Reads the sources as text. A violation fails with file, line and what to do. `GLIDEFS_BLESS=1` writes the documents that
//! are made from tables anew instead of comparing them.

#![expect(
    clippy::expect_used,
    reason = "a test that cannot read the sources has to fail, wherever it notices"
)]

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use glidefs::config::keys;

/// The layers, highest first: each imports only those after it.
const LAYERS: [&str; 14] = [
    "daemon", "cli", "bench", "api", "config", "ublk", "worker", "router", "export", "cache", "store",
    "buffer", "observe", "units",
];

/// External crates that belong to certain layers.
const OWNERS: [(&str, &[&str]); 32] = [
    ("libublk", &["ublk"]),
    ("io_uring", &["ublk", "worker"]),
    ("object_store", &["store"]),
    ("async_trait", &["store"]),
    ("aws_config", &["store"]),
    ("aws_credential_types", &["store"]),
    ("aws_runtime", &["store"]),
    ("aws_types", &["store"]),
    ("blake3", &["store"]),
    ("chrono", &["store"]),
    ("zstd", &["store"]),
    ("foyer_common", &["store"]),
    ("foyer_memory", &["store"]),
    ("redb", &["router"]),
    ("clap", &["cli"]),
    ("clap_complete", &["cli"]),
    ("clap_mangen", &["cli"]),
    ("comfy_table", &["cli"]),
    ("indicatif", &["cli"]),
    ("hdrhistogram", &["bench"]),
    ("plotters", &["bench"]),
    ("hyper", &["cli", "api"]),
    ("hyper_util", &["cli", "api"]),
    ("http_body_util", &["cli"]),
    ("axum", &["api"]),
    ("utoipa", &["api"]),
    ("utoipa_axum", &["api"]),
    ("subtle", &["api"]),
    ("toml", &["config"]),
    ("prometheus", &["observe"]),
    ("tracing_subscriber", &["observe"]),
    ("tracing_journald", &["observe"]),
];

/// Longest file, lines.
const FILE_LINES_MAX: usize = 600;
/// How far above `unsafe` its reason may begin, lines.
const SAFETY_LINES_MAX: usize = 12;

/// A source file.
struct Source {
    /// Relative to the repository.
    path: PathBuf,
    text: String,
}

impl Source {
    /// The layer it belongs to; `None` for the roots of library and program, tests and benches.
    fn layer(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("glidefs/src").ok()?;
        let first = inside.components().next()?.as_os_str().to_str()?;
        let name = first.strip_suffix(".rs").unwrap_or(first);
        (!matches!(name, "lib" | "main")).then_some(name)
    }

    /// Lines that are code, numbered from 1, without their comments.
    fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, without_comment(line)))
    }

    fn at(&self, line: usize) -> String {
        format!("{}:{line}", self.path.display())
    }
}

/// The line up to a comment that is not inside a string.
fn without_comment(line: &str) -> &str {
    let mut in_string = false;
    let bytes = line.as_bytes();
    for (index, byte) in bytes.iter().enumerate() {
        match byte {
            b'"' if index == 0 || bytes[index - 1] != b'\\' => in_string = !in_string,
            b'/' if !in_string && bytes.get(index + 1) == Some(&b'/') => return &line[..index],
            _ => {}
        }
    }
    line
}

/// What follows each place where `code` names the path `prefix`, as in `prefix::what`.
fn paths_after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let needle = format!("{prefix}::");
    let ident = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(&needle)
        .filter(|(at, _)| !code[..*at].ends_with(|c: char| ident(c) || c == ':'))
        .map(|(at, _)| &code[at + needle.len()..])
        .map(|rest| rest.split(|c: char| !ident(c)).next().unwrap_or_default())
        .collect()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the repository").to_path_buf()
}

fn read(path: &str) -> String {
    let full = repository().join(path);
    fs::read_to_string(&full).unwrap_or_else(|error| panic!("{path} cannot be read: {error}"))
}

fn sources() -> Vec<Source> {
    let root = repository();
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["glidefs/src", "tests", "benches"].iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.expect("the folder can be listed").path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("sources are UTF-8 text");
                let path = path.strip_prefix(&root).expect("it was found there").to_path_buf();
                found.push(Source { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 20, "only {} sources were found: the test looks in the wrong place", found.len());
    found
}

fn fail_if_any(violations: &[String]) {
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

#[test]
fn a_folder_imports_only_folders_below_it() {
    let rank = |name: &str| LAYERS.iter().position(|&layer| layer == name);
    let mut violations = Vec::new();
    for source in sources() {
        let Some(layer) = source.layer() else { continue };
        let Some(own) = rank(layer) else {
            violations.push(format!("{}: {layer} has no place in LAYERS: add it", source.path.display()));
            continue;
        };
        for (line, code) in source.code() {
            for name in paths_after(code, "crate") {
                if rank(name).is_some_and(|imported| imported < own) {
                    let at = source.at(line);
                    violations
                        .push(format!("{at}: {layer} imports {name}, which is above it: hand it in instead"));
                }
            }
        }
    }
    fail_if_any(&violations);
}

#[test]
fn an_external_crate_is_used_only_by_its_owner() {
    let mut violations = Vec::new();
    for source in sources() {
        let Some(layer) = source.layer() else { continue };
        for (line, code) in source.code() {
            for (name, owners) in OWNERS {
                if !owners.contains(&layer) && !paths_after(code, name).is_empty() {
                    let at = source.at(line);
                    violations.push(format!(
                        "{at}: {layer} uses {name}, which belongs to {}",
                        owners.join(" and ")
                    ));
                }
            }
        }
    }
    fail_if_any(&violations);
}

#[test]
fn every_file_opens_with_what_it_owns() {
    let opens = |source: &Source| source.text.starts_with("//! ");
    let without = sources().into_iter().filter(|source| !opens(source));
    fail_if_any(&without.map(|s| format!("{}: begin it with `//!`", s.path.display())).collect::<Vec<_>>());
}

#[test]
fn no_file_is_too_long_to_read() {
    let mut violations = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            let path = source.path.display();
            violations.push(format!(
                "{path}: {lines} lines, {FILE_LINES_MAX} are the most: split it by what it owns"
            ));
        }
    }
    fail_if_any(&violations);
}

#[test]
fn every_unsafe_has_its_reason_above_it() {
    let mut violations = Vec::new();
    for source in sources() {
        let lines: Vec<&str> = source.text.lines().collect();
        for (number, code) in source.code() {
            let starts = ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"];
            // This file names them as text.
            if source.path.ends_with("tidy.rs") || !starts.iter().any(|start| code.contains(start)) {
                continue;
            }
            let above = &lines[number.saturating_sub(SAFETY_LINES_MAX + 1)..number];
            if !above.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety")) {
                violations.push(format!("{}: say in `// SAFETY:` why this is sound", source.at(number)));
            }
        }
    }
    fail_if_any(&violations);
}

#[test]
fn every_metric_is_documented_and_every_documented_metric_exists() {
    let document = read("docs/metrics.md");
    let ident = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let mut defined = Vec::new();
    for source in sources().iter().filter(|source| source.layer() == Some("observe")) {
        for (_, code) in source.code() {
            for name in code.split('"').skip(1).step_by(2) {
                if name
                    .strip_prefix("glidefs_")
                    .is_some_and(|rest| !rest.is_empty() && rest.chars().all(ident))
                {
                    defined.push(name.to_owned());
                }
            }
        }
    }
    assert!(
        defined.len() > 10,
        "only {} metrics were found: the test looks in the wrong place",
        defined.len()
    );
    let mut violations = Vec::new();
    for name in &defined {
        if !document.contains(&format!("`{name}`")) {
            violations.push(format!("docs/metrics.md: {name} is missing"));
        }
    }
    for row in document.lines().filter_map(|line| line.strip_prefix("| `")) {
        let name = row.split('`').next().unwrap_or_default();
        if name.starts_with("glidefs_") && !defined.iter().any(|known| known == name) {
            violations.push(format!("docs/metrics.md: there is no metric {name}"));
        }
    }
    fail_if_any(&violations);
}

fn is_source(named: &str) -> bool {
    Path::new(named).extension().is_some_and(|extension| extension == "rs")
}

/// Why what a row of `docs/faults.md` names between back-ticks does not exist; `None` if it does, or is no name.
fn missing_evidence(named: &str, sources: &[Source], metrics: &str) -> Option<String> {
    let words: Vec<&str> = named.split(' ').collect();
    let exists = if let Some(script) = words[0].strip_prefix("scripts/") {
        let path = repository().join("scripts").join(script);
        let text = fs::read_to_string(path).unwrap_or_default();
        let has_case = |case: &str| text.contains(&format!("case_{}()", case.replace('-', "_")));
        !text.is_empty() && (script != "faults" || words.get(1).is_none_or(|case| has_case(case)))
    } else if is_source(named) {
        sources.iter().any(|source| source.path == Path::new(named))
    } else if named.starts_with("glidefs_") {
        metrics.contains(&format!("`{named}`"))
    } else if named.matches('_').count() >= 3
        && named.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    {
        let definition = format!("fn {named}(");
        sources.iter().any(|source| source.text.contains(&definition))
    } else {
        return None;
    };
    (!exists).then(|| format!("docs/faults.md: there is no {named}"))
}

/// Tests of `document` that are not in the file which their row says: the file named behind them, or the last one "in the same file".
fn misplaced_tests(document: &str, sources: &[Source]) -> Vec<String> {
    let text_of = |path: &str| sources.iter().find(|source| source.path == Path::new(path)).map(|s| &s.text);
    let (mut tests, mut file, mut violations) = (Vec::new(), "", Vec::new());
    // Text and names in back-ticks take turns.
    for (index, piece) in document.split('`').enumerate() {
        let is_named = index % 2 == 1;
        if is_named && piece.matches('_').count() >= 3 {
            tests.push(piece);
        } else if is_named && is_source(piece) || piece.starts_with(" in the same file") {
            file = if is_named { piece } else { file };
            let text = text_of(file).map_or("", String::as_str);
            let absent = tests.drain(..).filter(|test| !text.contains(&format!("fn {test}(")));
            violations.extend(absent.map(|test| format!("docs/faults.md: {test} is not in {file}")));
        } else if piece.contains(['|', ';', '\n']) {
            tests.clear();
        }
    }
    violations
}

#[test]
fn the_table_of_faults_names_tests_and_metrics_that_exist() {
    let (document, sources, metrics) = (read("docs/faults.md"), sources(), read("docs/metrics.md"));
    let named: Vec<&str> = document.split('`').skip(1).step_by(2).collect();
    let tests = named.iter().filter(|name| is_source(name) || name.starts_with("scripts/"));
    assert!(tests.count() > 10, "the test looks in the wrong place");
    let missing = named.iter().filter_map(|name| missing_evidence(name, &sources, &metrics));
    fail_if_any(&missing.chain(misplaced_tests(&document, &sources)).collect::<Vec<_>>());
    assert!(missing_evidence("no_test_has_this_name_here", &[], "").is_some());
    assert!(missing_evidence("scripts/faults no-such-case", &[], "").is_some());
    assert_eq!(misplaced_tests("`a.rs` | `one_two_three_four` in the same file", &[]).len(), 1);
}

#[test]
fn the_configuration_document_lists_every_key() {
    const BEGIN: &str =
        "<!-- keys: made from glidefs/src/config/keys.rs by GLIDEFS_BLESS=1 cargo test --test tidy -->\n";
    const END: &str = "<!-- end of keys -->";
    let document = read("docs/configuration.md");
    let (before, rest) =
        document.split_once(BEGIN).expect("docs/configuration.md marks where the keys begin");
    let (_, after) = rest.split_once(END).expect("docs/configuration.md marks where the keys end");
    let mut expected = before.to_owned();
    write!(expected, "{BEGIN}\n{}{END}{after}", keys::markdown()).expect("writing to a string does not fail");
    compare_or_bless("docs/configuration.md", &document, &expected);
}

#[test]
fn the_example_configuration_is_what_init_writes() {
    let path = "systemd/glidefs.toml";
    let found = fs::read_to_string(repository().join(path)).unwrap_or_default();
    compare_or_bless(path, &found, &keys::commented_config());
}

fn compare_or_bless(path: &str, found: &str, expected: &str) {
    if std::env::var_os("GLIDEFS_BLESS").is_some() {
        fs::write(repository().join(path), expected).unwrap_or_else(|error| panic!("{path}: {error}"));
    } else {
        assert!(found == expected, "{path} is not up to date: run GLIDEFS_BLESS=1 cargo test --test tidy");
    }
}

#[test]
fn the_checks_see_what_they_look_for() {
    assert_eq!(without_comment("let a = \"//\"; // crate::x"), "let a = \"//\"; ");
    assert_eq!(paths_after("use crate::router::{a}; my_crate::api::x; x::crate::y", "crate"), ["router"]);
    assert_eq!(paths_after("axum::serve(utoipa_axum::routes)", "axum"), ["serve"]);
}
