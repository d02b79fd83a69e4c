//! Why a configuration cannot be read. Each text names who wrote the value: flag, variable, or file and line.
use std::ffi::OsString;
use std::path::PathBuf;
use std::string::FromUtf8Error;

use camshaft_policy::FileError;

use super::keys::{Why, Wrong};
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
    #[error("{}", .0.iter().map(Refused::to_string).collect::<Vec<_>>().join("; "))]
    Values(Vec<Refused>),
    #[error("a value cannot be written as TOML: {0}")]
    Unwritable(#[from] toml::ser::Error),
}

/// A value that is refused: its key, what is wrong with it, and who wrote it.
#[derive(Debug, thiserror::Error)]
#[error("{wrong}{}", .origin.as_ref().map(|origin| format!(" ({origin})")).unwrap_or_default())]
pub struct Refused {
    #[source]
    wrong: Wrong,
    origin: Option<Source>,
}

impl Refused {
    fn new(wrong: Wrong, tree: &Node) -> Self {
        let origin = tree.source(&wrong.key).filter(|source| **source != Source::Default).cloned();
        Self { wrong, origin }
    }
}

impl ConfigError {
    pub(super) fn values(wrong: Vec<Wrong>, tree: &Node) -> Self {
        Self::Values(wrong.into_iter().map(|wrong| Refused::new(wrong, tree)).collect())
    }

    /// Of an order for one model, whose keys have nothing before them, and which came from nowhere else.
    pub(super) fn of_order(self) -> Self {
        let Self::Values(mut refused) = self else { return self };
        for Refused { wrong, origin } in &mut refused {
            let key = wrong.key.strip_prefix(ORDERED).unwrap_or(&wrong.key).to_owned();
            if let Why::Rule(rule) = &mut wrong.why {
                *rule = rule.replacen(&wrong.key, &key, 1);
            }
            (wrong.key, *origin) = (key, None);
        }
        Self::Values(refused)
    }
}
