//! All source files of the repository, as text, and helpers of every check.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A source file.
pub struct Source {
    /// Relative to the repository, with `/`.
    pub path: String,
    pub text: String,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// Lines of code, numbered from 1, without comments.
    pub fn code(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, split_comment(line).0))
    }
}

/// Every `.rs` file of the library, the tests and the benches, by path.
pub static SOURCES: LazyLock<Vec<Source>> = LazyLock::new(|| {
    let root = repository();
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["glidefs/src", "tests", "benches"].iter().map(|folder| root.join(folder)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be listed") {
            let path = entry.expect("the folder can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if is_source(&path) {
                let text = fs::read_to_string(&path).expect("sources are UTF-8 text");
                let relative = path.strip_prefix(&root).expect("the walk began there");
                found.push(Source { path: relative.display().to_string(), text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(found.len() > 20, "only {} sources were found: the test looks in the wrong place", found.len());
    found
});

pub fn is_source(path: impl AsRef<Path>) -> bool {
    path.as_ref().extension().is_some_and(|extension| extension == "rs")
}

/// The layer of a file; `None` for the roots of library and program, tests and benches.
pub fn layer(path: &str) -> Option<&str> {
    let inside = path.strip_prefix("glidefs/src/")?;
    let first = inside.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(name, "lib" | "main")).then_some(name)
}

/// Whether a file is `folder.rs` or inside `folder`, a path below `glidefs/src`.
pub fn is_in(path: &str, folder: &str) -> bool {
    let rest = path.strip_prefix("glidefs/src/").and_then(|inside| inside.strip_prefix(folder));
    rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// A line as code and comment. `//` inside a string begins no comment.
pub fn split_comment(line: &str) -> (&str, &str) {
    let mut in_string = false;
    let bytes = line.as_bytes();
    for (index, byte) in bytes.iter().enumerate() {
        match byte {
            b'"' if index == 0 || bytes[index - 1] != b'\\' => in_string = !in_string,
            b'/' if !in_string && bytes.get(index + 1) == Some(&b'/') => return line.split_at(index),
            _ => {}
        }
    }
    (line, "")
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the repository").to_path_buf()
}

pub fn read(path: &str) -> String {
    let full = repository().join(path);
    fs::read_to_string(&full).unwrap_or_else(|error| panic!("{path} cannot be read: {error}"))
}

pub fn fail_if_any(violations: &[String]) {
    assert!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
}

pub fn is_blessing() -> bool {
    std::env::var_os("GLIDEFS_BLESS").is_some()
}

/// Compares a document with the text made from the code, or writes the document.
pub fn compare_or_bless(path: &str, found: &str, expected: &str) {
    if is_blessing() {
        fs::write(repository().join(path), expected).unwrap_or_else(|error| panic!("{path}: {error}"));
    } else {
        assert!(found == expected, "{path} is not up to date: run GLIDEFS_BLESS=1 cargo test --test tidy");
    }
}

#[test]
fn a_comment_begins_outside_of_strings() {
    assert_eq!(split_comment("let a = \"//\"; // crate::x"), ("let a = \"//\"; ", "// crate::x"));
    assert_eq!(split_comment("let a = 1 / 2;"), ("let a = 1 / 2;", ""));
}

#[test]
fn a_file_belongs_to_the_folder_beside_it() {
    assert_eq!(layer("glidefs/src/cache/log/scan.rs"), Some("cache"));
    assert_eq!(layer("glidefs/src/units.rs"), Some("units"));
    assert_eq!(layer("glidefs/src/lib.rs"), None);
    assert!(is_in("glidefs/src/cache/log.rs", "cache/log"));
    assert!(is_in("glidefs/src/cache/log/scan.rs", "cache/log"));
    assert!(!is_in("glidefs/src/cache/logs.rs", "cache/log"));
}
