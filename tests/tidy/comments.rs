//! How comments are written: with nouns rather than pronouns, and no doc comment which says as much as the name below.
//!
//! The limits are in `tests/tidy.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::sources::{SOURCES, Source, fail_if_any, layer, split_comment};
use crate::{JUDGED_WORDS_MIN, PRONOUNS, PRONOUNS_MAX, STUB_WORDS_MAX, STUBS_MAX, WHAT_MAX};

/// How many files a message names.
const NAMED_MAX: usize = 10;

/// Words of comments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    pub all: usize,
    pub pronouns: usize,
    pub what: usize,
}

impl Words {
    pub fn of(source: &Source) -> Self {
        let mut words = Self::default();
        for line in source.text.lines() {
            let (_, comment) = split_comment(line);
            for word in
                comment.split(|c: char| !c.is_ascii_alphabetic() && c != '\'').filter(|w| !w.is_empty())
            {
                let word = word.to_ascii_lowercase();
                words.all += 1;
                words.pronouns += usize::from(PRONOUNS.contains(&word.as_str()));
                words.what += usize::from(word == "what");
            }
        }
        words
    }

    pub fn add(&mut self, other: Self) {
        self.all += other.all;
        self.pronouns += other.pronouns;
        self.what += other.what;
    }

    /// Pronouns and `what` of 1,000 words.
    pub fn per_thousand(&self) -> (f64, f64) {
        #[expect(clippy::cast_precision_loss, reason = "there are fewer than 2^52 words")]
        let of = |count: usize| 1000.0 * count as f64 / self.all.max(1) as f64;
        (of(self.pronouns), of(self.what))
    }

    fn is_too_much(&self) -> bool {
        self.pronouns * 1000 > PRONOUNS_MAX * self.all || self.what * 1000 > WHAT_MAX * self.all
    }

    /// By how many words the limits are exceeded.
    fn excess(&self) -> usize {
        (self.pronouns * 1000).saturating_sub(PRONOUNS_MAX * self.all)
            + (self.what * 1000).saturating_sub(WHAT_MAX * self.all)
    }
}

/// The folder with which a file is counted: a layer, `tests` or `benches`.
pub fn folder(path: &str) -> &str {
    layer(path).unwrap_or_else(|| path.split('/').next().unwrap_or_default())
}

/// The words of each folder.
pub fn words_of_folders(sources: &[Source]) -> BTreeMap<&str, Words> {
    let mut folders: BTreeMap<&str, Words> = BTreeMap::new();
    for source in sources {
        folders.entry(folder(&source.path)).or_default().add(Words::of(source));
    }
    folders
}

/// Folders with too many pronouns, and the files with most of them.
fn folders_of_riddles(sources: &[Source]) -> Vec<String> {
    let mut violations = Vec::new();
    let show = |name: &str, words: &Words| {
        let (pronouns, what) = words.per_thousand();
        format!(
            "{name}: of 1,000 words in comments {pronouns:.1} are pronouns, {what:.1} `what` ({} words)",
            words.all
        )
    };
    let judged = words_of_folders(sources).into_iter().filter(|(_, words)| words.all > JUDGED_WORDS_MIN);
    let bad: BTreeSet<&str> = judged.filter(|(_, w)| w.is_too_much()).map(|(name, _)| name).collect();
    for (name, words) in words_of_folders(sources).iter().filter(|(name, _)| bad.contains(*name)) {
        violations.push(show(name, words));
    }
    let files = sources.iter().filter(|source| bad.contains(folder(&source.path)));
    let mut files: Vec<_> = files.map(|source| (&source.path, Words::of(source))).collect();
    files.sort_by_key(|(_, words)| std::cmp::Reverse(words.excess()));
    if !files.is_empty() {
        violations.push(format!(
            "{PRONOUNS_MAX} of {} and {WHAT_MAX} `what` are the most: name the thing instead; the worst files are",
            PRONOUNS.join(", ")
        ));
        violations
            .extend(files.iter().take(NAMED_MAX).map(|(path, words)| format!("    {}", show(path, words))));
    }
    violations
}

/// Doc comments of so few words that the name says as much: file, line and text.
pub fn stubs(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut block: Vec<&str> = Vec::new();
    for (index, line) in source.text.lines().chain([""]).enumerate() {
        if let Some(text) = line.trim_start().strip_prefix("///") {
            block.push(text);
        } else {
            let text = std::mem::take(&mut block).join(" ");
            if (1..=STUB_WORDS_MAX).contains(&text.split_whitespace().count()) {
                found.push(format!("{}:{index}:{text}", source.path));
            }
        }
    }
    found
}

#[test]
fn comments_name_their_subject() {
    fail_if_any(&folders_of_riddles(&SOURCES));
}

#[test]
fn doc_comments_say_more_than_the_name_below() {
    let found: Vec<String> = SOURCES.iter().flat_map(stubs).collect();
    println!("{} doc comments of {STUB_WORDS_MAX} words or fewer", found.len());
    assert!(
        found.len() <= STUBS_MAX,
        "{} doc comments have {STUB_WORDS_MAX} words or fewer, {STUBS_MAX} may: say what the name does not, or delete the \
         comment of an item for the crate alone:\n{}",
        found.len(),
        found.join("\n")
    );
}

#[test]
fn pronouns_are_counted_in_comments_alone() {
    let text = "//! It is.\n/// Its them.\nlet that = \"// it\"; // What that's for\n";
    let words = Words::of(&Source::new("a.rs", text));
    assert_eq!(words, Words { all: 7, pronouns: 3, what: 1 });
}

#[test]
fn a_folder_of_riddles_is_seen_with_the_worst_files_first() {
    let text = |word: &str, count: usize| {
        format!("// {}\n", "noun ".repeat(400)) + &format!("// {word}\n").repeat(count)
    };
    let file = |name: &str, text: String| Source::new(&format!("glidefs/src/{name}.rs"), &text);
    let sources =
        [file("cache/a", text("it", 12)), file("cache/b", text("what", 20)), file("store/c", text("its", 5))];
    let found = folders_of_riddles(&sources);
    assert!(found[0].starts_with("cache: of 1,000 words"), "{found:?}");
    assert!(found[2].contains("cache/b.rs") && found[3].contains("cache/a.rs"), "{found:?}");
    assert_eq!(found.len(), 4, "{found:?}");
    assert!(folders_of_riddles(&sources[2..]).is_empty());
    assert!(folders_of_riddles(&[file("units", "// it\n".repeat(9))]).is_empty(), "too few words to judge");
}

#[test]
fn a_doc_comment_of_few_words_is_seen() {
    let text = "/// Its name.\nname: u8,\n/// Bytes, of which\n/// none is lost.\nbytes: u8,\n// A note.\n";
    assert_eq!(stubs(&Source::new("a.rs", text)), ["a.rs:1: Its name."]);
}
