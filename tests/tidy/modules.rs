//! The modules of a crate: which names each defines and imports, and which paths its code mentions.
//!
//! Owns parsing. Code which exists only in tests, fuzzers and simulations is told apart. Paths are as written; `graph`
//! resolves the paths.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprCall, Item, ItemMod, ItemUse, Meta, Stmt, Token, UseTree, Visibility};

use super::sources::Source;

/// Who needs a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Need {
    /// The program.
    Code,
    /// Whoever imports the name from here: `pub use`.
    Reexport,
    /// Tests, fuzzers, simulations.
    Tests,
}

/// A path in a module, as written.
#[derive(Debug)]
pub struct Mention {
    pub path: Vec<String>,
    pub line: usize,
    pub need: Need,
}

/// An import: a path and the name which the path has here.
#[derive(Debug)]
pub struct Import {
    pub mention: Mention,
    /// `None`: all names, `*`.
    pub name: Option<String>,
}

/// A module: a file, or an inline module of one.
#[derive(Debug, Default)]
pub struct Module {
    pub path: Vec<String>,
    pub file: String,
    pub children: BTreeSet<String>,
    pub items: BTreeSet<String>,
    pub imports: Vec<Import>,
    pub mentions: Vec<Mention>,
}

/// All modules of a crate by path; the root has the empty path.
pub type Modules = BTreeMap<Vec<String>, Module>;

/// Reads the crate with the root `folder/lib.rs`, following `mod` declarations.
pub fn read_crate(sources: &[Source], folder: &str) -> Modules {
    let text: BTreeMap<&str, &str> = sources.iter().map(|s| (s.path.as_str(), s.text.as_str())).collect();
    let mut modules = Modules::new();
    let mut waiting = vec![(Vec::new(), Need::Code)];
    while let Some((path, need)) = waiting.pop() {
        let file = if path.is_empty() {
            format!("{folder}/lib.rs")
        } else {
            format!("{folder}/{}.rs", path.join("/"))
        };
        // A declaration with `#[path]` names a file outside of the folder: shared sources of tests.
        let Some(text) = text.get(file.as_str()) else { continue };
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file} cannot be parsed: {error}"));
        let module = Module { path, file, ..Module::default() };
        let mut reader = Reader { module, inline: Vec::new(), files: Vec::new(), need, depth: 0 };
        reader.visit_file(&parsed);
        waiting.append(&mut reader.files);
        for module in reader.inline.into_iter().chain([reader.module]) {
            modules.insert(module.path.clone(), module);
        }
    }
    modules
}

struct Reader {
    module: Module,
    /// Inline modules which were read.
    inline: Vec<Module>,
    /// Declarations of further files.
    files: Vec<(Vec<String>, Need)>,
    /// Whose code is being read: the program's or a test's.
    need: Need,
    /// Functions and blocks around the current place.
    depth: usize,
}

impl Reader {
    /// Runs `read`; a `#[cfg(test)]` inside holds no longer than that.
    fn scope(&mut self, read: impl FnOnce(&mut Self)) {
        let need = self.need;
        read(self);
        self.need = need;
    }

    /// Notes a path, unless the path can only be a variable.
    fn mention(&mut self, path: &[Ident], is_called: bool) {
        let Some(first) = path.first() else { return };
        let line = first.span().start().line;
        let path: Vec<String> = path.iter().map(ToString::to_string).collect();
        if path.len() > 1 || is_called || path[0].starts_with(char::is_uppercase) {
            self.module.mentions.push(Mention { path, line, need: self.need });
        }
    }

    fn import(&mut self, tree: &UseTree, prefix: &mut Vec<Ident>, need: Need) {
        let (last, name) = match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.clone());
                self.import(&path.tree, prefix, need);
                prefix.pop();
                return;
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|item| self.import(item, prefix, need));
            }
            UseTree::Name(name) => (Some(&name.ident), Some(&name.ident)),
            UseTree::Rename(name) => (Some(&name.ident), Some(&name.rename)),
            UseTree::Glob(_) => (None, None),
        };
        let line = last.or(prefix.last()).map_or(0, |ident| ident.span().start().line);
        // `a::{self}` is `a`.
        let is_self = last.is_some_and(|last| last == "self") && !prefix.is_empty();
        let name = if is_self && name == last { prefix.last() } else { name };
        let name = name.map(ToString::to_string);
        let last = last.filter(|_| !is_self);
        let path = prefix.iter().chain(last).map(ToString::to_string).collect();
        self.module.imports.push(Import { mention: Mention { path, line, need }, name });
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if only_in_tests(&attribute.meta) {
            self.need = Need::Tests;
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_item(&mut self, item: &'ast Item) {
        if let Some(name) = name_of(item).filter(|_| self.depth == 0) {
            self.module.items.insert(name.to_string());
        }
        self.scope(|reader| visit::visit_item(reader, item));
    }

    fn visit_impl_item(&mut self, item: &'ast syn::ImplItem) {
        self.scope(|reader| visit::visit_impl_item(reader, item));
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.scope(|reader| visit::visit_field(reader, field));
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        self.scope(|reader| visit::visit_stmt(reader, statement));
    }

    fn visit_block(&mut self, block: &'ast syn::Block) {
        self.depth += 1;
        visit::visit_block(self, block);
        self.depth -= 1;
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        item.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
        let mut path = self.module.path.clone();
        path.push(item.ident.to_string());
        self.module.children.insert(item.ident.to_string());
        let Some((_, items)) = &item.content else { return self.files.push((path, self.need)) };
        let inner = Module { path, file: self.module.file.clone(), ..Module::default() };
        let outer = std::mem::replace(&mut self.module, inner);
        for item in items {
            self.visit_item(item);
        }
        self.inline.push(std::mem::replace(&mut self.module, outer));
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        item.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
        let is_private = matches!(item.vis, Visibility::Inherited);
        let need = if self.need == Need::Code && !is_private { Need::Reexport } else { self.need };
        self.import(&item.tree, &mut Vec::new(), need);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(function) = &*call.func
            && let Some(name) = function.path.get_ident()
        {
            self.mention(std::slice::from_ref(name), true);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let idents: Vec<Ident> = path.segments.iter().map(|segment| segment.ident.clone()).collect();
        self.mention(&idents, false);
        visit::visit_path(self, path);
    }

    /// The path in `pub(in path)` is no use of the module there.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    /// The input of a macro or attribute: whatever looks like a path.
    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        self.tokens(tokens.clone());
    }
}

impl Reader {
    fn tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Vec::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.mention(&std::mem::take(&mut path), false);
                    }
                    path.push(ident);
                    colons = 0;
                }
                other => {
                    self.mention(&std::mem::take(&mut path), false);
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.tokens(group.stream());
                    }
                }
            }
        }
        self.mention(&path, false);
    }
}

/// Whether an attribute is a `cfg` which holds for no program: `test`, `fuzzing`.
fn only_in_tests(meta: &Meta) -> bool {
    fn holds_only_in_tests(condition: &Meta) -> bool {
        let inner = |list: &syn::MetaList| {
            list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).unwrap_or_default()
        };
        match condition {
            Meta::Path(path) => path.is_ident("test") || path.is_ident("fuzzing"),
            Meta::List(list) if list.path.is_ident("any") => inner(list).iter().all(holds_only_in_tests),
            Meta::List(list) if list.path.is_ident("all") => inner(list).iter().any(holds_only_in_tests),
            Meta::List(_) | Meta::NameValue(_) => false,
        }
    }
    let Meta::List(list) = meta else { return false };
    list.path.is_ident("cfg")
        && list.parse_args().is_ok_and(|condition: Meta| holds_only_in_tests(&condition))
}

/// The name which an item defines.
pub fn name_of(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::TraitAlias(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Module {
        read_crate(&[Source::new("made/lib.rs", text)], "made")
            .remove(&Vec::new())
            .expect("the root was read")
    }

    #[test]
    fn imports_are_read_through_braces_renames_and_globs() {
        let module = read("use a::{self, b::{c as d, *}, e::f as _};\npub(crate) use super::g;");
        let found: Vec<_> = module
            .imports
            .iter()
            .map(|i| (i.mention.path.join("::"), i.name.as_deref(), i.mention.line, i.mention.need))
            .collect();
        let expected = [
            ("a".to_owned(), Some("a"), 1, Need::Code),
            ("a::b::c".to_owned(), Some("d"), 1, Need::Code),
            ("a::b".to_owned(), None, 1, Need::Code),
            ("a::e::f".to_owned(), Some("_"), 1, Need::Code),
            ("super::g".to_owned(), Some("g"), 2, Need::Reexport),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn paths_are_read_in_code_macros_and_attributes() {
        let text = "#[x(with = crate::a::B)] struct S(c::D<crate::e::F>);
            pub(in crate::no) fn f(v: u8) { let x = g::H { i: 1 }; j!(\"{}\", k::L(v), M); n(v); v.o(); }";
        let found: Vec<String> = read(text).mentions.iter().map(|m| m.path.join("::")).collect();
        assert_eq!(found, ["crate::a::B", "c::D", "crate::e::F", "g::H", "k::L", "M", "n"]);
    }

    #[test]
    fn code_of_tests_is_told_apart() {
        let text = "#[cfg(test)] mod tests { use a::B; }
            #[cfg(any(test, fuzzing))] fn f() { c::D }
            #[cfg(any(test, unix))] fn g() { e::F }
            impl S { #[cfg(test)] fn h() { i::J } fn k() { l::M } }";
        let crate_of = read_crate(&[Source::new("made/lib.rs", text)], "made");
        assert_eq!(crate_of[&vec!["tests".to_owned()]].imports[0].mention.need, Need::Tests);
        let mentions = crate_of[&Vec::new()].mentions.iter().filter(|m| m.path.len() == 2);
        let found: Vec<_> = mentions.map(|m| (m.path.join("::"), m.need)).collect();
        let needs =
            [("c::D", Need::Tests), ("e::F", Need::Code), ("i::J", Need::Tests), ("l::M", Need::Code)];
        assert_eq!(found, needs.map(|(path, need)| (path.to_owned(), need)));
    }

    #[test]
    fn a_declared_module_is_read_from_the_file_of_its_name() {
        let sources = [
            Source::new("made/lib.rs", "mod a;\n#[cfg(test)]\nmod tests;"),
            Source::new("made/a.rs", "mod b; struct A;"),
            Source::new("made/a/b.rs", "const B: u8 = 1;"),
            Source::new("made/tests.rs", "fn t() { a::A }"),
        ];
        let modules = read_crate(&sources, "made");
        let at = |path: &[&str]| &modules[&path.iter().map(ToString::to_string).collect::<Vec<_>>()];
        assert!(at(&["a"]).items.contains("A") && at(&["a", "b"]).items.contains("B"));
        assert_eq!(at(&["tests"]).mentions[0].need, Need::Tests);
    }
}
