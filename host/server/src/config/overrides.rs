//! Configuration by flags.
use std::path::PathBuf;

use toml::{Table, Value};

use super::error::ConfigError;
use super::tree::Source;

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

/// A key's value from outside a file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setting {
    pub(super) key: String,
    pub(super) value: Given,
    pub(super) source: Source,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Given {
    /// To be read as the key's type.
    Text(String),
    Value(Value),
}

impl Given {
    /// `is_text`: the key takes any text.
    pub(super) fn read(self, is_text: bool) -> Value {
        match self {
            Self::Value(value) => value,
            Self::Text(text) => match text.parse::<Value>() {
                Ok(value) if !is_text || value.is_str() => value,
                _ => Value::String(text),
            },
        }
    }
}

/// The key that `--model` sets as a whole.
const MODEL: &str = "model";

impl Overrides {
    /// In the order in which they are applied: `--set model.N.KEY` changes what `--model` names.
    ///
    /// # Errors
    /// A `--set` without `=`.
    pub(super) fn settings(&self) -> Result<Vec<Setting>, ConfigError> {
        let mut settings = Vec::new();
        let mut of_models = Vec::new();
        for pair in &self.set {
            let (key, text) =
                pair.split_once('=').ok_or_else(|| ConfigError::SetWithoutValue { text: pair.clone() })?;
            let key = key.trim().to_owned();
            let source = Source::Flag(format!("--set {key}"));
            let below_models = key.strip_prefix(MODEL).is_some_and(|rest| rest.starts_with('.'));
            let setting = Setting { key, value: Given::Text(text.to_owned()), source };
            if below_models { &mut of_models } else { &mut settings }.push(setting);
        }
        let mut flag = |name: &str, key: &str, value: Option<Value>| {
            let source = Source::Flag(name.to_owned());
            settings.extend(value.map(|value| Setting { key: key.to_owned(), value: Given::Value(value), source }));
        };
        flag("--listen", "listen", self.listen.clone().map(Value::from));
        flag("--admin-listen", "admin.listen", self.admin_listen.clone().map(Value::from));
        let dir = self.policy_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned());
        flag("--policy-dir", "policy.dir", dir.map(Value::from));
        flag("--allow-anonymous", "allow-anonymous", self.allow_anonymous.then_some(Value::from(true)));
        let entry = |path: &String| Value::from(Table::from_iter([("path".to_owned(), Value::from(path.as_str()))]));
        let models: Vec<Value> = self.models.iter().map(entry).collect();
        flag("--model", MODEL, (!models.is_empty()).then_some(Value::from(models)));
        settings.extend(of_models);
        Ok(settings)
    }
}
