//! Finds which files of a crate use which others, from the paths in them (`crate::…`, `super::…`, names of child
//! modules and of imports), and the circles among the folders that they lie in.
//!
//! Every use, a re-export included, is an arrow from the file that contains it to the file of the module that it names.
//! The line `mod child;` is not a use. Code under `#[cfg(test)]` does not count, because tests may use everything, nor
//! does `$crate` in macros, because it belongs to the macro's caller.
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The files that each file uses. Names are relative to the folder of the crate's root.
pub(super) type Graph = BTreeMap<String, BTreeSet<String>>;

/// The path of a module below the root of its crate.
type Module = Vec<String>;

/// Reads a crate, beginning with its root file.
pub(super) fn graph(root: &Path) -> Graph {
    let folder = root.parent().expect("a root lies in a folder").to_owned();
    let mut sources = Vec::new();
    collect(root, folder.clone(), Vec::new(), &mut sources);
    let name = |path: &Path| path.strip_prefix(&folder).expect("below the root").to_string_lossy().into_owned();
    let files: BTreeMap<Module, String> = sources.iter().map(|s| (s.module.clone(), name(&s.path))).collect();
    let modules: BTreeSet<Module> = sources.iter().flat_map(|s| s.inline.iter().chain([&s.module])).cloned().collect();
    let mut graph = Graph::new();
    for source in &sources {
        let here = name(&source.path);
        let used = source.uses.iter().filter_map(|path| {
            let module = (0..=path.len()).rev().map(|n| &path[..n]).find(|part| modules.contains(*part))?;
            (0..=module.len()).rev().find_map(|n| files.get(&module[..n])).cloned()
        });
        let used: BTreeSet<String> = used.filter(|file| *file != here).collect();
        graph.insert(here, used);
    }
    graph
}

/// The folders that each folder uses: a module of the crate's root with all below it, `kv.rs` with `kv/`. What happens inside
/// a folder is its own business.
pub(super) fn folders(files: &Graph) -> Graph {
    let folder = |file: &str| file.split('/').next().unwrap_or(file).trim_end_matches(".rs").to_owned();
    let mut graph = Graph::new();
    for (file, used) in files {
        let here = folder(file);
        let others = used.iter().map(|file| folder(file)).filter(|other| *other != here).collect::<Vec<_>>();
        graph.entry(here).or_default().extend(others);
    }
    graph
}

/// Groups of folders in which every one reaches every other, sorted.
pub(super) fn circles(graph: &Graph) -> Vec<Vec<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|from| (from.as_str(), reach(graph, from))).collect();
    let mut found: BTreeSet<Vec<String>> = BTreeSet::new();
    for (from, to) in &reached {
        let back = to.iter().filter(|to| reached.get(*to).is_some_and(|theirs| theirs.contains(from)));
        let mut group: Vec<String> = back.map(|file| (*file).to_owned()).collect();
        if !group.is_empty() {
            group.sort();
            found.insert(group);
        }
    }
    found.into_iter().collect()
}

fn reach<'a>(graph: &'a Graph, from: &str) -> BTreeSet<&'a str> {
    let next = |file: &str| graph.get(file).into_iter().flatten().map(String::as_str);
    let mut reached = BTreeSet::new();
    let mut left: Vec<&str> = next(from).collect();
    while let Some(file) = left.pop() {
        if reached.insert(file) {
            left.extend(next(file));
        }
    }
    reached
}

/// A file, with the modules and uses in it.
struct Source {
    path: PathBuf,
    module: Module,
    inline: Vec<Module>,
    /// From the root of the crate, with the name at the end.
    uses: Vec<Module>,
}

/// Reads the file of a module and those of its children, which are in `folder`.
fn collect(path: &Path, folder: PathBuf, module: Module, sources: &mut Vec<Source>) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let read = Reader::read(&text, module.clone());
    for child in &read.children {
        let name = child.last().expect("a child has a name");
        let file = folder.join(format!("{name}.rs"));
        let file = if file.exists() { file } else { folder.join(name).join("mod.rs") };
        collect(&file, folder.join(name), child.clone(), sources);
    }
    sources.push(Source { path: path.to_owned(), module, inline: read.inline, uses: read.uses });
}

/// Reads the tokens of one file.
#[derive(Default)]
struct Reader {
    /// The inline modules around the current token, each with the depth of braces outside it.
    within: Module,
    depths: Vec<usize>,
    children: Vec<Module>,
    inline: Vec<Module>,
    /// The path of each name that a `use` or a child module introduces.
    names: BTreeMap<String, Module>,
    /// Uses. Some must still be looked up in `names`.
    paths: Vec<Found>,
    uses: Vec<Module>,
}

struct Found {
    within: Module,
    path: Vec<String>,
}

impl Reader {
    fn read(text: &str, module: Module) -> Self {
        let tokens = tokens(text);
        let mut reader = Self { within: module, ..Self::default() };
        let (mut i, mut depth) = (0, 0);
        while i < tokens.len() {
            let is = |at: usize, text: &str| tokens.get(i + at).is_some_and(|token| token == text);
            let is_cfg = is(0, "#") && is(1, "[") && is(2, "cfg") && is(3, "(");
            if is_cfg && (is(4, "test") || is(4, "all") && is(6, "test")) {
                let attribute = tokens[i..].iter().take_while(|token| *token != "]").count();
                i = skip_item(&tokens, i + attribute + 1);
            } else if is(0, "mod") && is(2, ";") {
                reader.declare(&tokens[i + 1]);
                i += 3;
            } else if is(0, "mod") && is(2, "{") {
                reader.within.push(tokens[i + 1].clone());
                reader.inline.push(reader.within.clone());
                reader.depths.push(depth);
                depth += 1;
                i += 3;
            } else if is(0, "use") {
                i = reader.import(&tokens, i + 1, Vec::new());
            } else if is(0, "$") {
                // `$crate::path`, or a variable of a macro.
                i += 2;
            } else if is_name(&tokens[i]) && is(1, "::") && (i == 0 || tokens[i - 1] != "::") {
                let mut path = vec![tokens[i].clone()];
                i += 1;
                while tokens.get(i).is_some_and(|token| token == "::") && tokens.get(i + 1).is_some_and(|t| is_name(t))
                {
                    path.push(tokens[i + 1].clone());
                    i += 2;
                }
                reader.paths.push(Found { within: reader.within.clone(), path });
            } else {
                depth = depth + usize::from(is(0, "{")) - usize::from(is(0, "}"));
                if is(0, "}") && reader.depths.last() == Some(&depth) {
                    reader.depths.pop();
                    reader.within.pop();
                }
                i += 1;
            }
        }
        let found = std::mem::take(&mut reader.paths);
        reader.uses = found.into_iter().filter_map(|found| reader.resolve(&found)).collect();
        reader
    }

    fn declare(&mut self, name: &str) {
        let child: Module = self.within.iter().cloned().chain([name.to_owned()]).collect();
        self.names.insert(name.to_owned(), child.clone());
        self.children.push(child);
    }

    /// Reads a tree of imports below `prefix`. Returns where it ends.
    fn import(&mut self, tokens: &[String], mut i: usize, mut prefix: Vec<String>) -> usize {
        let base = prefix.len();
        while i < tokens.len() {
            match tokens[i].as_str() {
                "::" => i += 1,
                "{" => {
                    i += 1;
                    while tokens[i] != "}" {
                        i = self.import(tokens, i, prefix.clone());
                        i += usize::from(tokens[i] == ",");
                    }
                    return i + 1;
                }
                "as" => {
                    self.bind(tokens[i + 1].clone(), prefix);
                    return i + 2;
                }
                "*" => {
                    self.paths.push(Found { within: self.within.clone(), path: prefix });
                    return i + 1;
                }
                name if is_name(name) => {
                    // `{self}` names the path before the braces.
                    if !(name == "self" && prefix.len() == base && base > 0) {
                        prefix.push(name.to_owned());
                    }
                    i += 1;
                    let goes_on = tokens.get(i).is_some_and(|next| next == "::" || next == "as");
                    if !goes_on {
                        let name = prefix.last().cloned().unwrap_or_default();
                        self.bind(name, prefix);
                        return i;
                    }
                }
                _ => return i + 1,
            }
        }
        i
    }

    fn bind(&mut self, name: String, path: Vec<String>) {
        let found = Found { within: self.within.clone(), path };
        if let Some(module) = self.resolve(&found) {
            self.names.entry(name).or_insert(module);
        }
        self.paths.push(found);
    }

    /// A path as seen from the crate's root; `None` for a path into another crate.
    fn resolve(&self, found: &Found) -> Option<Module> {
        let (first, rest) = found.path.split_first()?;
        let (mut module, mut rest) = match first.as_str() {
            "crate" => (Module::new(), rest),
            "self" => (found.within.clone(), rest),
            "super" => (found.within.clone(), &found.path[..]),
            name => (self.names.get(name)?.clone(), rest),
        };
        while rest.first().is_some_and(|first| first == "super") {
            module.pop();
            rest = &rest[1..];
        }
        module.extend(rest.iter().cloned());
        Some(module)
    }
}

/// The index after the item that begins at `i`, which ends with a block or a semicolon.
fn skip_item(tokens: &[String], mut i: usize) -> usize {
    let mut depth = 0_usize;
    while let Some(token) = tokens.get(i) {
        i += 1;
        match token.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && token == "}" {
                    return i;
                }
            }
            ";" | "," if depth == 0 => return i,
            _ => {}
        }
    }
    i
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Splits source text into names, `::` and single characters, without comments, strings and character literals.
fn tokens(text: &str) -> Vec<String> {
    let chars: Vec<char> = text.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut tokens = Vec::new();
    let mut i = 0;
    while i < chars.len() {
        match chars[i] {
            '/' if at(i + 1) == '/' => i += chars[i..].iter().take_while(|&&c| c != '\n').count(),
            '/' if at(i + 1) == '*' => i = end_of(&chars, i + 2, "*/"),
            '"' => i = end_of_string(&chars, i + 1),
            // A character, not a lifetime.
            '\'' if at(i + 1) == '\\' => i = end_of(&chars, i + 3, "'"),
            '\'' if at(i + 2) == '\'' => i += 3,
            c if is_word(c) => {
                let word: String = chars[i..].iter().take_while(|&&c| is_word(c)).collect();
                i += word.chars().count();
                let hashes = chars[i..].iter().take_while(|&&c| c == '#').count();
                let is_raw = (word == "r" || word == "br") && at(i + hashes) == '"';
                match is_raw {
                    true => i = end_of(&chars, i + hashes + 1, &format!("\"{}", "#".repeat(hashes))),
                    // `b"…"` continues as a string.
                    false => tokens.push(word),
                }
            }
            ':' if at(i + 1) == ':' => {
                tokens.push("::".to_owned());
                i += 2;
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                i += 1;
            }
        }
    }
    tokens
}

/// The index after the next `end`.
fn end_of(chars: &[char], from: usize, end: &str) -> usize {
    let end: Vec<char> = end.chars().collect();
    let found = (from..chars.len()).find(|&i| chars[i..].starts_with(&end));
    found.map_or(chars.len(), |i| i + end.len())
}

fn end_of_string(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph_of(arrows: &[(&str, &[&str])]) -> Graph {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        arrows.iter().map(|(from, to)| ((*from).to_owned(), owned(to))).collect()
    }

    #[test]
    fn finds_every_circle_and_nothing_in_a_stack() {
        let stack = graph_of(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])]);
        assert!(circles(&stack).is_empty());
        let two = graph_of(&[("a", &["b"]), ("b", &["a", "c"]), ("c", &["d"]), ("d", &["e"]), ("e", &["c"])]);
        assert_eq!(circles(&two), [vec!["a", "b"], vec!["c", "d", "e"]]);
    }

    /// A crate on disk with these files.
    fn crate_of(files: &[(&str, &str)]) -> Graph {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        graph(&folder.path().join("lib.rs"))
    }

    #[test]
    fn reads_every_way_to_name_a_module() {
        let check = |text: &str, expected: &[&str]| {
            let root = "mod a; mod b; mod c { pub struct InRoot; }";
            let graph =
                crate_of(&[("lib.rs", root), ("a.rs", text), ("a/x.rs", ""), ("b.rs", "pub mod y;"), ("b/y.rs", "")]);
            assert_eq!(graph["a.rs"].iter().map(String::as_str).collect::<Vec<_>>(), expected, "{text}");
        };
        check("mod x; use crate::b;", &["b.rs"]);
        check("mod x; use crate::b::y::Thing;", &["b/y.rs"]);
        check("mod x; use crate::b::{self, y::{Thing as Other, More}};", &["b.rs", "b/y.rs"]);
        check("mod x; use super::b::*;", &["b.rs"]);
        check("mod x; fn f() { crate::b::y::g::<u8>() }", &["b/y.rs"]);
        check("mod x; use crate::b; fn f() { b::y::g() }", &["b.rs", "b/y.rs"]);
        check("mod x; pub use x::Thing;", &["a/x.rs"]);
        check("mod x; fn f() -> self::x::Thing { x::Thing }", &["a/x.rs"]);
        check("mod x; use crate::c::InRoot;", &["lib.rs"]);
        check("mod x; mod inner { use super::super::b::Thing; use super::x; }", &["a/x.rs", "b.rs"]);
        check("mod x; mod inner { fn f() {} } use super::b;", &["b.rs"]);
    }

    #[test]
    fn ignores_everything_that_is_not_a_use() {
        let check = |text: &str| {
            let graph = crate_of(&[("lib.rs", "mod a; mod b;"), ("a.rs", text), ("b.rs", "")]);
            assert!(graph["a.rs"].is_empty(), "{text}: {:?}", graph["a.rs"]);
        };
        check("// crate::b::f()\n/* use crate::b; */ /// [`crate::b`]\n");
        check("const T: &str = \"crate::b::f()\"; const R: &str = r#\"crate::b::\"\"#;");
        check("const Q: char = '\"'; fn f<'a>(x: &'a str) {} // crate::b::g\n");
        check("#[cfg(test)]\nmod tests { use crate::b::f; fn g() { crate::b::f() } }");
        check("#[cfg(test)]\nmod tests;\n#[cfg(all(test, unix))] use crate::b;");
        check("macro_rules! m { () => { $crate::b::f() }; }");
        check("use other::b::y; fn f() { std::b::g() }");
    }

    #[test]
    fn files_of_one_folder_may_use_each_other_and_folders_may_not() {
        let inside = ("a.rs", "mod x; mod y; pub use x::Thing; pub struct Base;");
        let children =
            [("a/x.rs", "use super::{Base, y::Other};"), ("a/y.rs", "use super::x::Thing; use crate::b::Low;")];
        let below =
            |text| folders(&crate_of(&[("lib.rs", "mod a; mod b;"), inside, children[0], children[1], ("b.rs", text)]));
        assert!(circles(&below("pub struct Low;")).is_empty());
        assert_eq!(circles(&below("use crate::a::x::Thing;")), [vec!["a", "b"]]);
    }
}
