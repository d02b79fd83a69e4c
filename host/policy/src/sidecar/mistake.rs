//! What is wrong with a key of a settings file.
use toml::Value;

use crate::error::SettingsError;

/// An error and the key that it is about.
pub(super) struct SidecarMistake {
    pub(super) key: String,
    pub(super) problem: SettingsError,
}

pub(super) fn bad(key: &str, value: &Value, expected: &'static str) -> SidecarMistake {
    let problem = SettingsError::Value { key: key.to_owned(), value: value.to_string(), expected };
    SidecarMistake { key: key.to_owned(), problem }
}

pub(super) fn unknown(key: &str, section: &str, known: &[&str]) -> SidecarMistake {
    let nearest = known.iter().max_by(|a, b| strsim::jaro_winkler(a, key).total_cmp(&strsim::jaro_winkler(b, key)));
    let (key, nearest) = (format!("{section}{key}"), nearest.map(|nearest| format!("{section}{nearest}")));
    SidecarMistake { key: key.clone(), problem: SettingsError::UnknownKey { key, nearest } }
}
