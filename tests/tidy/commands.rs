//! Commands in documents: each is one that the program takes, and each script that a document names exists.
//!
//! Commands stand in blocks of code, where they are parsed as a whole, and between back-ticks, where values may be missing or
//! placeholders.

use std::path::Path;

use glidefs::testing::cli::refusal;

use super::sources::{fail_if_any, read, repository};

/// The documents, relative to the repository. The one of decisions names commands that went.
fn documents() -> Vec<String> {
    let listed = std::fs::read_dir(repository().join("docs")).expect("the folder can be listed");
    let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let documents = names
        .filter(|name| Path::new(name).extension().is_some_and(|it| it == "md") && name != "decisions.md")
        .map(|name| format!("docs/{name}"));
    let found: Vec<String> =
        documents.chain(["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(str::to_owned)).collect();
    assert!(found.len() > 8, "the test looks in the wrong place");
    found
}

/// The words of a command up to a comment, a pipe or a redirection; `None` if the line is none of `glidefs`.
fn words(line: &str) -> Option<Vec<&str>> {
    let line = line.trim_start_matches(['$', '#', ' ']);
    let line = line.strip_prefix("sudo ").unwrap_or(line).strip_prefix("glidefs ")?;
    let ends = |word: &&str| !word.starts_with(['#', '|', '>', '<', '&', ';']) && *word != "\\|";
    // An explanation stands behind a gap.
    let line = line.split("   ").next().unwrap_or_default();
    Some(line.split_whitespace().take_while(ends).map(|word| word.trim_matches(['"', '\''])).collect())
}

/// The commands of a document that the program refuses.
fn refused(path: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        let mut check = |line: &str, is_whole: bool| {
            let refusal = words(line).and_then(|words| refusal(&words, is_whole));
            found.extend(refusal.map(|said| format!("{path}:{}: {}", index + 1, said.trim())));
        };
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code {
            check(line, true);
        } else {
            line.split('`').skip(1).step_by(2).for_each(|code| check(code, false));
        }
    }
    found
}

#[test]
fn every_command_of_a_document_is_one_that_the_program_takes() {
    fail_if_any(&documents().iter().flat_map(|path| refused(path, &read(path))).collect::<Vec<_>>());
}

#[test]
fn every_script_that_a_document_names_exists() {
    let is_end = |c: char| !c.is_alphanumeric() && !matches!(c, '-' | '_' | '/' | '.');
    let mut missing = Vec::new();
    for path in documents() {
        let text = read(&path);
        let named = text.split("scripts/").skip(1).filter_map(|rest| rest.split(is_end).next());
        let absent = named.map(|name| format!("scripts/{}", name.trim_end_matches(['.', '/'])));
        let absent = absent.filter(|script| !repository().join(script).exists());
        missing.extend(absent.map(|script| format!("{path}: there is no {script}")));
    }
    fail_if_any(&missing);
}

#[test]
fn a_command_that_the_program_refuses_is_seen() {
    let text = "`glidefs export creat NAME`, `glidefs export create NAME`\n```\n$ glidefs export list --jsn  # a list\n\
                glidefs export create vm1 --size BIG\nglidefs export delete vm1 >log\n```\n`glidefs status --jsn`\n";
    let lines: Vec<String> =
        refused("a.md", text).iter().map(|f| f.split(": ").next().unwrap_or_default().into()).collect();
    assert_eq!(lines, ["a.md:1", "a.md:3", "a.md:4", "a.md:7"]);
}
