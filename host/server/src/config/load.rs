//! Merging the sources: flags over environment over file over defaults.
use std::path::{Path, PathBuf};

use figment::Figment;
use figment::error::Kind;
use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Value};

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

impl Config {
    /// Loads and checks the configuration. `file` beats `CAMSHAFT_CONFIG`; paths in a file are relative to the file.
    ///
    /// # Errors
    /// An unreadable file, an unknown key (with the nearest known one), a value of the wrong type or out of bounds.
    pub fn load(
        file: Option<&Path>,
        environment: impl Iterator<Item = (String, String)>,
        overrides: &Overrides,
    ) -> Result<Self, ServerError> {
        let environment: Vec<(String, String)> = environment.filter(|(name, _)| name.starts_with(PREFIX)).collect();
        let from_environment =
            environment.iter().find(|(name, _)| name == "CAMSHAFT_CONFIG").map(|(_, v)| PathBuf::from(v));
        let file = file.map(Path::to_owned).or(from_environment);
        let mut figment = Figment::new().merge(Toml::string(raw::DEFAULTS));
        if let Some(path) = file {
            if !path.is_file() {
                return Err(ServerError::MissingInput { path, why: "no such configuration file".to_owned() });
            }
            figment = figment.merge(Toml::file_exact(path));
        }
        for (name, value) in environment.iter().filter(|(name, _)| !NOT_KEYS.contains(&name.as_str())) {
            figment = figment.merge(Serialized::global(&key_of(name), parsed(value)));
        }
        for (key, value) in overrides.values()? {
            figment = figment.merge(Serialized::global(&key, value));
        }
        let raw: raw::Raw = figment.extract().map_err(|error| ServerError::Config(explain(&error)))?;
        Config::from_raw(raw)
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
