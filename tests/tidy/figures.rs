//! Figures in documents: blocks which are made from the result files in `benches/baselines`.
//!
//! A block begins with the line `<!-- figures: NAME… -->` and ends with `<!-- end of figures -->`. A name is that of a file, or
//! ends in `*`; `of KEY…` behind the names selects rows. `GLIDEFS_BLESS=1` writes the blocks. Scripts write the files
//! (`scripts/lib/results.sh`), and `scripts/figures` names files older than what they measure.

use std::fs;

use serde_json::Value;

use super::figure_tables::table;
use super::sources::{compare_or_bless, fail_if_any, repository};

const FOLDER: &str = "benches/baselines";
const BEGIN: &str = "<!-- figures: ";
const END: &str = "<!-- end of figures -->";
const DOCUMENTS: [&str; 3] = ["README.md", "docs/benchmarks.md", "docs/operations.md"];
/// Fields of a result file which are texts.
const TEXTS: [&str; 6] = ["figures", "date", "commit", "kernel", "machine", "command"];

/// All result files, by name; numbers in names count as numbers.
fn result_files() -> Vec<Value> {
    let folder = fs::read_dir(repository().join(FOLDER)).expect("the folder can be listed");
    let paths = folder.map(|entry| entry.expect("the folder can be listed").path());
    let mut files: Vec<Value> = paths
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a result file can be read");
            let file: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
            assert_eq!(
                file["figures"].as_str(),
                name.as_deref(),
                "{}: `figures` is the name",
                path.display()
            );
            file
        })
        .collect();
    files.sort_by_key(|file| (file["results"]["exports"].as_u64(), name(file).to_owned()));
    files
}

fn name(file: &Value) -> &str {
    file["figures"].as_str().unwrap_or_default()
}

/// Fields of a result file which are missing or wrong.
fn malformed(file: &Value, exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut fault = |what: String| wrong.push(format!("{FOLDER}/{}.json: {what}", name(file)));
    for key in TEXTS.into_iter().filter(|key| !file[key].is_string()) {
        fault(format!("the text {key:?} is missing"));
    }
    if !file["changed"].is_boolean() || file["results"].is_null() {
        fault("`changed` or `results` is missing".to_owned());
    }
    for path in file["measures"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if !exists(path) {
            fault(format!("{path}, which was measured, does not exist"));
        }
    }
    wrong
}

/// One line about the origin of a file.
fn origin(file: &Value) -> String {
    let text = |key: &str| file[key].as_str().unwrap_or_default();
    let mut line = format!("- `{FOLDER}/{}.json`: {}", name(file), text("command"));
    // Figures that others have published have neither date nor commit.
    if let (Some(day), Some(commit)) = (text("date").get(..10), text("commit").get(..7)) {
        line.extend([", ", day, ", commit ", commit]);
    }
    if file["changed"] == true {
        line += " with changes";
    }
    if !text("kernel").is_empty() {
        line.extend([", Linux ", text("kernel")]);
    }
    format!("{line}, {}\n", text("machine"))
}

/// The files named by the opening of a block, and the keys of rows.
fn selected<'a>(opening: &'a str, files: &'a [Value]) -> Result<(Vec<&'a Value>, Vec<&'a str>), String> {
    let (names, keys) = opening.split_once(" of ").unwrap_or((opening, ""));
    let mut selected = Vec::new();
    for pattern in names.split_whitespace() {
        let matches =
            |name: &str| pattern.strip_suffix('*').map_or(name == pattern, |start| name.starts_with(start));
        let before = selected.len();
        selected.extend(files.iter().filter(|file| matches(name(file))));
        if selected.len() == before {
            return Err(format!("there is no result file {pattern}"));
        }
    }
    Ok((selected, keys.split_whitespace().collect()))
}

/// A document with all blocks made anew, the faults of the blocks, and the names of the files shown.
fn filled(document: &str, files: &[Value]) -> (String, Vec<String>, Vec<String>) {
    let (mut text, mut wrong, mut shown) = (String::new(), Vec::new(), Vec::new());
    let mut rest = document;
    while let Some((before, block)) = rest.split_once(BEGIN) {
        let Some((opening, after)) = block.split_once(" -->\n") else {
            wrong.push("a block has no opening line".to_owned());
            break;
        };
        let Some((old, after)) = after.split_once(END) else {
            wrong.push(format!("the block of {opening} has no end"));
            break;
        };
        let made = selected(opening, files).and_then(|(files, keys)| {
            shown.extend(files.iter().map(|file| name(file).to_owned()));
            let origins: String = files.iter().map(|file| origin(file)).collect();
            Ok(format!("\n{}\n{origins}\n", table(&files, &keys)?))
        });
        let made = made.unwrap_or_else(|fault| {
            wrong.push(fault);
            old.to_owned()
        });
        text.extend([before, BEGIN, opening, " -->\n", &made, END]);
        rest = after;
    }
    (text + rest, wrong, shown)
}

#[test]
fn figures_in_documents_are_those_of_the_result_files() {
    let files = result_files();
    let mut wrong: Vec<String> =
        files.iter().flat_map(|file| malformed(file, |path| repository().join(path).exists())).collect();
    let mut shown = Vec::new();
    for path in DOCUMENTS {
        let document = super::sources::read(path);
        let (expected, faults, names) = filled(&document, &files);
        wrong.extend(faults.into_iter().map(|fault| format!("{path}: {fault}")));
        shown.extend(names);
        compare_or_bless(path, &document, &expected);
    }
    let hidden = files.iter().filter(|file| !shown.iter().any(|shown| shown == name(file)));
    wrong.extend(hidden.map(|file| format!("{FOLDER}/{}.json is in no document", name(file))));
    fail_if_any(&wrong);
}

#[cfg(test)]
fn result(name: &str, results: &str) -> Value {
    serde_json::from_str(&format!(
        r#"{{"figures": "{name}", "date": "2026-11-21T10:00:00Z", "commit": "0123456789", "changed": false, "kernel": "7.1",
            "machine": "a machine", "command": "scripts/x", "measures": ["src"], "results": {results}}}"#
    ))
    .expect("the test writes JSON")
}

#[test]
fn a_block_is_made_from_the_files_it_names() {
    let files = [
        result("d-1", r#"{"exports": 1, "rest_kib": 2048}"#),
        result("d-2", r#"{"exports": 2, "rest_kib": 10}"#),
    ];
    let document = "Before\n<!-- figures: d-* of exports -->\nold\n<!-- end of figures -->\nafter\n";
    let (text, wrong, shown) = filled(document, &files);
    let expected = "Before\n<!-- figures: d-* of exports -->\n\n\
        | | d-1 | d-2 |\n|---|---:|---:|\n| exports | 1 | 2 |\n\n\
        - `benches/baselines/d-1.json`: scripts/x, 2026-11-21, commit 0123456, Linux 7.1, a machine\n\
        - `benches/baselines/d-2.json`: scripts/x, 2026-11-21, commit 0123456, Linux 7.1, a machine\n\n\
        <!-- end of figures -->\nafter\n";
    assert_eq!((text.as_str(), wrong.len()), (expected, 0));
    assert_eq!(shown, ["d-1", "d-2"]);
    assert_eq!(filled(&text, &files).0, text, "made again, the block is the same");
}

#[test]
fn a_block_without_file_row_or_end_is_seen() {
    let files = [result("d-1", r#"{"exports": 1}"#)];
    for (opening, error) in
        [("e-*", "no result file e-*"), ("d", "no result file d"), ("d-1 of size", "no row size")]
    {
        let document = format!("<!-- figures: {opening} -->\nold\n<!-- end of figures -->\n");
        let (text, wrong, _) = filled(&document, &files);
        assert!(wrong.join("; ").contains(error), "{wrong:?}");
        assert_eq!(text, document, "a block that cannot be made is left alone");
    }
    assert!(filled("<!-- figures: d-1 -->\n", &files).1[0].contains("no end"));
}

#[test]
fn a_result_file_without_origin_is_seen() {
    let mut file = result("d-1", "{}");
    assert!(malformed(&file, |_| true).is_empty());
    assert!(malformed(&file, |_| false)[0].contains("src"));
    file["kernel"] = Value::Null;
    file["results"] = Value::Null;
    assert_eq!(malformed(&file, |_| true).len(), 2);
}
