//! No circle of three or more files in a folder.
//!
//! Two files may import each other: a parent and the child which holds a part of the parent, say. Such pairs may form a
//! tree. Three files which import each other in a circle are one thing in three files.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::graph::{Edge, GRAPH, Graph};
use super::sources::{fail_if_any, layer};

type Pairs<'a> = BTreeMap<&'a str, BTreeMap<&'a str, &'a Edge>>;

/// A group of files of which each imports each other, through others perhaps.
pub struct Tangle<'a> {
    pub folder: &'a str,
    pub files: usize,
    /// The shortest circle of three or more files.
    pub circle: Vec<&'a Edge>,
}

/// Every group of files in one folder which holds a circle of three or more.
pub fn tangles(graph: &Graph) -> Vec<Tangle<'_>> {
    let mut pairs = graph.code();
    for (from, to) in &mut pairs {
        to.retain(|to, _| layer(to).is_some() && layer(from) == layer(to));
    }
    let edges = pairs.values().flat_map(BTreeMap::values);
    let mut circles: Vec<Vec<&Edge>> = edges.filter_map(|edge| circle(&pairs, edge)).collect();
    circles.sort_by_key(|circle| (circle.len(), &circle[0].from));
    let mut tangles: Vec<Tangle<'_>> = Vec::new();
    let mut known = BTreeSet::new();
    for circle in circles {
        let first = circle[0].from.as_str();
        if !known.contains(first) {
            let after = reached(&pairs, first);
            let group: Vec<&str> =
                after.into_iter().filter(|file| reached(&pairs, file).contains(first)).collect();
            tangles.push(Tangle { folder: layer(first).unwrap_or_default(), files: group.len(), circle });
            known.extend(group);
        }
    }
    tangles.sort_by_key(|tangle| tangle.folder);
    tangles
}

/// The shortest circle which begins with `first` and does not just turn back.
fn circle<'a>(pairs: &Pairs<'a>, first: &'a Edge) -> Option<Vec<&'a Edge>> {
    let (start, goal) = (first.to.as_str(), first.from.as_str());
    let mut came_by: BTreeMap<&str, &Edge> = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(file) = waiting.pop_front() {
        for (&to, &edge) in pairs.get(file).into_iter().flatten() {
            let turns_back = file == start && to == goal;
            if !turns_back && to != start && !came_by.contains_key(to) {
                came_by.insert(to, edge);
                waiting.push_back(to);
            }
        }
    }
    let mut back = vec![*came_by.get(goal)?];
    while back[back.len() - 1].from != start {
        back.push(came_by[back[back.len() - 1].from.as_str()]);
    }
    back.push(first);
    back.reverse();
    Some(back)
}

/// Every file which `start` imports, directly or through others.
fn reached<'a>(pairs: &Pairs<'a>, start: &'a str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::from([start]);
    let mut waiting = vec![start];
    while let Some(file) = waiting.pop() {
        let new = pairs.get(file).into_iter().flatten().map(|(&to, _)| to).filter(|&to| found.insert(to));
        waiting.extend(new.collect::<Vec<_>>());
    }
    found
}

fn violations(graph: &Graph) -> Vec<String> {
    let describe = |tangle: Tangle<'_>| {
        let imports: Vec<String> = tangle
            .circle
            .iter()
            .map(|edge| format!("    {}:{}: `{}` of {}", edge.from, edge.line, edge.name, edge.to))
            .collect();
        format!(
            "{}: {} files import each other; a shortest circle of imports:\n{}\n    Break the circle: move the shared item \
             down into a file which imports none of the others, or hand the value in instead of importing",
            tangle.folder,
            tangle.files,
            imports.join("\n")
        )
    };
    tangles(graph).into_iter().map(describe).collect()
}

#[test]
fn no_three_files_import_each_other_in_a_circle() {
    fail_if_any(&violations(&GRAPH));
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::super::sources::Source;
    use super::*;

    /// Violations of a folder `a` of which the files import as said: "b>c" means b imports c.
    fn violations_of(imports: &[&str]) -> Vec<String> {
        let mut text: BTreeMap<String, String> = BTreeMap::new();
        let mut declarations = String::new();
        for import in imports {
            let (from, to) = import.split_once('>').expect("an arrow");
            for file in [from, to] {
                text.entry(file.to_owned()).or_insert_with(|| {
                    declarations.extend(["mod ", file, ";"]);
                    "pub struct X;\n".to_owned()
                });
            }
            let own = text.get_mut(from).expect("inserted above");
            writeln!(own, "use super::{to}::X as {to};").expect("writing to a string does not fail");
        }
        let root = [("lib".to_owned(), "mod a;".to_owned()), ("a".to_owned(), declarations)];
        let inner = text.into_iter().map(|(file, text)| (format!("a/{file}"), text));
        let files = root.into_iter().chain(inner);
        let sources: Vec<Source> =
            files.map(|(file, text)| Source::new(&format!("glidefs/src/{file}.rs"), &text)).collect();
        violations(&Graph::new(&sources, "glidefs/src"))
    }

    #[test]
    fn a_tree_of_pairs_is_no_circle() {
        assert!(violations_of(&["b>c", "c>b", "b>d", "d>b", "d>e", "e>d", "c>f", "e>f"]).is_empty());
    }

    #[test]
    fn a_circle_of_three_is_shown_with_its_imports() {
        let found = violations_of(&["b>c", "c>b", "c>d", "d>b", "d>e", "f>b"]);
        assert_eq!(found.len(), 1);
        assert!(found[0].starts_with("a: 3 files import each other"), "{}", found[0]);
        for import in ["a/b.rs:2: `super::c::X`", "a/c.rs:3: `super::d::X`", "a/d.rs:2: `super::b::X`"] {
            assert!(found[0].contains(import), "{import} is not in {}", found[0]);
        }
    }

    #[test]
    fn each_group_is_shown_once() {
        assert_eq!(violations_of(&["b>c", "c>d", "d>b", "d>e", "e>b", "x>y", "y>z", "z>x", "b>x"]).len(), 2);
    }
}
