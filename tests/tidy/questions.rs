//! Answers to questions about the code, each a look at one or two files: `docs/questions.md`.
//!
//! A row of the table is `| Question | Answer |`. An answer names places: `` `worker/run.rs:12` `Loop::turn` ``, a file with
//! the line on which the item beside is defined. The file is below `glidefs/src` or the repository. Items are functions,
//! types, constants, statics, macros, modules; `Type::method`, `Trait::method`, `Enum::Variant`, `Type::field`; and headings
//! of `.md` files. `GLIDEFS_BLESS=1` corrects the lines.

use std::fs;
use std::path::Path;

use super::sources::{compare_or_bless, fail_if_any, is_blessing, is_source, read, repository};
use crate::{ANSWER_FILES_MAX, QUESTIONS_MIN};

const DOCUMENT: &str = "docs/questions.md";

/// Words before the name of an item.
const KEYWORDS: [&str; 9] =
    ["fn", "struct", "enum", "trait", "const", "static", "type", "mod", "macro_rules"];

/// An item which a file defines, and the line.
type Defined = (String, usize);

/// All items of a Rust source that rustfmt has written, those of inline modules and methods too.
fn items(source: &str) -> Vec<Defined> {
    let mut found = Vec::new();
    // The type whose members follow, and the indentation of its first line.
    let mut owner: Option<(String, usize)> = None;
    for (index, line) in source.lines().enumerate() {
        let (text, indent) = (line.trim_start(), line.len() - line.trim_start().len());
        if text.starts_with(['/', '#', '}', ')']) || text.is_empty() {
            continue;
        }
        let words: Vec<&str> = text
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty() && !matches!(*word, "pub" | "crate" | "super" | "in" | "self"))
            .collect();
        let keyword = words.iter().position(|word| KEYWORDS.contains(word)).filter(|&at| at < 3);
        let name = keyword.and_then(|at| words.get(at + 1)).copied();
        owner = owner.filter(|(_, of)| indent > *of);
        match (&owner, name) {
            (Some((of, own)), Some(name)) if indent == own + 4 => {
                found.push((format!("{of}::{name}"), index + 1));
            }
            (Some((of, own)), None) if indent == own + 4 => {
                found.extend(words.first().map(|member| (format!("{of}::{member}"), index + 1)));
            }
            (None, Some(name))
                if text.ends_with('{')
                    && matches!(words[keyword.unwrap_or(0)], "struct" | "enum" | "trait") =>
            {
                found.push((name.to_owned(), index + 1));
                owner = Some((name.to_owned(), indent));
            }
            (None, Some(name)) => found.push((name.to_owned(), index + 1)),
            (None, None) if text.starts_with("impl") || text.starts_with("unsafe impl") => {
                let head = text.trim_end_matches('{').split(" where").next().unwrap_or_default();
                let of = head.rsplit(" for ").next().unwrap_or_default().trim();
                let of = of.rsplit(' ').next().unwrap_or_default().split('<').next().unwrap_or_default();
                let of = of.rsplit("::").next().unwrap_or_default().trim_start_matches('&');
                owner = Some((of.to_owned(), indent));
            }
            _ => {}
        }
    }
    found
}

/// The headings of a document.
fn headings(document: &str) -> Vec<Defined> {
    let lines = document.lines().enumerate().filter(|(_, line)| line.starts_with('#'));
    lines.map(|(index, line)| (line.trim_start_matches('#').trim().to_owned(), index + 1)).collect()
}

/// The items of a file; `None` if there is no such file.
fn read_items(path: &str) -> Option<Vec<Defined>> {
    let root = repository();
    let text = [root.join("glidefs/src").join(path), root.join(path)]
        .iter()
        .find_map(|full| fs::read_to_string(full).ok())?;
    Some(if is_source(path) { items(&text) } else { headings(&text) })
}

/// The path of a place `path:line`.
fn path_of(piece: &str) -> Option<&str> {
    let (path, line) = piece.rsplit_once(':')?;
    let is_file = Path::new(path).extension().is_some_and(|extension| extension == "rs" || extension == "md");
    (is_file && line.bytes().all(|byte| byte.is_ascii_digit())).then_some(path)
}

/// An answer with the lines of its places corrected, and the errors which remain.
fn corrected(answer: &str, find: impl Fn(&str) -> Option<Vec<Defined>>) -> (String, Vec<String>) {
    let (mut errors, mut files) = (Vec::new(), Vec::new());
    // Text and code take turns.
    let mut pieces: Vec<String> = answer.split('`').map(str::to_owned).collect();
    for index in (1..pieces.len()).step_by(2) {
        let place = pieces[index].clone();
        let Some(path) = path_of(&place) else { continue };
        if !files.contains(&path.to_owned()) {
            files.push(path.to_owned());
        }
        let item = pieces.get(index + 2).filter(|_| pieces[index + 1] == " ");
        let Some(item) = item else {
            errors.push(format!("`{place}`: name the item in back-ticks after one space"));
            continue;
        };
        let Some(defined) = find(path) else {
            errors.push(format!("`{place}`: there is no such file"));
            continue;
        };
        let lines: Vec<usize> =
            defined.iter().filter(|(name, _)| name == item).map(|(_, line)| *line).collect();
        match lines.first() {
            None => errors.push(format!("`{place}` `{item}`: the file defines no such item")),
            Some(line) if !lines.iter().any(|line| place == format!("{path}:{line}")) => {
                pieces[index] = format!("{path}:{line}");
            }
            Some(_) => {}
        }
    }
    if files.is_empty() || files.len() > ANSWER_FILES_MAX {
        errors.push(format!(
            "names {} files: an answer is a look at 1 to {ANSWER_FILES_MAX} files",
            files.len()
        ));
    }
    (pieces.join("`"), errors)
}

/// The document with all lines corrected, the errors which remain, and the number of questions.
fn check(document: &str, find: impl Fn(&str) -> Option<Vec<Defined>>) -> (String, Vec<String>, usize) {
    let (mut text, mut errors, mut questions) = (String::new(), Vec::new(), 0);
    for line in document.split_inclusive('\n') {
        let row = line.strip_prefix("| ").and_then(|row| row.trim_end().strip_suffix('|'));
        match row.and_then(|row| row.split_once(" | ")) {
            Some((question, answer)) if question != "Question" => {
                let (answer, wrong) = corrected(answer, &find);
                errors.extend(wrong.iter().map(|error| format!("{DOCUMENT}: {question} {error}")));
                text.extend(["| ", question, " | ", &answer, "|\n"]);
                questions += 1;
            }
            _ => text += line,
        }
    }
    (text, errors, questions)
}

#[test]
fn every_question_is_answered_by_one_or_two_files() {
    let document = read(DOCUMENT);
    let (expected, errors, questions) = check(&document, read_items);
    assert!(questions >= QUESTIONS_MIN, "{DOCUMENT}: {questions} questions, {QUESTIONS_MIN} are the fewest");
    // Lines are corrected beside places that are wrong.
    if !is_blessing() {
        fail_if_any(&errors);
    }
    compare_or_bless(DOCUMENT, &document, &expected);
    fail_if_any(&errors);
}

#[test]
fn items_are_found_where_they_are_defined() {
    let text = "pub struct A<T> {\n    b: u8,\n}\n/// Doc.\n#[inline]\nimpl<T: U> V for A<T> {\n    async fn c() {}\n}
enum D {\n    E,\n}\nmod f {\n    const G: u8 = 1;\n}\ntrait H {\n    fn i();\n}";
    let found: Vec<String> = items(text).iter().map(|(name, line)| format!("{name} {line}")).collect();
    assert_eq!(found, ["A 1", "A::b 2", "A::c 7", "D 9", "D::E 10", "f 12", "G 13", "H 15", "H::i 16"]);
    assert_eq!(headings("# A\n\ntext\n## Of b\n"), [("A".to_owned(), 1), ("Of b".to_owned(), 4)]);
}

#[test]
fn a_wrong_answer_is_seen() {
    let find = |path: &str| (path != "none.rs").then(|| items("\nfn known() {}\n"));
    let check = |answer: &str| {
        let (text, errors, _) = check(&format!("| Why? | {answer} |\n"), find);
        (text, errors.join("; "))
    };
    let (text, errors) = check("Hear `x`: `a.rs:2` `known`, `b.rs:9` `known`.");
    assert_eq!(
        (text.as_str(), errors.as_str()),
        ("| Why? | Hear `x`: `a.rs:2` `known`, `b.rs:2` `known`. |\n", "")
    );
    for (answer, error) in [
        ("`none.rs:1` `known`", "no such file"),
        ("`a.rs:1` `other`", "no such item"),
        ("`a.rs:2` or `known`", "name the item"),
        ("just so", "names 0 files"),
        ("`a.rs:2` `known` `b.rs:2` `known` `c.rs:2` `known`", "names 3 files"),
    ] {
        assert!(check(answer).1.contains(error), "{answer}: {}", check(answer).1);
    }
}
