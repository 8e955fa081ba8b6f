//! All figures in one table: `cargo test --test tidy the_counts -- --nocapture`.

use super::comments::{Words, stubs, words_of_folders};
use super::cycles::tangles;
use super::folders::upward_floors;
use super::graph::GRAPH;
use super::sources::{SOURCES, layer};

/// Lines of a file beyond which a split is due.
const LONG: usize = 400;

#[test]
fn the_counts_are_shown_in_one_table() {
    let mut all = Words::default();
    println!("{:<10} {:>7} {:>14} {:>10}", "folder", "words", "pronouns/1000", "what/1000");
    for (folder, words) in words_of_folders(&SOURCES) {
        let (pronouns, what) = words.per_thousand();
        println!("{folder:<10} {:>7} {pronouns:>14.1} {what:>10.1}", words.all);
        all.add(words);
    }
    let (pronouns, what) = all.per_thousand();
    println!("{:<10} {:>7} {pronouns:>14.1} {what:>10.1}\n", "all", all.all);

    let tangles = tangles(&GRAPH);
    for tangle in &tangles {
        println!("circles: {} {} files", tangle.folder, tangle.files);
    }
    let long = SOURCES.iter().filter(|s| layer(&s.path).is_some() && s.text.lines().count() > LONG);
    let rows = [
        ("groups of files with a circle of imports", tangles.len()),
        ("imports of a higher floor", upward_floors(&GRAPH).len()),
        ("stubs", SOURCES.iter().flat_map(stubs).count()),
        ("files of more than 400 lines in glidefs/src", long.count()),
        ("files", SOURCES.len()),
    ];
    for (name, count) in rows {
        println!("{name:<45} {count:>6}");
    }
    assert!(all.all > 0, "no comment was found");
}
