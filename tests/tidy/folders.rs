//! Which folder may import which, and which folder may use an external crate.
//!
//! The rules are LAYERS, FLOORS, APART and OWNERS in `tests/tidy.rs`.

use std::collections::BTreeSet;

use super::graph::{Edge, GRAPH, Graph, Outside};
use super::modules::Need;
use super::sources::{SOURCES, fail_if_any, is_in, layer};
use crate::{APART, FLOORS, LAYERS, OWNERS};

fn rank(layer: &str) -> Option<usize> {
    LAYERS.iter().position(|&known| known == layer)
}

/// Imports of a higher layer, those of tests and re-exports too.
fn upward_layers(graph: &Graph) -> Vec<String> {
    let mut violations = Vec::new();
    for Edge { from, line, name, through, to, .. } in &graph.edges {
        let Some(own) = layer(from).and_then(rank) else { continue };
        for layer in [layer(to).unwrap_or_default(), through] {
            if rank(layer).is_some_and(|imported| imported < own) {
                violations.push(format!(
                    "{from}:{line}: `{name}` is of {layer}, a layer above: hand the value in instead"
                ));
            }
        }
    }
    violations.dedup();
    violations
}

/// The floor of a file in a layer with floors, 0 for the lowest.
fn floor(path: &str, layer: &str, floors: &[&str]) -> Option<usize> {
    let own = floors.iter().position(|floor| is_in(path, &format!("{layer}/{floor}")));
    is_in(path, layer).then(|| own.unwrap_or(floors.len()))
}

/// Imports of a higher floor in the same layer. Tests may reach up.
pub fn upward_floors(graph: &Graph) -> Vec<String> {
    let mut violations = Vec::new();
    for &(layer, floors) in FLOORS {
        for Edge { from, line, name, to, .. } in graph.edges.iter().filter(|edge| edge.need != Need::Tests) {
            let (Some(own), Some(imported)) = (floor(from, layer, floors), floor(to, layer, floors)) else {
                continue;
            };
            if imported > own {
                let floor = floors[own];
                violations.push(format!(
                    "{from}:{line}: `{name}` of {to} is above the floor {layer}/{floor}: move the item down or hand the \
                     value in"
                ));
            }
        }
    }
    violations
}

/// Imports of a lower layer by a folder which must not know the layer.
fn not_apart(graph: &Graph) -> Vec<String> {
    let mut violations = Vec::new();
    for &(folder, other) in APART {
        for Edge { from, line, name, to, through, .. } in &graph.edges {
            if is_in(from, folder) && (layer(to) == Some(other) || through == other) {
                violations.push(format!("{from}:{line}: `{name}`: {folder} knows nothing of {other}"));
            }
        }
    }
    violations
}

fn misused_crates(graph: &Graph) -> Vec<String> {
    let mut violations = Vec::new();
    for Outside { file, line, name } in &graph.outside {
        let used = name.split("::").next().unwrap_or_default();
        let owners = OWNERS.iter().find(|(owned, _)| *owned == used).map(|(_, owners)| *owners);
        let (Some(owners), Some(layer)) = (owners, layer(file)) else { continue };
        if !owners.contains(&layer) {
            violations.push(format!(
                "{file}:{line}: {layer} uses {used}, which belongs to {}",
                owners.join(" and ")
            ));
        }
    }
    violations
}

#[test]
fn a_folder_imports_only_folders_below_it() {
    let layers =
        SOURCES.iter().filter_map(|source| layer(&source.path)).filter(|layer| rank(layer).is_none());
    let mut unknown: Vec<String> = layers
        .map(|layer| format!("{layer} has no place in LAYERS of tests/tidy.rs: add the layer"))
        .collect();
    unknown.dedup();
    unknown.extend(upward_layers(&GRAPH));
    fail_if_any(&unknown);
}

#[test]
fn a_floor_of_a_folder_imports_only_floors_below_it() {
    let floors = FLOORS.iter().flat_map(|(layer, floors)| floors.iter().map(move |f| format!("{layer}/{f}")));
    let folders: BTreeSet<String> =
        floors.chain(APART.iter().map(|(folder, _)| (*folder).to_owned())).collect();
    let absent = folders.iter().filter(|folder| !SOURCES.iter().any(|source| is_in(&source.path, folder)));
    let mut violations: Vec<String> = absent
        .map(|folder| format!("{folder} does not exist: mend FLOORS and APART of tests/tidy.rs"))
        .collect();
    violations.extend(upward_floors(&GRAPH));
    violations.extend(not_apart(&GRAPH));
    fail_if_any(&violations);
}

#[test]
fn an_external_crate_is_used_only_by_its_owner() {
    let used = |name: &str| GRAPH.outside.iter().any(|o| o.name.split("::").next() == Some(name));
    let unused = OWNERS.iter().filter(|(name, _)| !used(name));
    let mut violations: Vec<String> =
        unused.map(|(name, _)| format!("nobody uses {name}: mend OWNERS of tests/tidy.rs")).collect();
    violations.extend(misused_crates(&GRAPH));
    fail_if_any(&violations);
}

#[cfg(test)]
mod tests {
    use super::super::sources::Source;
    use super::*;

    /// A made-up library with the items and imports of several layers and floors.
    fn made_up(files: &[(&str, &str)]) -> Graph {
        let root = "mod router; mod cache; mod store; mod units;";
        let cache = "mod log; mod volume; mod shard; pub use log::Segment;";
        let known = [
            ("lib", root),
            ("router", "pub struct Router; pub use super::units::Seq;"),
            ("cache", cache),
            ("cache/log", "pub struct Segment;"),
            ("cache/volume", "pub struct Volume;"),
            ("cache/shard", "pub struct Shard;"),
            ("store", "pub struct Store;"),
            ("units", "pub struct Seq;"),
        ];
        let others = known.iter().filter(|(path, _)| !files.iter().any(|(own, _)| own == path));
        let all = files.iter().chain(others);
        let sources: Vec<Source> =
            all.map(|(path, text)| Source::new(&format!("glidefs/src/{path}.rs"), text)).collect();
        Graph::new(&sources, "glidefs/src")
    }

    #[test]
    fn an_import_of_a_higher_layer_is_seen() {
        let found = upward_layers(&made_up(&[("store", "mod a;\nuse crate::router::Router;")]));
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("glidefs/src/store.rs:2: `crate::router::Router`"), "{found:?}");
        // Through a re-export above, in a test, and in a macro.
        for text in [
            "use crate::router::Seq;",
            "#[cfg(test)] mod tests { use crate::router::Router; }",
            "fn f() { assert!(crate::router::Router) }",
            "pub use crate::router::Router;",
        ] {
            assert_eq!(upward_layers(&made_up(&[("store", text)])).len(), 1, "{text}");
        }
        assert!(upward_layers(&made_up(&[("cache/log", "use crate::units::Seq;")])).is_empty());
    }

    #[test]
    fn an_import_of_a_higher_floor_is_seen() {
        let upward = |path, text| upward_floors(&made_up(&[(path, text)])).len();
        assert_eq!(upward("cache/log", "use super::volume::Volume;"), 1);
        assert_eq!(upward("cache/log", "use crate::cache::shard::Shard;"), 1);
        assert_eq!(upward("cache/volume", "fn f(s: super::shard::Shard) {}"), 1);
        assert_eq!(upward("cache/volume", "use super::log::Segment;"), 0);
        assert_eq!(upward("cache/shard", "use super::{log::Segment, volume::Volume};"), 0);
        assert_eq!(upward("cache/log", "#[cfg(test)] mod tests { use crate::cache::shard::Shard; }"), 0);
    }

    #[test]
    fn an_import_of_a_layer_apart_is_seen() {
        assert_eq!(not_apart(&made_up(&[("cache/log", "use crate::store::Store;")])).len(), 1);
        assert!(not_apart(&made_up(&[("cache/volume", "use crate::store::Store;")])).is_empty());
    }

    #[test]
    fn the_use_of_an_external_crate_is_seen() {
        let misused = |text| misused_crates(&made_up(&[("cache/log", text)]));
        let found = misused("use super::volume;\nfn f() { blake3::hash(b) }");
        assert_eq!(
            found,
            ["glidefs/src/cache/log.rs:2: cache uses blake3, which belongs to csi and router and store"]
        );
        assert_eq!(misused("use zstd::{Decoder, bulk};").len(), 2);
        assert_eq!(misused("use redb as r; fn f() { r::open() }").len(), 1);
        assert!(misused("use std::io; fn f() { let toml = 1; my::redb::x() }").is_empty());
    }
}
