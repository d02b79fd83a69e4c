//! Reading and merging the sources: flags over environment over file over defaults.
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use camshaft_policy::FileError;
use serde::de::DeserializeOwned;
use toml::Value;

use super::error::{ConfigError, Wrong};
use super::fixed::Fixed;
use super::keys::{self, Keys};
use super::live::Live;
use super::lost::lost;
use super::model::ModelConfig;
use super::overrides::{Overrides, Setting};
use super::tree::{Node, Origins, Source};
use super::{Config, environment, validate};

/// Bytes of a configuration file.
pub(super) const FILE_MAX_BYTES: u64 = 1 << 20;

/// Where a configuration comes from, to be read again when it changes.
#[derive(Debug, Clone)]
pub struct Sources {
    file: Option<PathBuf>,
    environment: Vec<(String, String)>,
    /// Variables that Kubernetes sets for a Service of our name, and that say nothing to us.
    ignored: Vec<String>,
    overrides: Overrides,
}

/// A configuration, and what it was made from.
#[derive(Debug, Clone)]
pub struct ConfigSnapshot {
    pub config: Config,
    /// Every key that has a value, in the order of the keys.
    pub keys: Vec<Effective>,
    /// The text of the file, if there is one.
    pub file: Option<String>,
}

/// One key of the configuration in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// `queue.timeout`, `model.0.id`.
    pub key: String,
    /// As it was written, if it was.
    pub value: Value,
    pub source: Source,
    /// Whether a reload changes it.
    pub live: bool,
}

impl Sources {
    /// `file` beats `CAMSHAFT_CONFIG`.
    ///
    /// # Errors
    /// A variable with our prefix that is no UTF-8.
    pub fn new(
        file: Option<&Path>,
        environment: impl Iterator<Item = (OsString, OsString)>,
        overrides: Overrides,
    ) -> Result<Self, ConfigError> {
        let found = environment::read(environment)?;
        let file = file.map(Path::to_owned).or(found.file);
        Ok(Self { file, environment: found.keys, ignored: found.ignored, overrides })
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Variables with our prefix that were left out, because Kubernetes sets them.
    pub fn ignored(&self) -> &[String] {
        &self.ignored
    }

    /// Reads and checks everything. Paths in a file are relative to the file.
    ///
    /// # Errors
    /// An unreadable file, an unknown key (with a similar one, or all known ones), a value of the wrong type or out of bounds.
    pub fn load(&self) -> Result<Config, ConfigError> {
        self.snapshot().map(|snapshot| snapshot.config)
    }

    /// As [`Sources::load`], with what the configuration was made from.
    ///
    /// # Errors
    /// As [`Sources::load`].
    pub fn snapshot(&self) -> Result<ConfigSnapshot, ConfigError> {
        let file = self.file.as_deref().map(read_file).transpose()?;
        let (config, tree) = self.read(file.as_deref())?;
        let mut effective = Vec::new();
        for (half, live) in [(value_of(&config.live)?, true), (value_of(&config.fixed)?, false)] {
            Node::of(half, &Source::Default).leaves(&mut |key, value, default| {
                let (value, source) = match tree.at(key) {
                    Some(Node::Leaf(value, source)) if *source != Source::Default => (value, source),
                    _ => (value, default),
                };
                effective.push(Effective { key: key.to_owned(), value: value.clone(), source: source.clone(), live });
            });
        }
        effective.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(ConfigSnapshot { config, keys: effective, file })
    }

    /// Whether a snapshot has what the file in force, of this text, set.
    ///
    /// # Errors
    /// The file may have been cut.
    pub(crate) fn keeps(&self, in_force: Option<&str>, new: &ConfigSnapshot) -> Result<(), ConfigError> {
        let (Some(path), Some(old), Some(new)) = (&self.file, in_force, &new.file) else { return Ok(()) };
        lost(old, new).map_or(Ok(()), |lost| Err(ConfigError::Lost { path: path.clone(), lost }))
    }

    fn read(&self, file: Option<&str>) -> Result<(Config, Node), ConfigError> {
        let keys = Keys::new();
        let (config, tree) = checked(self.merged(file, &keys)?, &keys)?;
        // An order of an operator describes one model, so that only in files the fallback must be there.
        let wrong = validate::fallbacks(&config.live.model);
        if wrong.is_empty() { Ok((config, tree)) } else { Err(ConfigError::values(wrong, &tree)) }
    }

    fn merged(&self, file: Option<&str>, keys: &Keys) -> Result<Node, ConfigError> {
        let mut tree = defaults()?;
        if let (Some(path), Some(text)) = (&self.file, file) {
            let parsed = Node::parse(text, path);
            tree.merge(parsed.map_err(|source| ConfigError::NotToml { path: path.clone(), source })?);
        }
        let environment = self.environment.iter().map(|(name, text)| environment::setting(name, text));
        let flags = self.overrides.settings()?;
        // Models that only keys of theirs mention (`model.1.path`), and who did so first.
        let mut added: Vec<(String, Source)> = Vec::new();
        for setting in environment.chain(flags) {
            let entry = entry_of(&setting.key);
            match entry {
                Some(entry) if tree.at(&entry).is_none() => added.push((entry, setting.source.clone())),
                Some(_) => {}
                // A list as a whole takes the place of its entries.
                None => added.retain(|(entry, _)| !entry.starts_with(&format!("{}.", setting.key))),
            }
            place(&mut tree, keys, setting)?;
        }
        for (entry, source) in added {
            let has = |key: &str| tree.at(&format!("{entry}.{key}")).is_some();
            if !has("path") && !has("source") {
                return Err(ConfigError::NoSuchModel { entry, origin: source });
            }
        }
        complete_models(&mut tree)?;
        Ok(tree)
    }
}

/// A tree of values as a configuration, if nothing is wrong with it.
fn checked(tree: Node, keys: &Keys) -> Result<(Config, Node), ConfigError> {
    let refused = |wrong: Vec<Wrong>| ConfigError::values(wrong, &tree);
    let wrong = keys.check(&tree);
    if !wrong.is_empty() {
        return Err(refused(wrong));
    }
    let live: Live = extract(&keys.live, &tree).map_err(|wrong| refused(vec![wrong]))?;
    let fixed: Fixed = extract(&keys.fixed, &tree).map_err(|wrong| refused(vec![wrong]))?;
    let mut config = Config { live, fixed, origins: Origins::of(&tree) };
    config.complete();
    let wrong = validate::validate(&config, &tree);
    if !wrong.is_empty() {
        return Err(refused(wrong));
    }
    Ok((config, tree))
}

/// A model as an order describes it, with the keys of `[[model]]`. `null` is a key that is not there.
///
/// # Errors
/// An unknown key, or a value of the wrong type or out of bounds.
pub(crate) fn model_of(settings: serde_json::Map<String, serde_json::Value>) -> Result<ModelConfig, ConfigError> {
    let source = Source::Order;
    let given = without_nulls(settings).into_iter();
    let table = given.map(|(key, value)| Ok((key, value_of(&value)?))).collect::<Result<toml::Table, ConfigError>>()?;
    let mut tree = defaults()?;
    let models = toml::Table::from_iter([("model".to_owned(), Value::Array(vec![Value::Table(table)]))]);
    tree.merge(Node::of(Value::Table(models), &source));
    complete_models(&mut tree)?;
    let (mut config, _) = checked(tree, &Keys::new()).map_err(ConfigError::of_order)?;
    Ok(config.live.model.remove(0))
}

/// What is given: `null` stands for a key that is not.
fn without_nulls(settings: serde_json::Map<String, serde_json::Value>) -> serde_json::Map<String, serde_json::Value> {
    let given = |(key, value)| match value {
        serde_json::Value::Null => None,
        serde_json::Value::Object(inner) => Some((key, serde_json::Value::Object(without_nulls(inner)))),
        value => Some((key, value)),
    };
    settings.into_iter().filter_map(given).collect()
}

/// `model.1` of `model.1.path`.
fn entry_of(key: &str) -> Option<String> {
    let mut segments = key.split('.');
    let (list, index) = (segments.next()?, segments.next()?.parse::<usize>().ok()?);
    segments.next().map(|_| format!("{list}.{index}"))
}

/// The text of a configuration file.
///
/// # Errors
/// It is not there, is not a regular file, is too large, or is no text.
pub(crate) fn read_file(path: &Path) -> Result<String, ConfigError> {
    let bytes = camshaft_policy::read_whole(path, FILE_MAX_BYTES).map_err(|error| match error {
        FileError::Unreadable { path, source } if source.kind() == ErrorKind::NotFound => ConfigError::NoFile { path },
        error => ConfigError::File(error),
    })?;
    String::from_utf8(bytes).map_err(|source| ConfigError::NotText { path: path.to_owned(), source })
}

/// Puts what a variable or flag says into the tree, read as the key's type.
fn place(tree: &mut Node, keys: &Keys, setting: Setting) -> Result<(), ConfigError> {
    let Setting { key, value, source } = setting;
    let value = value.read(keys.at(&key).is_some_and(keys::is_text));
    let placed = tree.set(&key, Node::of(value, &source));
    placed.map_err(|misplaced| ConfigError::MisplacedKey { source: misplaced, origin: source })
}

/// Lays each model over the defaults, so that every key of it has a value.
fn complete_models(tree: &mut Node) -> Result<(), ConfigError> {
    let default = Node::of(value_of(&ModelConfig::default())?, &Source::Default);
    let Node::Table(root) = tree else { return Ok(()) };
    if let Some(Node::List(models, _)) = root.get_mut("model") {
        for model in models {
            let given = std::mem::replace(model, default.clone());
            model.merge(given);
        }
    }
    Ok(())
}

fn defaults() -> Result<Node, ConfigError> {
    let mut tree = Node::of(value_of(&Live::default())?, &Source::Default);
    tree.merge(Node::of(value_of(&Fixed::default())?, &Source::Default));
    Ok(tree)
}

fn value_of(config: &impl serde::Serialize) -> Result<Value, ConfigError> {
    Ok(Value::try_from(config)?)
}

fn extract<T: DeserializeOwned>(half: &serde_json::Value, tree: &Node) -> Result<T, Wrong> {
    let value = keys::project(half, tree).unwrap_or_else(|| Value::Table(toml::Table::new()));
    serde_path_to_error::deserialize(value).map_err(|error| {
        // `model[0].id`, as everybody else writes it.
        let key = error.path().to_string().replace('[', ".").replace(']', "");
        Wrong::new(key, error.into_inner().message().trim_end())
    })
}

impl Config {
    /// As [`Sources::load`], once.
    ///
    /// # Errors
    /// An unreadable file, an unknown key (with a similar one, or all known ones), a value of the wrong type or out of bounds.
    pub fn load(
        file: Option<&Path>,
        environment: impl Iterator<Item = (OsString, OsString)>,
        overrides: &Overrides,
    ) -> Result<Self, ConfigError> {
        Sources::new(file, environment, overrides.clone())?.load()
    }
}
