//! Merging the sources: flags over environment over file over defaults.
use std::path::{Path, PathBuf};

use figment::error::Kind;
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Value};
use figment::{Figment, Metadata, Provider};

use super::{Config, raw};
use crate::error::ServerError;

/// Environment variables with the prefix that are not configuration keys.
const NOT_KEYS: [&str; 2] = ["CAMSHAFT_CONFIG", "CAMSHAFT_MODELS"];
const PREFIX: &str = "CAMSHAFT_";

/// What the command line says.
#[derive(Debug, Clone, Default)]
pub struct Overrides {
    /// GGUF files, or `demo`.
    pub models: Vec<String>,
    pub listen: Option<String>,
    pub admin_listen: Option<String>,
    pub policy_dir: Option<PathBuf>,
    pub allow_anonymous: bool,
    /// `key.path=value`.
    pub set: Vec<String>,
}

/// Where a configuration comes from, to be read again when it changes.
#[derive(Debug, Clone)]
pub struct Sources {
    file: Option<PathBuf>,
    environment: Vec<(String, String)>,
    overrides: Overrides,
}

impl Sources {
    /// `file` beats `CAMSHAFT_CONFIG`.
    pub fn new(file: Option<&Path>, environment: impl Iterator<Item = (String, String)>, overrides: Overrides) -> Self {
        let environment: Vec<(String, String)> = environment.filter(|(name, _)| name.starts_with(PREFIX)).collect();
        let from_environment =
            environment.iter().find(|(name, _)| name == "CAMSHAFT_CONFIG").map(|(_, v)| PathBuf::from(v));
        Self { file: file.map(Path::to_owned).or(from_environment), environment, overrides }
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Reads and checks everything. Paths in a file are relative to the file.
    ///
    /// # Errors
    /// An unreadable file, an unknown key (with the nearest known one), a value of the wrong type or out of bounds.
    pub fn load(&self) -> Result<Config, ServerError> {
        let raw: raw::Raw = self.merged()?.extract().map_err(|error| ServerError::Config(explain(&error)))?;
        Config::from_raw(raw)
    }

    /// Every key that is set, with its value and where that came from, in the order of the keys. Values are as they were
    /// written.
    ///
    /// # Errors
    /// As [`Sources::load`].
    pub fn effective(&self) -> Result<Vec<Effective>, ServerError> {
        self.load()?;
        let figment = self.merged()?;
        let all: Dict = figment.extract().map_err(|error| ServerError::Config(explain(&error)))?;
        let mut out = Vec::new();
        for (key, value) in all {
            leaves(&key, value, &mut |key, value| {
                let source = figment.find_metadata(key).map_or_else(|| "default".to_owned(), source_of);
                out.push(Effective { key: key.to_owned(), value, source });
            });
        }
        Ok(out)
    }

    fn merged(&self) -> Result<Figment, ServerError> {
        let mut figment = Figment::new().merge(Toml::string(raw::DEFAULTS));
        if let Some(path) = &self.file {
            if !path.is_file() {
                let why = "no such configuration file".to_owned();
                return Err(ServerError::MissingInput { path: path.clone(), why });
            }
            figment = figment.merge(Toml::file_exact(path));
        }
        for (name, value) in self.environment.iter().filter(|(name, _)| !NOT_KEYS.contains(&name.as_str())) {
            let named = Named {
                provider: Serialized::global(&key_of(name), parsed(value)),
                name: format!("{ENVIRONMENT}{name}"),
            };
            figment = figment.merge(named);
        }
        for (key, value) in self.overrides.values()? {
            figment = figment.merge(Named { provider: Serialized::global(&key, value), name: FLAG.to_owned() });
        }
        Ok(figment)
    }
}

/// One key of the configuration in force.
#[derive(Debug, Clone, PartialEq)]
pub struct Effective {
    /// `queue.timeout`, `model.0.id`.
    pub key: String,
    pub value: Value,
    /// `default`, `file PATH`, `environment NAME` or `flag`.
    pub source: String,
}

const ENVIRONMENT: &str = "environment ";
const FLAG: &str = "flag";

/// A provider that says in the metadata of its values what it is.
struct Named<P> {
    provider: P,
    name: String,
}

impl<P: Provider> Provider for Named<P> {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<figment::value::Map<figment::Profile, Dict>, figment::Error> {
        self.provider.data()
    }
}

fn source_of(metadata: &Metadata) -> String {
    match &metadata.source {
        Some(figment::Source::File(path)) => format!("file {}", path.display()),
        _ if metadata.name == FLAG || metadata.name.starts_with(ENVIRONMENT) => metadata.name.to_string(),
        _ => "default".to_owned(),
    }
}

/// Calls `leaf` for everything below `key` that holds nothing further.
fn leaves(key: &str, value: Value, leaf: &mut impl FnMut(&str, Value)) {
    match value {
        Value::Dict(_, dict) => {
            dict.into_iter().for_each(|(name, value)| leaves(&format!("{key}.{name}"), value, leaf))
        }
        Value::Array(_, list) if list.iter().any(|value| matches!(value, Value::Dict(..))) => {
            list.into_iter().enumerate().for_each(|(i, value)| leaves(&format!("{key}.{i}"), value, leaf));
        }
        value => leaf(key, value),
    }
}

impl Config {
    /// As [`Sources::load`], once.
    ///
    /// # Errors
    /// An unreadable file, an unknown key (with the nearest known one), a value of the wrong type or out of bounds.
    pub fn load(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        overrides: &Overrides,
    ) -> Result<Self, ServerError> {
        Sources::new(file, environment, overrides.clone()).load()
    }
}

/// `CAMSHAFT_QUEUE__HIGH_WATERMARK` is `queue.high-watermark`.
fn key_of(name: &str) -> String {
    name[PREFIX.len()..].to_ascii_lowercase().replace("__", ".").replace('_', "-")
}

/// A value given as text: TOML if it is, else the text itself.
fn parsed(text: &str) -> Value {
    text.parse().unwrap_or_else(|_| Value::from(text))
}

impl Overrides {
    fn values(&self) -> Result<Vec<(String, Value)>, ServerError> {
        let mut values = Vec::new();
        for pair in &self.set {
            let (key, value) = pair
                .split_once('=')
                .ok_or_else(|| ServerError::Config(format!("--set takes KEY=VALUE, got {pair:?}")))?;
            values.push((key.trim().to_owned(), parsed(value)));
        }
        let text = |key: &str, value: &Option<String>| value.clone().map(|value| (key.to_owned(), Value::from(value)));
        values.extend(text("listen", &self.listen));
        values.extend(text("admin.listen", &self.admin_listen));
        let dir = self.policy_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned());
        values.extend(text("policy.dir", &dir));
        if self.allow_anonymous {
            values.push(("allow-anonymous".to_owned(), Value::from(true)));
        }
        if !self.models.is_empty() {
            let entry = |path: &String| Value::from(Dict::from([("path".to_owned(), Value::from(path.as_str()))]));
            values.push(("model".to_owned(), Value::from(self.models.iter().map(entry).collect::<Vec<_>>())));
        }
        Ok(values)
    }
}

/// One line for each thing that is wrong: where, what, and the nearest known key.
fn explain(error: &figment::Error) -> String {
    let lines: Vec<String> = error.clone().into_iter().map(|one| explain_one(&one)).collect();
    lines.join("; ")
}

fn explain_one(error: &figment::Error) -> String {
    let path = error.path.join(".");
    let source =
        error.metadata.as_ref().and_then(|m| m.source.as_ref()).map(|s| format!(" (in {s})")).unwrap_or_default();
    match &error.kind {
        Kind::UnknownField(name, known) => {
            let at = if path.is_empty() || path == *name { name.clone() } else { join(&path, name) };
            let nearest = known
                .iter()
                .map(|candidate| (strsim::jaro_winkler(name, candidate), *candidate))
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .map(|(_, candidate)| format!("; did you mean `{candidate}`?"))
                .unwrap_or_default();
            format!("unknown key `{at}`{nearest}{source}")
        }
        kind if path.is_empty() => format!("{kind}{source}"),
        kind => format!("{path}: {kind}{source}"),
    }
}

/// The error's path may or may not end in the unknown key itself.
fn join(path: &str, name: &str) -> String {
    match path.rsplit('.').next() {
        Some(last) if last == name => path.to_owned(),
        _ => format!("{path}.{name}"),
    }
}
