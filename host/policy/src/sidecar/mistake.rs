//! What is wrong with a key of a settings file.
use camshaft_core::shown::did_you_mean;
use toml::Value;

use crate::error::SettingsError;
use crate::text::truncate_chars;

/// Of a value in an error.
const VALUE_CHARS: usize = 128;

/// An error and the key that it is about.
pub(super) struct SidecarMistake {
    pub(super) key: String,
    pub(super) problem: SettingsError,
}

pub(super) fn bad(key: &str, value: &Value, expected: &'static str) -> SidecarMistake {
    let value = truncate_chars(value.to_string(), VALUE_CHARS);
    let problem = SettingsError::Value { key: key.to_owned(), value, expected };
    SidecarMistake { key: key.to_owned(), problem }
}

pub(super) fn unknown(key: &str, section: &str, known: &[&str]) -> SidecarMistake {
    let hint = did_you_mean(key, section, known.iter().copied());
    let key = format!("{section}{key}");
    SidecarMistake { key: key.clone(), problem: SettingsError::UnknownKey { key, hint } }
}
