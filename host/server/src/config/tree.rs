//! A configuration as a tree of values, each with the place that it came from.
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::Value;
use toml::de::{DeTable, DeValue};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source {
    Default,
    File {
        path: Arc<Path>,
        line: usize,
    },
    Environment(String),
    /// The flag, and for `--set` its key.
    Flag(String),
    /// Of an operator, over the admin listener.
    Order,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "file {}:{line}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(flag) => write!(f, "flag {flag}"),
            Self::Order => f.write_str("order"),
        }
    }
}

/// A value or more of them.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    /// A scalar, or a list without tables.
    Leaf(Value, Source),
    Table(BTreeMap<String, Node>),
    /// A list of tables.
    List(Vec<Node>, Source),
}

/// Segments of a key; more than any key has. Each is a level of the tree.
const MAX_SEGMENTS: usize = 16;
/// Characters of a longer one that are repeated.
const SHOWN_CHARS: usize = 64;

/// Why a value has no place in the tree.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MisplacedKey {
    /// New entries come right behind the ones that are there.
    #[error("{key}: there are {entries} entries of {list}, the next is {list}.{entries}")]
    Index { key: String, list: String, entries: usize },
    #[error("unknown key `{key}`: {above} is a single value")]
    Scalar { key: String, above: String },
    #[error("unknown key `{key}`: {list} is a list of sections ({list}.0, {list}.1, …)")]
    List { key: String, list: String },
    #[error("unknown key `{beginning}...`: it has more than {} segments", MAX_SEGMENTS)]
    Long { beginning: String },
}

/// Where a text stops being TOML.
#[derive(Debug, thiserror::Error)]
#[error("{}", .source.message().trim_end().replace('\n', ", "))]
pub struct Syntax {
    /// 1 is the first.
    pub(super) line: usize,
    source: toml::de::Error,
}

impl Node {
    pub(super) fn empty() -> Self {
        Self::Table(BTreeMap::new())
    }

    pub(super) fn of(value: Value, source: &Source) -> Self {
        match value {
            Value::Table(table) => {
                Self::Table(table.into_iter().map(|(key, value)| (key, Self::of(value, source))).collect())
            }
            Value::Array(list) if !list.is_empty() && list.iter().all(Value::is_table) => {
                Self::List(list.into_iter().map(|value| Self::of(value, source)).collect(), source.clone())
            }
            value => Self::Leaf(value, source.clone()),
        }
    }

    /// A file's content, every value with its line.
    ///
    /// # Errors
    /// The first line that is no TOML, and why.
    pub(super) fn parse(text: &str, path: &Path) -> Result<Self, Syntax> {
        let lines = SourceLines { text, path: path.into() };
        let table = DeTable::parse(text).map_err(|source| {
            let at = source.span().map_or(0, |span| span.start);
            Syntax { line: lines.number(at), source }
        })?;
        Ok(lines.table(table.get_ref()))
    }

    pub(super) fn get(&self, segment: &str) -> Option<&Node> {
        match self {
            Self::Leaf(..) => None,
            Self::Table(table) => table.get(segment),
            Self::List(list, _) => list.get(segment.parse::<usize>().ok()?),
        }
    }

    pub(super) fn at(&self, key: &str) -> Option<&Node> {
        key.split('.').try_fold(self, Self::get)
    }

    /// Who wrote what lies at `key`, or above it if there is nothing: whoever wrote that wrote (or failed to write) the key.
    pub(super) fn source(&self, key: &str) -> Option<&Source> {
        let mut node = self;
        for segment in key.split('.') {
            match node.get(segment) {
                Some(below) => node = below,
                None => break,
            }
        }
        node.first_source()
    }

    fn first_source(&self) -> Option<&Source> {
        match self {
            Self::Leaf(_, source) | Self::List(_, source) => Some(source),
            Self::Table(table) => table.values().find_map(Self::first_source),
        }
    }

    /// Lays `other` over this one: tables are merged, all else is replaced.
    pub(super) fn merge(&mut self, other: Node) {
        match (self, other) {
            (Self::Table(ours), Self::Table(theirs)) => {
                for (key, node) in theirs {
                    match ours.get_mut(&key) {
                        Some(present) => present.merge(node),
                        None => {
                            ours.insert(key, node);
                        }
                    }
                }
            }
            (node, other) => *node = other,
        }
    }

    /// Puts `node` at `key`; tables and the next entry of a list are made as needed.
    ///
    /// # Errors
    /// A key below a scalar, an entry beyond the next one of a list, or a key of too many segments.
    pub(super) fn set(&mut self, key: &str, node: Node) -> Result<(), MisplacedKey> {
        if key.split('.').count() > MAX_SEGMENTS {
            return Err(MisplacedKey::Long { beginning: key.chars().take(SHOWN_CHARS).collect() });
        }
        let mut at = self;
        let mut above = String::new();
        for segment in key.split('.') {
            let list = above.clone();
            above = if above.is_empty() { segment.to_owned() } else { format!("{above}.{segment}") };
            let index = segment.parse::<usize>().ok();
            if let (Self::Leaf(Value::Array(entries), source), Some(_)) = (&*at, index)
                && entries.is_empty()
            {
                *at = Self::List(Vec::new(), source.clone());
            }
            at = match (at, index) {
                (Self::Table(table), _) => table.entry(segment.to_owned()).or_insert_with(Self::empty),
                (Self::List(entries, _), Some(index)) => {
                    if index == entries.len() {
                        entries.push(Self::empty());
                    }
                    let count = entries.len();
                    entries.get_mut(index).ok_or(MisplacedKey::Index { key: key.to_owned(), list, entries: count })?
                }
                (Self::List(..), _) => return Err(MisplacedKey::List { key: key.to_owned(), list }),
                (Self::Leaf(..), _) => {
                    return Err(MisplacedKey::Scalar { key: key.to_owned(), above: list });
                }
            };
        }
        at.merge(node);
        Ok(())
    }

    /// Calls `visit` for each leaf with its key, and for lists that hold nothing.
    pub(super) fn leaves<'a>(&'a self, visit: &mut impl FnMut(&str, &'a Value, &'a Source)) {
        self.leaves_below("", visit);
    }

    fn leaves_below<'a>(&'a self, above: &str, visit: &mut impl FnMut(&str, &'a Value, &'a Source)) {
        let key = |segment: &str| if above.is_empty() { segment.to_owned() } else { format!("{above}.{segment}") };
        match self {
            Self::Leaf(value, source) => visit(above, value, source),
            Self::Table(table) => table.iter().for_each(|(name, node)| node.leaves_below(&key(name), visit)),
            Self::List(list, _) => {
                list.iter().enumerate().for_each(|(i, node)| node.leaves_below(&key(&i.to_string()), visit));
            }
        }
    }
}

struct SourceLines<'a> {
    text: &'a str,
    path: Arc<Path>,
}

impl SourceLines<'_> {
    fn number(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        before.iter().filter(|&&byte| byte == b'\n').count() + 1
    }

    fn source(&self, offset: usize) -> Source {
        Source::File { path: self.path.clone(), line: self.number(offset) }
    }

    fn table(&self, table: &DeTable<'_>) -> Node {
        let node = |value: &toml::Spanned<DeValue<'_>>| match value.get_ref() {
            DeValue::Table(table) => self.table(table),
            DeValue::Array(list) if !list.is_empty() && list.iter().all(|entry| entry.get_ref().is_table()) => {
                let entries = list.iter().filter_map(|entry| entry.get_ref().as_table());
                Node::List(entries.map(|entry| self.table(entry)).collect(), self.source(value.span().start))
            }
            plain => Node::of(plain_value(plain), &self.source(value.span().start)),
        };
        Node::Table(table.iter().map(|(key, value)| (key.get_ref().to_string(), node(value))).collect())
    }
}

fn plain_value(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::String(text.to_string()),
        DeValue::Boolean(truth) => Value::Boolean(*truth),
        DeValue::Datetime(time) => Value::Datetime(*time),
        DeValue::Array(list) => Value::Array(list.iter().map(|entry| plain_value(entry.get_ref())).collect()),
        DeValue::Table(table) => Value::Table(
            table.iter().map(|(key, value)| (key.get_ref().to_string(), plain_value(value.get_ref()))).collect(),
        ),
        // A number beyond 64 bits stays text, which no key that wants a number takes.
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or_else(|_| Value::String(number.as_str().to_owned()), Value::Integer),
        DeValue::Float(number) => {
            number.as_str().parse().map_or_else(|_| Value::String(number.as_str().to_owned()), Value::Float)
        }
    }
}

/// The directory that paths of a source are relative to; `None`: that of the process.
pub(super) fn directory(source: &Source) -> Option<PathBuf> {
    match source {
        Source::File { path, .. } => path.parent().map(Path::to_owned),
        Source::Default | Source::Environment(_) | Source::Flag(_) | Source::Order => None,
    }
}

/// The sources of the keys below one section. Keys that nobody wrote are not in it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Origins {
    /// `model.0.`, or nothing for the whole configuration.
    section: String,
    written: Arc<BTreeMap<String, Source>>,
}

impl Origins {
    pub(super) fn of(tree: &Node) -> Self {
        let mut written = BTreeMap::new();
        tree.leaves(&mut |key, _, source| {
            if *source != Source::Default {
                written.insert(key.to_owned(), source.clone());
            }
        });
        Self { section: String::new(), written: Arc::new(written) }
    }

    /// Those of the keys below `section`.
    pub(super) fn below(&self, section: &str) -> Self {
        Self { section: format!("{}{section}.", self.section), written: self.written.clone() }
    }

    /// Where a key of this section was written, and its name in the whole configuration. What an order wrote has no name there, and
    /// came from nowhere else.
    pub(crate) fn at(&self, key: &str) -> Origin {
        if self.written.values().any(|source| *source == Source::Order) {
            return Origin { key: key.to_owned(), source: None };
        }
        let key = format!("{}{key}", self.section);
        let source = self.written.get(&key).cloned();
        Origin { key, source }
    }
}

/// A key, and who wrote its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    pub(crate) key: String,
    /// `None`: the default holds.
    source: Option<Source>,
}

/// ` (file camshaft.toml:3)`, as errors end that are found while the configuration is read; nothing for a default.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Some(source) => write!(f, " ({source})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(text: &str) -> Node {
        Node::parse(text, Path::new("c.toml")).unwrap()
    }

    fn flag(number: i64) -> Node {
        Node::Leaf(Value::Integer(number), Source::Flag("--set".to_owned()))
    }

    #[test]
    fn values_know_their_line() {
        let tree = tree("a = 1\n\n[b]\nc = [\n 1,\n]\n[[m]]\nx = 1\n[[m]]\nx = 2\n");
        let line = |key: &str| tree.source(key).unwrap().to_string();
        assert_eq!(line("a"), "file c.toml:1");
        assert_eq!(line("b.c"), "file c.toml:4");
        assert_eq!(line("m.1.x"), "file c.toml:10");
        // A key that is not there is looked for where it would be.
        assert_eq!(line("b.d"), "file c.toml:4");
    }

    #[test]
    fn mistakes_know_their_line() {
        let error = Node::parse("a = 1\nb = = 2\n", Path::new("c.toml")).unwrap_err();
        assert_eq!(error.line, 2, "{error}");
    }

    #[test]
    fn entries_of_lists_are_set_by_number_and_added_behind_the_last() {
        let mut one = tree("[[m]]\nx = 1\n");
        one.set("m.0.y", flag(7)).unwrap();
        one.set("m.1.x", flag(8)).unwrap();
        let mut refused = |key: &str| one.set(key, flag(9)).unwrap_err().to_string();
        assert_eq!(refused("m.3.x"), "m.3.x: there are 2 entries of m, the next is m.2");
        assert_eq!(refused("m.x"), "unknown key `m.x`: m is a list of sections (m.0, m.1, …)");
        assert_eq!(refused("m.0.x.z"), "unknown key `m.0.x.z`: m.0.x is a single value");
        let mut keys = Vec::new();
        one.leaves(&mut |key, value, source| keys.push(format!("{key} = {value} {source}")));
        assert_eq!(keys, ["m.0.x = 1 file c.toml:2", "m.0.y = 7 flag --set", "m.1.x = 8 flag --set"]);
        let mut none = tree("m = []");
        none.set("m.0.x", flag(1)).unwrap();
        assert!(none.get("m").unwrap().get("0").is_some());
    }

    #[test]
    fn regression_a_key_of_many_segments_is_refused() {
        let set = |segments: usize| Node::empty().set(&vec!["a"; segments].join("."), flag(1));
        set(MAX_SEGMENTS).unwrap();
        let refused = set(MAX_SEGMENTS + 1).unwrap_err().to_string();
        assert_eq!(refused, format!("unknown key `{}...`: it has more than 16 segments", vec!["a"; 17].join(".")));
        // Deep enough to overflow the stack where it is dropped.
        assert!(set(100_000).unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn numbers_keep_their_value_however_they_are_written() {
        let tree = tree("a = 0x1F\nb = 1_000\nc = 1e3\nd = nan\n");
        let value = |key: &str| match tree.get(key) {
            Some(Node::Leaf(value, _)) => value.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!((value("a"), value("b"), value("c")), (31.into(), 1000.into(), 1000.0.into()));
        assert!(value("d").as_float().unwrap().is_nan());
    }
}
