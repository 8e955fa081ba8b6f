//! Which layer may use which, and which layers may use an external crate: LAYERS, APART and OWNERS in `tests/tidy.rs`.
//!
//! Reads paths in code as rustfmt writes them: `crate::NAME`, `super::…::NAME` that leads to the root, and `NAME::` of an
//! external crate. Tests inside the library obey too.

use std::collections::BTreeSet;

use super::sources::{SOURCES, Source, fail_if_any, is_in, layer};
use crate::{APART, LAYERS, OWNERS};

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|&known| known == layer)
}

/// The names that follow `prefix` in a line of code, where `prefix` begins a path.
fn after<'a>(code: &'a str, prefix: &str) -> Vec<&'a str> {
    let is_ident = |c: char| c.is_alphanumeric() || c == '_';
    let begins = |at: usize| !code[..at].ends_with(|c: char| is_ident(c) || c == ':');
    let starts = code.match_indices(prefix).filter(|(at, _)| begins(*at));
    starts
        .map(|(at, _)| code[at + prefix.len()..].split(|c| !is_ident(c)).next().unwrap_or_default())
        .collect()
}

/// The prefix of paths from the file to the root of the crate by `super`.
fn up(path: &str) -> String {
    "super::".repeat(path.trim_start_matches("glidefs/src/").split('/').count())
}

fn violations(source: &Source) -> Vec<String> {
    let Some(own) = layer(&source.path) else { return Vec::new() };
    let mut found = Vec::new();
    for (line, code) in source.code() {
        let place = format!("{}:{line}", source.path);
        let mut used: BTreeSet<&str> = after(code, "crate::").into_iter().collect();
        if used.contains("") {
            found.push(format!("{place}: name what is used, without braces or a glob after the root"));
        }
        used.extend(after(code, &up(&source.path)));
        for other in used.into_iter().filter(|other| rank(other).is_some()) {
            if rank(other) < rank(own) {
                found.push(format!("{place}: {other} is a layer above {own}: hand the value in instead"));
            }
            if APART.iter().any(|(folder, apart)| *apart == other && is_in(&source.path, folder)) {
                found.push(format!("{place}: this folder knows nothing of {other}"));
            }
        }
        for (name, owners) in OWNERS {
            let is_used = code.match_indices(&format!("{name}::")).any(|(at, _)| {
                !code[..at].ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | ':' | '"' | ','))
            });
            if is_used && !owners.contains(&own) {
                found.push(format!("{place}: {own} uses {name}, which belongs to {}", owners.join(" and ")));
            }
        }
    }
    found
}

#[test]
fn a_layer_uses_only_layers_below_it_and_its_own_external_crates() {
    let layers: BTreeSet<&str> = SOURCES.iter().filter_map(|source| layer(&source.path)).collect();
    let unplaced = layers.iter().filter(|layer| rank(layer).is_none());
    let gone = LAYERS.iter().filter(|layer| !layers.contains(**layer));
    let misplaced = unplaced.chain(gone).map(|layer| format!("LAYERS of tests/tidy.rs: mend {layer}"));
    fail_if_any(&misplaced.chain(SOURCES.iter().flat_map(violations)).collect::<Vec<_>>());
}

#[test]
fn every_file_opens_with_what_it_owns() {
    let without = SOURCES.iter().filter(|source| !source.text.starts_with("//! "));
    fail_if_any(&without.map(|source| format!("{}: begin with `//!`", source.path)).collect::<Vec<_>>());
}

#[test]
fn a_path_to_a_layer_above_is_seen() {
    let found = |path: &str, text: &str| violations(&Source::new(path, text)).len();
    assert_eq!(found("glidefs/src/store/a.rs", "use crate::units::A;\nuse super::b; // crate::cli"), 0);
    assert_eq!(found("glidefs/src/store/a.rs", "use crate::cache::A;"), 1);
    assert_eq!(found("glidefs/src/store/a.rs", "fn f() { super::super::cli::g() }"), 1);
    assert_eq!(found("glidefs/src/cache/log/a.rs", "use crate::store::A;"), 1);
    assert_eq!(found("glidefs/src/store/a.rs", "use crate::{units::A, cli::B};"), 1);
    assert_eq!(found("glidefs/src/store/a.rs", "use crate::*;"), 1);
    assert_eq!(found("glidefs/src/cache/a.rs", "fn f() { redb::open(); tokio::spawn() }"), 1);
}
