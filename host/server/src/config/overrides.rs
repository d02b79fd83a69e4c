//! Configuration by flags.
use std::path::PathBuf;

use camshaft_registry::Source as ModelSource;
use toml::{Table, Value};

use super::error::ConfigError;
use super::tree::Source;

/// What the command line says.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Overrides {
    /// A GGUF, ONNX or other model file to serve under its file name, `demo` or `digits` for the bundled models, or a source that is
    /// pulled (hf:ORG/REPO/FILE, ...). May be repeated.
    #[arg(long = "model", value_name = "PATH|demo|digits|SOURCE")]
    pub models: Vec<String>,
    /// Address of the public listener.
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// Address of the admin listener; empty for none.
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<String>,
    /// Directory of the policies.
    #[arg(long, value_name = "DIR")]
    pub policy_dir: Option<PathBuf>,
    /// Serve everybody, on any address, if there is no auth policy.
    #[arg(long)]
    pub allow_anonymous: bool,
    /// Any other setting by its key path, e.g. `--set queue.high-watermark=64`. May be repeated.
    #[arg(long, value_name = "KEY=VALUE")]
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

impl Setting {
    /// Whether it sets what a flag sets, too: the flag's key, a table with that key, or a key of the flag's own value
    /// (`model.0.path`).
    fn sets(&self, key: &str, value: &Value) -> bool {
        let given = self.value.clone().read(false);
        match (below(&self.key, key), below(key, &self.key)) {
            (Some(path), _) => at(value, path).is_some_and(|value| overlap(value, &given)),
            (_, Some(path)) => at(&given, path).is_some(),
            _ => false,
        }
    }
}

/// What comes in a key after another one: `0.path` of `model.0.path` after `model`. Empty if they are the same.
fn below<'a>(key: &'a str, above: &str) -> Option<&'a str> {
    key.strip_prefix(above).filter(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// What lies in a value under a path, which begins with a dot or is empty.
fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').skip(1).try_fold(value, |value, segment| match segment.parse::<usize>() {
        Ok(index) => value.get(index),
        Err(_) => value.get(segment),
    })
}

/// Whether two values say something about the same key.
fn overlap(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Table(a), Value::Table(b)) => a.iter().any(|(key, a)| b.get(key).is_some_and(|b| overlap(a, b))),
        _ => true,
    }
}

/// The key that `--model` sets as a whole.
const MODEL: &str = "model";

impl Overrides {
    /// In the order in which they are applied: `--set model.N.KEY` changes what `--model` names.
    ///
    /// # Errors
    /// A `--set` without `=`, or of what another flag sets.
    pub(super) fn settings(&self) -> Result<Vec<Setting>, ConfigError> {
        let mut settings = Vec::new();
        let (mut of_models, mut flags) = (Vec::new(), Vec::new());
        for pair in &self.set {
            let (key, text) =
                pair.split_once('=').ok_or_else(|| ConfigError::SetWithoutValue { text: pair.clone() })?;
            let key = key.trim().to_owned();
            let source = Source::Flag(format!("--set {key}"));
            let below_models = key.strip_prefix(MODEL).is_some_and(|rest| rest.starts_with('.'));
            let setting = Setting { key, value: Given::Text(text.to_owned()), source };
            if below_models { &mut of_models } else { &mut settings }.push(setting);
        }
        for (flag, key, value) in self.flags() {
            if let Some(twice) = settings.iter().chain(&of_models).find(|set| set.sets(key, &value)) {
                return Err(ConfigError::GivenTwice { flag: flag.to_owned(), key: twice.key.clone() });
            }
            let source = Source::Flag(flag.to_owned());
            flags.push(Setting { key: key.to_owned(), value: Given::Value(value), source });
        }
        settings.append(&mut flags);
        settings.extend(of_models);
        Ok(settings)
    }

    /// The flags that were given, each with its key and value.
    fn flags(&self) -> impl Iterator<Item = (&'static str, &'static str, Value)> {
        let entry = |model: &String| {
            let key = if ModelSource::is_remote(model) { "source" } else { "path" };
            Value::from(Table::from_iter([(key.to_owned(), Value::from(model.as_str()))]))
        };
        let models: Vec<Value> = self.models.iter().map(entry).collect();
        let dir = self.policy_dir.as_ref().map(|dir| dir.to_string_lossy().into_owned());
        let flags = [
            ("--listen", "listen", self.listen.clone().map(Value::from)),
            ("--admin-listen", "admin.listen", self.admin_listen.clone().map(Value::from)),
            ("--policy-dir", "policy.dir", dir.map(Value::from)),
            ("--allow-anonymous", "allow-anonymous", self.allow_anonymous.then_some(Value::from(true))),
            ("--model", MODEL, (!models.is_empty()).then_some(Value::from(models))),
        ];
        flags.into_iter().filter_map(|(flag, key, value)| Some((flag, key, value?)))
    }
}
