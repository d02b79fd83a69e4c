//! `[documents]` and `[secrets]` of a settings file.
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use toml::{Table, Value};

use super::read::{bytes, duration};
use crate::documents::{DocumentSpec, Source};
use crate::secrets::SecretSource;

/// Documents, and secrets, of one policy.
const DOCUMENTS_MAX: usize = 16;
const SECRETS_MAX: usize = 16;
const NAME_BYTES: usize = 64;
/// Of one document, and of all of a policy.
const MAX_BYTES_DEFAULT: usize = 1 << 20;
const MAX_BYTES: usize = 8 << 20;
const TOTAL_BYTES: u64 = 32 << 20;
const REFRESH_DEFAULT: Duration = Duration::from_secs(60);
const REFRESH_MIN: Duration = Duration::from_secs(1);
const REFRESH_MAX: Duration = Duration::from_secs(86_400);
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);
const TIMEOUT_MIN: Duration = Duration::from_millis(100);
const TIMEOUT_MAX: Duration = Duration::from_secs(30);
const URL_BYTES: usize = 2048;

const DOCUMENT_KEYS: [&str; 6] = ["path", "url", "refresh", "max-bytes", "timeout", "ca"];
const SECRET_KEYS: [&str; 2] = ["file", "env"];

const NAME: &str = "a name has 1 to 64 small letters, digits and hyphens";
const PATH: &str = "expected an absolute path";
const URL: &str =
    "expected a URL of at most 2048 bytes that begins with http:// or https:// and names no user, without spaces";
const ONE_SOURCE: &str = "expected either path or url";

/// What is wrong, and with which key.
pub(super) enum Mistake {
    Value { key: String, value: Value, expected: &'static str },
    Unknown { key: String, section: String, known: &'static [&'static str] },
}

fn wrong(key: String, value: &Value, expected: &'static str) -> Mistake {
    Mistake::Value { key, value: value.clone(), expected }
}

/// Reads `[documents]`.
pub(super) fn documents(table: &Table) -> Result<Vec<DocumentSpec>, Mistake> {
    if table.len() > DOCUMENTS_MAX {
        let count = Value::Integer(i64::try_from(table.len()).unwrap_or(i64::MAX));
        return Err(wrong("documents".to_owned(), &count, "a policy has at most 16 documents"));
    }
    let specs: Vec<DocumentSpec> = table.iter().map(|(name, value)| document(name, value)).collect::<Result<_, _>>()?;
    let total: u64 = specs.iter().map(|spec| spec.max_bytes).sum();
    if total > TOTAL_BYTES {
        let total = Value::Integer(i64::try_from(total).unwrap_or(i64::MAX));
        return Err(wrong("documents".to_owned(), &total, "the max-bytes of all documents sum to at most 32 MiB"));
    }
    Ok(specs)
}

fn document(name: &str, value: &Value) -> Result<DocumentSpec, Mistake> {
    let section = format!("documents.{name}");
    check_name(name, &section, value)?;
    let table = value.as_table().ok_or_else(|| wrong(section.clone(), value, "expected a table"))?;
    if let Some(key) = table.keys().find(|key| !DOCUMENT_KEYS.contains(&key.as_str())) {
        return Err(Mistake::Unknown { key: key.clone(), section: format!("{section}."), known: &DOCUMENT_KEYS });
    }
    let key = |key: &str| format!("{section}.{key}");
    // A value of another type is as wrong as an empty one.
    let text = |name: &str| table.get(name).map(|value| (value, value.as_str().unwrap_or_default()));
    let time = |name: &str, default, range: std::ops::RangeInclusive<Duration>, expected| match text(name) {
        None => Ok(default),
        Some((value, time)) => {
            duration(time).filter(|time| range.contains(time)).ok_or_else(|| wrong(key(name), value, expected))
        }
    };
    let refresh = time("refresh", REFRESH_DEFAULT, REFRESH_MIN..=REFRESH_MAX, r#"expected a time from "1s" to "24h""#)?;
    let timeout =
        time("timeout", TIMEOUT_DEFAULT, TIMEOUT_MIN..=TIMEOUT_MAX, r#"expected a time from "100ms" to "30s""#)?;
    let max_bytes = match text("max-bytes") {
        None => MAX_BYTES_DEFAULT,
        Some((value, size)) => bytes(size)
            .filter(|size| (1..=MAX_BYTES).contains(size))
            .ok_or_else(|| wrong(key("max-bytes"), value, r#"expected a size from "1B" to "8MiB""#))?,
    };
    let ca = text("ca").map(|(value, path)| absolute(path).ok_or_else(|| wrong(key("ca"), value, PATH))).transpose()?;
    let source = match (text("path"), text("url")) {
        (Some((value, path)), None) => {
            let only_of_urls = ["timeout", "ca"].into_iter().find_map(|name| Some((name, table.get(name)?)));
            if let Some((name, value)) = only_of_urls {
                return Err(wrong(key(name), value, "only a document with a url has one"));
            }
            Source::Path(absolute(path).ok_or_else(|| wrong(key("path"), value, PATH))?)
        }
        (None, Some((_, url))) if is_url(url) => {
            if let (Some((ca, _)), false) = (text("ca"), url.starts_with("https://")) {
                return Err(wrong(key("ca"), ca, "only a document with an https url has one"));
            }
            Source::Url { url: url.to_owned(), timeout, ca }
        }
        // It may hold a password.
        (None, Some(_)) => return Err(wrong(key("url"), &Value::String("...".to_owned()), URL)),
        _ => return Err(wrong(section, &Value::String(name.to_owned()), ONE_SOURCE)),
    };
    Ok(DocumentSpec { name: name.to_owned(), source, refresh, max_bytes: max_bytes as u64 })
}

/// Reads `[secrets]`. What is wrong is not repeated: it may be a secret in the wrong place.
pub(super) fn secrets(table: &Table) -> Result<BTreeMap<String, SecretSource>, Mistake> {
    let hidden = Value::String("...".to_owned());
    if table.len() > SECRETS_MAX {
        return Err(wrong("secrets".to_owned(), &hidden, "a policy has at most 16 secrets"));
    }
    let mut secrets = BTreeMap::new();
    for (name, value) in table {
        let section = format!("secrets.{name}");
        check_name(name, &section, &hidden)?;
        let expected = r#"expected { file = "/absolute/path" } or { env = "VARIABLE" }"#;
        let bad = || wrong(section.clone(), &hidden, expected);
        let entry = value.as_table().ok_or_else(bad)?;
        if let Some(key) = entry.keys().find(|key| !SECRET_KEYS.contains(&key.as_str())) {
            return Err(Mistake::Unknown { key: key.clone(), section: format!("{section}."), known: &SECRET_KEYS });
        }
        let text = |name: &str| entry.get(name).map(|value| value.as_str().unwrap_or_default());
        let source = match (text("file"), text("env")) {
            (Some(path), None) => SecretSource::File(absolute(path).ok_or_else(bad)?),
            (None, Some(variable)) if variable.starts_with("CAMSHAFT_") => {
                let expected =
                    "variables that begin with CAMSHAFT_ are keys of the server's configuration: name another";
                return Err(wrong(section, &hidden, expected));
            }
            (None, Some(variable)) if is_variable(variable) => SecretSource::Env(variable.to_owned()),
            _ => return Err(bad()),
        };
        secrets.insert(name.clone(), source);
    }
    Ok(secrets)
}

fn check_name(name: &str, section: &str, value: &Value) -> Result<(), Mistake> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ok = (1..=NAME_BYTES).contains(&name.len()) && name.chars().all(plain);
    if ok { Ok(()) } else { Err(wrong(section.to_owned(), value, NAME)) }
}

fn absolute(path: &str) -> Option<PathBuf> {
    Some(PathBuf::from(path)).filter(|path| path.is_absolute())
}

fn is_url(url: &str) -> bool {
    let Some(rest) = ["http://", "https://"].into_iter().find_map(|scheme| url.strip_prefix(scheme)) else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    url.len() <= URL_BYTES
        && !authority.is_empty()
        && !authority.contains('@')
        && url.chars().all(|c| c.is_ascii_graphic())
}

fn is_variable(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    (1..=128).contains(&name.len()) && name.chars().all(plain)
}
