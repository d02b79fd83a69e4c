//! Why a configuration cannot be read. Each text names who wrote the value: flag, variable, or file and line.
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::string::FromUtf8Error;

use camshaft_policy::FileError;

use super::lost::Lost;
use super::tree::{MisplacedKey, Node, Source, Syntax};

/// What keys of an order have before them while they are read.
const ORDERED: &str = "model.0.";

/// What is wrong with a source of the configuration, or with a value in it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("environment variable {name} is no UTF-8: {text:?}")]
    VariableNotText { name: String, text: OsString },
    #[error("--set takes KEY=VALUE, got {text:?}")]
    SetWithoutValue { text: String },
    #[error("{flag} and --set {key} say the same thing: give one of them")]
    GivenTwice { flag: String, key: String },
    #[error("{}: no such configuration file", path.display())]
    NoFile { path: PathBuf },
    #[error(transparent)]
    File(FileError),
    #[error("{}: is not TOML: {source}", path.display())]
    NotText { path: PathBuf, source: FromUtf8Error },
    #[error("{}:{}: is not TOML: {source}", path.display(), source.line)]
    NotToml { path: PathBuf, source: Syntax },
    #[error("{}: {lost}", path.display())]
    Lost { path: PathBuf, lost: Lost },
    #[error("{source} ({origin})")]
    MisplacedKey { source: MisplacedKey, origin: Source },
    #[error("{entry} is no model so far, and has no path and no source ({origin})")]
    NoSuchModel { entry: String, origin: Source },
    #[error("{}", .0.iter().map(Wrong::to_string).collect::<Vec<_>>().join("; "))]
    Values(Vec<Wrong>),
    #[error("a value cannot be written as TOML: {0}")]
    Unwritable(#[from] toml::ser::Error),
}

/// A key whose value is refused, and who wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    key: String,
    /// Follows the key, or is a sentence of its own if the key is part of it.
    why: String,
    /// `None`: the default holds.
    origin: Option<Source>,
}

impl Wrong {
    pub(super) fn new(key: impl Into<String>, why: impl Into<String>) -> Self {
        Self { key: key.into(), why: why.into(), origin: None }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, why, origin } = self;
        if !why.contains(&format!("`{key}`")) {
            write!(f, "{key} ")?;
        }
        f.write_str(why)?;
        origin.as_ref().map_or(Ok(()), |origin| write!(f, " ({origin})"))
    }
}

impl ConfigError {
    pub(super) fn values(mut wrong: Vec<Wrong>, tree: &Node) -> Self {
        for Wrong { key, origin, .. } in &mut wrong {
            *origin = tree.source(key).filter(|source| **source != Source::Default).cloned();
        }
        Self::Values(wrong)
    }

    /// Of an order for one model, whose keys have nothing before them, and which came from nowhere else.
    pub(super) fn of_order(self) -> Self {
        let Self::Values(mut all) = self else { return self };
        for Wrong { key, why, origin } in &mut all {
            let short = key.strip_prefix(ORDERED).unwrap_or(key).to_owned();
            (*why, *origin) = (why.replacen(&*key, &short, 1), None);
            *key = short;
        }
        Self::Values(all)
    }
}
