//! Which file imports which: each path is resolved to the file which defines the name, through re-exports.
//!
//! Owns the resolution of names. Knows nothing of layers and rules. Calls of methods are no imports: a type may have its
//! methods in many files.

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;

use super::modules::{Import, Mention, Module, Modules, Need, read_crate};
use super::sources::{SOURCES, Source};

/// An import of one file by another, where the name occurs first.
#[derive(Debug)]
pub struct Edge {
    pub from: String,
    pub line: usize,
    /// As written.
    pub name: String,
    /// The name which the file `to` defines; empty: all names.
    pub item: String,
    /// The top module which the path names: where the file looks for the name.
    pub through: String,
    /// The file which defines the name.
    pub to: String,
    pub need: Need,
}

/// A path of another crate, or a name of the language.
#[derive(Debug)]
pub struct Outside {
    pub file: String,
    pub line: usize,
    pub name: String,
}

/// The imports between the files of a crate.
#[derive(Debug, Default)]
pub struct Graph {
    pub edges: Vec<Edge>,
    pub outside: Vec<Outside>,
}

/// The imports of the library.
pub static GRAPH: LazyLock<Graph> = LazyLock::new(|| {
    let graph = Graph::new(&SOURCES, "glidefs/src");
    assert!(graph.edges.len() > 100, "only {} imports were found: the test looks wrongly", graph.edges.len());
    graph
});

impl Graph {
    /// The graph of the crate with the root `folder/lib.rs`.
    pub fn new(sources: &[Source], folder: &str) -> Self {
        let names = Names { modules: read_crate(sources, folder) };
        let mut graph = Self::default();
        for module in names.modules.values() {
            for Import { mention, name } in &module.imports {
                graph.add(&names, module, mention, name.is_none());
            }
            for mention in &module.mentions {
                graph.add(&names, module, mention, false);
            }
        }
        graph.edges.sort_by(|a, b| (&a.from, a.line, &a.to).cmp(&(&b.from, b.line, &b.to)));
        let mut seen = HashSet::new();
        graph.edges.retain(|e| seen.insert((e.from.clone(), e.to.clone(), e.item.clone(), e.need)));
        graph
    }

    fn add(&mut self, names: &Names, module: &Module, mention: &Mention, is_glob: bool) {
        match names.resolve(module, &mention.path, DEPTH_MAX) {
            Some(Target::Outside) => {
                let name = mention.path.join("::");
                self.outside.push(Outside { file: module.file.clone(), line: mention.line, name });
            }
            // An import of a module is none of a file: the paths through the module are.
            Some(Target::Module(_)) if !is_glob => {}
            Some(Target::Module(target)) => self.push(names, module, mention, target, ""),
            Some(Target::Item(target, item)) => self.push(names, module, mention, target, item),
            None => {}
        }
    }

    fn push(&mut self, names: &Names, from: &Module, mention: &Mention, to: &Module, item: &str) {
        if from.file != to.file {
            self.edges.push(Edge {
                from: from.file.clone(),
                line: mention.line,
                name: mention.path.join("::"),
                item: item.to_owned(),
                through: names.top(from, &mention.path).unwrap_or_default(),
                to: to.file.clone(),
                need: mention.need,
            });
        }
    }

    /// The imports of the program's code, not of tests; one for each pair of files.
    pub fn code(&self) -> BTreeMap<&str, BTreeMap<&str, &Edge>> {
        let mut pairs: BTreeMap<&str, BTreeMap<&str, &Edge>> = BTreeMap::new();
        for edge in self.edges.iter().filter(|edge| edge.need == Need::Code) {
            pairs.entry(&edge.from).or_default().entry(&edge.to).or_insert(edge);
        }
        pairs
    }
}

/// Longest chain of re-exports which is followed; names may run in a circle.
const DEPTH_MAX: usize = 16;

/// Where a path leads.
#[derive(Clone, Copy)]
enum Target<'a> {
    Module(&'a Module),
    /// An item, and the module which defines the item.
    Item(&'a Module, &'a str),
    Outside,
}

struct Names {
    modules: Modules,
}

impl Names {
    /// Follows a path written in the module `from`. `None`: a path which leads nowhere, such as one to a name which a macro
    /// defines.
    fn resolve(&self, from: &Module, path: &[String], depth: usize) -> Option<Target<'_>> {
        let (base, rest) = self.base(from, path)?;
        let mut target = Target::Module(base);
        for (index, name) in rest.iter().enumerate() {
            let Target::Module(module) = target else { break };
            let is_last = index + 1 == rest.len();
            match self.look_up(module, name, is_last, depth.checked_sub(1)?) {
                Some(found) => target = found,
                // Only the first name of a path can be an external crate.
                None if index == 0 && rest.len() == path.len() => return Some(Target::Outside),
                None => return None,
            }
        }
        Some(target)
    }

    /// The module in which the first name of a path is looked up, and the path from there.
    fn base<'p>(&self, from: &Module, path: &'p [String]) -> Option<(&Module, &'p [String])> {
        let mut base = from.path.as_slice();
        let mut rest = path;
        while let Some((first, after)) = rest.split_first() {
            match first.as_str() {
                "crate" => base = &[],
                "self" => {}
                "super" => base = &base[..base.len().checked_sub(1)?],
                _ => break,
            }
            rest = after;
        }
        Some((self.modules.get(base)?, rest))
    }

    /// Finds a name in a module. A last name is an item if one has the name; any other is a module.
    fn look_up(&self, module: &Module, name: &str, is_last: bool, depth: usize) -> Option<Target<'_>> {
        let module = self.modules.get(&module.path)?;
        let item = module.items.get(name).map(|name| Target::Item(module, name));
        let child = module.children.contains(name).then(|| {
            let path: Vec<String> =
                module.path.iter().map(String::as_str).chain([name]).map(Into::into).collect();
            self.modules.get(&path).map(Target::Module)
        });
        let (first, second) = if is_last { (item, child.flatten()) } else { (child.flatten(), item) };
        let named = module.imports.iter().filter(|import| import.name.as_deref() == Some(name));
        // `use a::a` names a crate `a`: the import does not explain its own path.
        let mut named = named.filter(|import| import.mention.path[0] != name);
        first.or_else(|| named.find_map(|i| self.resolve(module, &i.mention.path, depth))).or(second).or_else(
            || {
                let mut globs = module.imports.iter().filter(|import| import.name.is_none());
                globs.find_map(|glob| self.through_glob(module, glob, name, is_last, depth))
            },
        )
    }

    fn through_glob<'a>(
        &'a self,
        module: &Module,
        glob: &Import,
        name: &str,
        is_last: bool,
        depth: usize,
    ) -> Option<Target<'a>> {
        match self.resolve(module, &glob.mention.path, depth)? {
            Target::Module(inner) if inner.path != module.path => {
                self.look_up(inner, name, is_last, depth.checked_sub(1)?)
            }
            _ => None,
        }
    }

    /// The top module which a path names.
    fn top(&self, from: &Module, path: &[String]) -> Option<String> {
        let (base, rest) = self.base(from, path)?;
        base.path.iter().chain(rest).next().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each file of a crate imports: "from:line need to".
    fn edges(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source::new(&format!("made/{path}.rs"), text)).collect();
        let graph = Graph::new(&sources, "made");
        let name = |file: &str| file["made/".len()..file.len() - ".rs".len()].to_owned();
        let show = |e: &Edge| format!("{}:{} {:?} {}", name(&e.from), e.line, e.need, name(&e.to));
        graph.edges.iter().map(show).collect()
    }

    #[test]
    fn a_name_leads_to_the_file_which_defines_it() {
        let found = edges(&[
            ("lib", "mod a; mod b;"),
            ("a", "mod c;\npub use self::c::C;\npub use c::*;"),
            ("a/c", "pub struct C; pub fn d() {}"),
            ("b", "use crate::a::{C,\n d};\nfn f() { crate::a::C::new(); crate::a::c::d(); d() }"),
        ]);
        assert!(found.contains(&"a:2 Reexport a/c".to_owned()));
        let of_b: Vec<_> = found.iter().filter(|edge| edge.starts_with("b:")).collect();
        assert_eq!(of_b, ["b:1 Code a/c", "b:2 Code a/c"]);
        assert!(!found.iter().any(|edge| edge.ends_with(" a")));
    }

    #[test]
    fn an_imported_module_is_only_a_way_to_names() {
        let found = edges(&[
            ("lib", "mod a; mod b;"),
            ("a", "pub mod c; pub const A: u8 = 1;"),
            ("a/c", "pub enum C { D }"),
            ("b", "use super::a as other;\nuse super::a::c;\nfn f() { c::C::D }\nfn g() { other::A }"),
        ]);
        assert_eq!(found, ["b:3 Code a/c", "b:4 Code a"]);
    }

    #[test]
    fn a_re_export_counts_only_where_the_name_is_used() {
        let child = ("a", "pub struct A; pub struct B;");
        assert_eq!(edges(&[("lib", "mod a;\npub use a::A;"), child]), ["lib:2 Reexport a"]);
        let used = edges(&[("lib", "mod a;\npub use a::A;\nfn f(a: A) {}"), child]);
        assert_eq!(used, ["lib:2 Reexport a", "lib:3 Code a"]);
    }

    #[test]
    fn names_of_tests_other_crates_and_circles_are_no_imports_of_the_program() {
        let files = [
            ("lib", "mod a; mod b;"),
            (
                "a",
                "use toml::Value as toml; pub use super::b::X;\n#[cfg(test)] mod tests { use super::super::b::B; }",
            ),
            ("b", "pub struct B; pub use super::a::X; fn f(v: Vec<B>) { serde::Y; v::<X>() }"),
        ];
        assert_eq!(edges(&files), ["a:2 Tests b"]);
        let sources = files.map(|(path, text)| Source::new(&format!("made/{path}.rs"), text));
        let outside = Graph::new(&sources, "made").outside;
        let paths = outside.iter().map(|o| o.name.as_str()).filter(|name| name.contains("::"));
        assert_eq!(paths.collect::<Vec<_>>(), ["toml::Value", "serde::Y"]);
    }
}
