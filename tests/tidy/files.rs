//! How a file is written: the opening, the length, and the reason above each `unsafe`.

use super::sources::{SOURCES, Source, fail_if_any};
use crate::{FILE_LINES_MAX, SAFETY_LINES_MAX};

/// Begins of code for which a reason is due.
const UNSAFE: [&str; 4] = ["unsafe {", "unsafe impl", "unsafe fn", "unsafe extern"];

fn without_opening(sources: &[Source]) -> Vec<String> {
    let without = sources.iter().filter(|source| !source.text.starts_with("//! "));
    without.map(|source| format!("{}: begin the file with `//!`: what the file owns", source.path)).collect()
}

fn too_long(sources: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        let lines = source.text.lines().count();
        if lines > FILE_LINES_MAX {
            violations.push(format!(
                "{}: {lines} lines, {FILE_LINES_MAX} are the most: split the file",
                source.path
            ));
        }
    }
    violations
}

fn without_reason(sources: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    for source in sources {
        let lines: Vec<&str> = source.text.lines().collect();
        for (number, code) in source.code() {
            if !UNSAFE.iter().any(|start| code.contains(start)) {
                continue;
            }
            let above = &lines[number.saturating_sub(SAFETY_LINES_MAX + 1)..number];
            if !above.iter().any(|line| line.contains("SAFETY:") || line.contains("# Safety")) {
                violations.push(format!("{}:{number}: say in `// SAFETY:` why this is sound", source.path));
            }
        }
    }
    violations
}

#[test]
fn every_file_opens_with_what_it_owns() {
    fail_if_any(&without_opening(&SOURCES));
}

#[test]
fn no_file_is_too_long_to_read() {
    fail_if_any(&too_long(&SOURCES));
}

#[test]
fn every_unsafe_has_its_reason_above_it() {
    let mut violations = without_reason(&SOURCES);
    // The checks name unsafe code as text.
    violations.retain(|violation| !violation.starts_with("tests/tidy/files.rs"));
    fail_if_any(&violations);
}

#[test]
fn a_file_without_opening_reason_or_end_is_seen() {
    let good = Source::new("a.rs", "//! Owns a.\n// SAFETY: nobody reads a.\nunsafe { a }\n");
    let bad = Source::new("b.rs", &("fn b() { unsafe { b } }\n".to_owned() + &"\n".repeat(FILE_LINES_MAX)));
    for check in [without_opening, too_long, without_reason] {
        assert!(check(std::slice::from_ref(&good)).is_empty());
        let found = check(std::slice::from_ref(&bad));
        assert!(found.len() == 1 && found[0].starts_with("b.rs"), "{found:?}");
    }
}
