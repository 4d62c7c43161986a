//! Files that use each other in a circle: nobody can read one of them without all the others.
//!
//! An arrow leads from a file to each file that its code names: in `use`, and in paths that begin with `crate`,
//! `super`, `self` or a module of its own. A name that a module only passes on leads to where it comes from, so
//! declaring modules and re-exporting is no arrow. Methods of one type in several files are circles that no path shows;
//! hence a type's inherent `impl` blocks have to be in one file.
//!
//! Tests are not looked at: they may use what they like. Deliberately unknown: what a method of another type calls. Its
//! type is named where the value comes from.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::code;

/// Directories of modules in which no file may be part of a circle.
pub(crate) const WITHOUT_CIRCLES: &[&str] = &[
    "crates/bench/src",
    "crates/cli/src",
    "crates/io/src/array",
    "crates/io/src/buf",
    "crates/io/src/cache",
    "crates/io/src/disk",
    "crates/io/src/engine",
    "crates/io/src/format",
    "crates/io/src/member",
    "crates/io/src/xor",
    "crates/lab/src",
    "crates/layout/src",
    "crates/md/src",
    "crates/model/src",
    "crates/nbd-client/src",
    "crates/nbd/src",
    "crates/random/src",
    "crates/serve/src",
    "crates/sim/src/crash",
    "crates/sim/src/dst",
    "crates/sim/src/sweep",
    "xtask/src",
];

/// A module's place below the directory: no part for the one that declares the others.
type Module = Vec<String>;

/// What a file's code says.
struct Source {
    file: String,
    tokens: Vec<String>,
    imports: Vec<Import>,
}

/// One name of a `use`.
struct Import {
    path: Vec<String>,
    /// What the file calls it; `None` for all that a module has, or for a trait without a name.
    name: Option<String>,
}

/// How often a name may be passed on.
const PASSES_MAX: usize = 16;

/// What is wrong with the files of `directory`, given the paths and texts of the project's Rust files.
pub(crate) fn failures<'a>(directory: &str, files: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let tree = Tree::new(directory, files);
    let mut failures = tree.spread_types();
    let arrows = tree.arrows();
    let mut left: BTreeSet<&Module> = arrows.keys().collect();
    while let Some(module) = left.pop_first() {
        let Some(circle) = shortest_circle(module, &arrows) else { continue };
        let around = reached(module, &arrows);
        let together: Vec<&Module> =
            around.into_iter().filter(|other| reached(other, &arrows).contains(module)).collect();
        left.retain(|other| !together.contains(other));
        let names: Vec<&str> = circle.iter().map(|module| tree.file(module)).collect();
        let mut failure = format!("files use each other in a circle: {}", names.join(" -> "));
        if together.len() + 1 > circle.len() {
            let names: Vec<&str> = together.iter().map(|module| tree.file(module)).collect();
            failure += &format!("; {} files are in circles with it: {}", names.len(), names.join(", "));
        }
        failures.push(failure);
    }
    failures
}

/// The modules of a directory.
struct Tree {
    /// Its modules' path in their crate, `crate` not included.
    root: Module,
    modules: BTreeMap<Module, Source>,
}

impl Tree {
    fn new<'a>(directory: &str, files: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let inside = directory.split_once("/src").map_or("", |(_, inside)| inside);
        let root: Module = inside.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let mut modules = BTreeMap::new();
        for (file, text) in files {
            if let Some(module) = module_of(directory, file, root.is_empty()) {
                modules.insert(module, Source::new(file, text));
            }
        }
        Self { root, modules }
    }

    fn file(&self, module: &Module) -> &str {
        self.modules.get(module).map_or("", |source| &source.file)
    }

    /// Each file's module, and the modules that its code names.
    fn arrows(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        let mut arrows = BTreeMap::new();
        for (module, source) in &self.modules {
            let mut targets: BTreeSet<Module> =
                source.paths().iter().filter_map(|path| self.target(module, path, PASSES_MAX)).collect();
            let is_parent = self.modules.keys().any(|other| other.len() > module.len() && other.starts_with(module));
            for import in &source.imports {
                // A parent may pass on a name that it does not use.
                let is_used = import.name.as_ref().is_none_or(|name| source.tokens.contains(name));
                if is_used || !is_parent {
                    targets.extend(self.target(module, &import.path, PASSES_MAX));
                }
            }
            targets.remove(module);
            arrows.insert(module.clone(), targets);
        }
        arrows
    }

    /// Types with inherent `impl` blocks in more than one file.
    fn spread_types(&self) -> Vec<String> {
        let mut places: BTreeMap<(Module, String), BTreeSet<&str>> = BTreeMap::new();
        for (module, source) in &self.modules {
            for path in source.inherent_impls() {
                let name = path.last().expect("a type has a name").clone();
                let home =
                    if source.defines(&name) { Some(module.clone()) } else { self.target(module, &path, PASSES_MAX) };
                if let Some(home) = home {
                    places.entry((home, name)).or_default().insert(&source.file);
                }
            }
        }
        let spread = places.into_iter().filter(|(_, files)| files.len() > 1);
        spread
            .map(|((_, name), files)| {
                let files: Vec<&str> = files.into_iter().collect();
                format!("the methods of {name} are in {} files, which is a circle: {}", files.len(), files.join(", "))
            })
            .collect()
    }

    /// The module that has what `path` names in `module`; `None` for what is outside.
    fn target(&self, module: &[String], path: &[String], passes: usize) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        let mut at: Module = match first.as_str() {
            "crate" => {
                let inside = rest.strip_prefix(self.root.as_slice())?;
                return self.descend(Vec::new(), inside, passes);
            }
            "self" => module.to_vec(),
            "super" => module.split_last()?.1.to_vec(),
            _ => return self.named(module, path, passes),
        };
        let mut rest = rest;
        while let Some(after) = rest.strip_prefix(&["super".to_owned()]) {
            at.pop()?;
            rest = after;
        }
        self.descend(at, rest, passes)
    }

    /// As [`Tree::target`], of a path that begins with a module's or an imported name.
    fn named(&self, module: &[String], path: &[String], passes: usize) -> Option<Module> {
        let (first, rest) = path.split_first()?;
        let child = [module, std::slice::from_ref(first)].concat();
        if self.modules.contains_key(&child) {
            return self.descend(child, rest, passes);
        }
        let import = self.modules.get(module)?.imports.iter().find(|import| import.name.as_ref() == Some(first))?;
        // `use io::{self}` and such lead outside, and would lead here again.
        if import.path.first() == Some(first) {
            return None;
        }
        self.target(module, &[&import.path, rest].concat(), passes.checked_sub(1)?)
    }

    fn descend(&self, at: Module, path: &[String], passes: usize) -> Option<Module> {
        let Some((first, rest)) = path.split_first() else { return Some(at) };
        let source = self.modules.get(&at)?;
        let child = [at.as_slice(), std::slice::from_ref(first)].concat();
        if self.modules.contains_key(&child) {
            return self.descend(child, rest, passes);
        }
        // A macro that is imported may have the name of something that is defined here.
        if source.imports(first) && !source.defines(first) { self.named(&at, path, passes) } else { Some(at) }
    }
}

impl Source {
    fn new(file: &str, text: &str) -> Self {
        // Every item has something before it.
        let mut tokens = vec![";".to_owned()];
        tokens.extend(without_tests(&self::tokens(&code::only(text))));
        let mut imports = Vec::new();
        while let Some(start) = (0..tokens.len()).find(|&at| is_use(&tokens, at)) {
            let length = tokens[start..].iter().position(|token| token == ";").unwrap_or(tokens.len() - start - 1);
            let statement: Vec<String> = tokens.drain(start..=start + length).collect();
            let mut at = 1;
            import_tree(&statement, &mut at, &[], &mut imports);
        }
        Self { file: file.to_owned(), tokens, imports }
    }

    /// Every path of more than one part, without those of `use`.
    fn paths(&self) -> Vec<Vec<String>> {
        let mut paths = Vec::new();
        let mut at = 0;
        while at < self.tokens.len() {
            let (path, after) = path_at(&self.tokens, at);
            // `pub(in crate::a)` says who may see something, not what it needs.
            let is_new = |before: usize| !["::", "in"].contains(&self.tokens[before].as_str());
            if path.len() > 1 && at.checked_sub(1).is_none_or(is_new) {
                paths.push(path);
            }
            at = after.max(at + 1);
        }
        paths
    }

    /// The types that inherent `impl` blocks are for.
    fn inherent_impls(&self) -> Vec<Vec<String>> {
        let is_item = |before: &String| ["}", "{", ";", "]", "unsafe"].contains(&before.as_str());
        let mut types = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            if token != "impl" || !at.checked_sub(1).is_none_or(|before| is_item(&self.tokens[before])) {
                continue;
            }
            let start = after_generics(&self.tokens, at + 1);
            let (path, end) = path_at(&self.tokens, start);
            let end = after_generics(&self.tokens, end);
            let is_inherent = self.tokens.get(end).is_some_and(|next| next == "{" || next == "where");
            if is_inherent && !path.is_empty() {
                types.push(path);
            }
        }
        types
    }

    fn imports(&self, name: &str) -> bool {
        self.imports.iter().any(|import| import.name.as_deref() == Some(name))
    }

    fn defines(&self, name: &str) -> bool {
        const KINDS: [&str; 8] = ["struct", "enum", "union", "type", "trait", "fn", "const", "static"];
        self.tokens.windows(3).any(|at| at[0] != "'" && KINDS.contains(&at[1].as_str()) && at[2] == name)
    }
}

/// The module that a file is; `None` for tests, for programs of their own and for what lies elsewhere.
fn module_of(directory: &str, file: &str, is_crate: bool) -> Option<Module> {
    let stem = file.strip_suffix(".rs")?;
    let inside = stem.strip_prefix(directory)?;
    if inside.is_empty() {
        return Some(Vec::new());
    }
    let mut module: Module = inside.strip_prefix('/')?.split('/').map(str::to_owned).collect();
    let is_root = is_crate && (module == ["lib"] || module == ["main"]);
    if is_root || module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    let is_apart = is_crate && module.first().is_some_and(|first| first == "bin");
    (!is_apart && !module.iter().any(|part| part == "tests")).then_some(module)
}

/// Names, `::` and single characters.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = code.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_word = |character: char| character.is_alphanumeric() || character == '_';
        let length = match first {
            _ if is_word(first) => rest.find(|character| !is_word(character)).unwrap_or(rest.len()),
            ':' if rest.starts_with("::") => 2,
            _ => first.len_utf8(),
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    tokens
}

/// The tokens without items that are `#[cfg(test)]`.
fn without_tests(tokens: &[String]) -> Vec<String> {
    const MARK: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if !tokens[at..].iter().take(MARK.len()).eq(MARK.iter()) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += MARK.len();
        let mut depth = 0;
        while let Some(token) = tokens.get(at) {
            at += 1;
            match token.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                ";" => {}
                _ => continue,
            }
            if depth == 0 {
                break;
            }
        }
    }
    kept
}

/// Whether a `use` begins here; in types, `use<'a>` is something else.
fn is_use(tokens: &[String], at: usize) -> bool {
    tokens[at] == "use" && tokens.get(at + 1).is_some_and(|next| next != "<")
}

/// Reads a tree of names from `at` on.
fn import_tree(tokens: &[String], at: &mut usize, parent: &[String], imports: &mut Vec<Import>) {
    let mut path = parent.to_vec();
    while let Some(token) = tokens.get(*at) {
        *at += 1;
        match token.as_str() {
            "::" => {}
            "{" => {
                while tokens.get(*at).is_some_and(|token| token != "}") {
                    import_tree(tokens, at, &path, imports);
                    if tokens.get(*at).is_some_and(|token| token == ",") {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            "*" => {
                imports.push(Import { path, name: None });
                return;
            }
            "as" => {
                let name = tokens.get(*at).filter(|name| *name != "_").cloned();
                *at += 1;
                imports.push(Import { path, name });
                return;
            }
            "," | "}" | ";" => {
                *at -= 1;
                break;
            }
            // `a::{self}` is `a`.
            "self" if !path.is_empty() => {}
            name => path.push(name.to_owned()),
        }
    }
    if path.len() > parent.len() || tokens.get(*at - 1).is_some_and(|last| last == "self") {
        let name = path.last().cloned();
        imports.push(Import { path, name });
    }
}

/// The path that begins at `at`, and where it has ended; none where something else begins.
fn path_at(tokens: &[String], mut at: usize) -> (Vec<String>, usize) {
    let is_name = |token: &String| token.starts_with(|first: char| first.is_alphabetic() || first == '_');
    let mut path = Vec::new();
    while let Some(name) = tokens.get(at).filter(|token| is_name(token)) {
        path.push(name.clone());
        at += 1;
        let goes_on = tokens.get(at).is_some_and(|token| token == "::") && tokens.get(at + 1).is_some_and(is_name);
        if !goes_on {
            break;
        }
        at += 1;
    }
    (path, at)
}

/// Where generic arguments that may begin at `at` have ended.
fn after_generics(tokens: &[String], at: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(at) {
        match token.as_str() {
            "<" => depth += 1,
            // An arrow's is no bracket.
            ">" if tokens[index - 1] != "-" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if token == ">" { index + 1 } else { index };
        }
    }
    tokens.len()
}

/// All that `from` leads to.
fn reached<'a>(from: &Module, arrows: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let mut found = BTreeSet::new();
    let mut next: Vec<&Module> = arrows[from].iter().collect();
    while let Some(module) = next.pop() {
        if found.insert(module) {
            next.extend(arrows.get(module).into_iter().flatten());
        }
    }
    found
}

/// The shortest way from `from` back to it, with it at both ends.
fn shortest_circle<'a>(from: &'a Module, arrows: &'a BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<&'a Module>> {
    let mut before: BTreeMap<&Module, &Module> = BTreeMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(module) = next.pop_front() {
        for target in arrows.get(module).into_iter().flatten() {
            if before.contains_key(target) {
                continue;
            }
            before.insert(target, module);
            if target == from {
                let mut way = vec![from, module];
                while way.last() != Some(&from) {
                    way.push(before[way[way.len() - 1]]);
                }
                way.reverse();
                return Some(way);
            }
            next.push_back(target);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::failures;

    /// What is wrong with these files of an engine.
    fn wrong(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> =
            files.iter().map(|(name, text)| (format!("crates/io/src/engine{name}"), *text)).collect();
        failures("crates/io/src/engine", files.iter().map(|(name, text)| (name.as_str(), *text)))
    }

    #[test]
    fn two_files_that_use_each_other_are_a_circle() {
        let found = wrong(&[
            ("/mod.rs", "mod a; mod b;"),
            ("/a.rs", "use super::b::B; struct A(B);"),
            ("/b.rs", "struct B; fn f(a: &super::a::A) {}"),
        ]);
        let circle = "crates/io/src/engine/a.rs -> crates/io/src/engine/b.rs -> crates/io/src/engine/a.rs";
        assert_eq!(found, [format!("files use each other in a circle: {circle}")]);
    }

    #[test]
    fn one_direction_is_none() {
        let files = [
            ("/mod.rs", "mod a; mod b; mod c; mod d; mod e; pub use a::A;"),
            ("/a.rs", "use super::b::{self, B as Bee}; use crate::engine::c; use std::io::{self, Read as _};"),
            ("/b.rs", "use super::c::*; use crate::disk::Disk; fn f() { io::b::g(); }"),
            ("/c.rs", "//! See [`A`](super::a::A).\nfn f() -> &str { \"super::a::A\" }"),
            ("/d.rs", "use super::e::json; fn f() { super::e::json(); }"),
            ("/e.rs", "use serde_json::json; pub fn json() -> &'static str { json!({}) }"),
        ];
        assert_eq!(wrong(&files), Vec::<String>::new());
    }

    #[test]
    fn a_name_that_is_passed_on_leads_to_where_it_comes_from() {
        let through = |parent: &str| {
            wrong(&[(".rs", parent), ("/a.rs", "use super::B; struct A(B);"), ("/b.rs", "use super::A; struct B(A);")])
        };
        for parent in ["mod a; mod b; pub use a::A; pub(crate) use b::B;", "mod a; mod b; use {a::A, b::B};"] {
            let found = through(parent);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains("a.rs -> crates/io/src/engine/b.rs"), "{found:?}");
        }
        assert_eq!(wrong(&[("/mod.rs", "mod a; pub use a::A;"), ("/a.rs", "pub struct A;")]), Vec::<String>::new());
    }

    #[test]
    fn a_parent_that_does_more_than_pass_on_is_part_of_circles() {
        let parent = "mod a; pub use a::A; pub struct Shared; fn f(a: A) {}";
        let found = wrong(&[("/mod.rs", parent), ("/a.rs", "use super::Shared; pub struct A(Shared);")]);
        assert_eq!(found.len(), 1, "{found:?}");
        let apart = "mod a; pub use a::A; pub struct Shared;";
        assert_eq!(
            wrong(&[("/mod.rs", apart), ("/a.rs", "use super::Shared; pub struct A(Shared);")]),
            Vec::<String>::new()
        );
    }

    #[test]
    fn who_may_see_something_is_no_use() {
        let seen = "pub(in crate::engine) fn f() {}";
        assert_eq!(wrong(&[("/mod.rs", "mod a; pub fn g() { a::f(); }"), ("/a.rs", seen)]), Vec::<String>::new());
    }

    #[test]
    fn expressions_count_as_uses_do() {
        let found = wrong(&[
            ("/mod.rs", "mod ops; mod locks;"),
            ("/ops/mod.rs", "mod write; pub fn f() { write::run(); }"),
            ("/ops/write.rs", "pub fn run() { super::super::locks::take(); }"),
            ("/locks.rs", "pub fn take() { let again: fn() = crate::engine::ops::f; }"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        for file in ["ops/mod.rs", "ops/write.rs", "locks.rs"] {
            assert!(found[0].contains(file), "{found:?}");
        }
    }

    #[test]
    fn all_that_is_around_a_circle_is_named_once() {
        let found = wrong(&[
            ("/mod.rs", "mod a; mod b; mod c; mod d;"),
            ("/a.rs", "use super::b::B;"),
            ("/b.rs", "use super::a::A; use super::c::C;"),
            ("/c.rs", "use super::b::B; use super::d::D;"),
            ("/d.rs", "struct D;"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("; 3 files are in circles with it: "), "{found:?}");
        assert!(found[0].contains("c.rs") && !found[0].contains("d.rs"), "{found:?}");
    }

    #[test]
    fn methods_of_a_type_in_two_files_are_a_circle() {
        let engine = "pub struct Engine<D>(D); impl<D: Disk> Engine<D> { fn f(&self) { self.g(); } }";
        let more = "use super::run::Engine; impl<D: Fn() -> u8> Engine<D> where D: Disk { fn g(&self) { self.f(); } }";
        let found = wrong(&[("/mod.rs", "mod run; mod more;"), ("/run.rs", engine), ("/more.rs", more)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("Engine are in 2 files") && found[0].contains("more.rs"), "{found:?}");
        let other = "use super::run::Engine; impl<D> Drop for Engine<D> { } fn f() -> impl Iterator<Item = u8> { }";
        let same_name = "struct Engine; impl Engine { }";
        for harmless in [other, same_name] {
            let files = [("/mod.rs", "mod run; mod more;"), ("/run.rs", engine), ("/more.rs", harmless)];
            assert_eq!(wrong(&files), Vec::<String>::new());
        }
    }

    #[test]
    fn tests_may_use_what_they_like() {
        let tested = "struct A; #[cfg(test)] mod tests { use super::super::b::B; mod c { fn f() {} } } struct More;";
        let files = [
            ("/mod.rs", "mod a; mod b;"),
            ("/a.rs", tested),
            ("/b.rs", "use super::a::{A, More}; struct B;"),
            ("/a/tests.rs", "use super::super::b::B; use super::A;"),
        ];
        assert_eq!(wrong(&files), Vec::<String>::new());
    }

    #[test]
    fn a_whole_crate_is_a_directory_too() {
        let files = [
            ("crates/sim/src/lib.rs", "pub mod a; pub mod b;"),
            ("crates/sim/src/a.rs", "use crate::b::B;"),
            ("crates/sim/src/b.rs", "use crate::a;"),
            ("crates/sim/src/bin/a.rs", "use crate::a;"),
            ("crates/lab/src/a.rs", "use crate::b;"),
        ];
        assert_eq!(failures("crates/sim/src", files.into_iter()).len(), 1);
    }
}
