//! Reads values of settings files: their lines, times and sizes with units, JSON.
use std::time::Duration;

use toml::Value;
use toml::de::{DeTable, DeValue};

/// The line of a byte, counted from 1.
pub(super) fn line_at(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte.min(text.len())].iter().filter(|&&byte| byte == b'\n').count() + 1
}

/// The line of a key, or of the deepest table on its path.
pub(super) fn line_of(text: &str, path: &str) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let (mut table, mut line) = (root.get_ref(), None);
    for part in path.split('.') {
        let Some((key, value)) = table.iter().find(|(key, _)| key.get_ref() == part) else { break };
        line = Some(line_at(text, key.span().start));
        let DeValue::Table(inner) = value.get_ref() else { break };
        table = inner;
    }
    line
}

/// A whole number and its unit.
fn quantity(text: &str) -> Option<(u64, &str)> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    Some((text[..unit].parse().ok()?, text[unit..].trim()))
}

pub(super) fn duration(text: &str) -> Option<Duration> {
    match quantity(text)? {
        (n, "us") => Some(Duration::from_micros(n)),
        (n, "ms") => Some(Duration::from_millis(n)),
        (n, "s") => Some(Duration::from_secs(n)),
        (n, "m") => n.checked_mul(60).map(Duration::from_secs),
        (n, "h") => n.checked_mul(3600).map(Duration::from_secs),
        _ => None,
    }
}

pub(super) fn bytes(text: &str) -> Option<usize> {
    let (n, unit) = quantity(text)?;
    let scale = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return None,
    };
    usize::try_from(n.checked_mul(scale)?).ok()
}

/// A value as JSON.
///
/// # Errors
/// Names a value that JSON cannot represent, and its path.
pub(super) fn json(value: Value, key: &str) -> Result<serde_json::Value, (String, Value)> {
    Ok(match value {
        Value::String(text) => text.into(),
        Value::Integer(number) => number.into(),
        Value::Float(number) => match serde_json::Number::from_f64(number) {
            Some(number) => number.into(),
            None => return Err((key.to_owned(), value)),
        },
        Value::Boolean(flag) => flag.into(),
        Value::Datetime(time) => time.to_string().into(),
        Value::Array(items) => items.into_iter().map(|item| json(item, key)).collect::<Result<Vec<_>, _>>()?.into(),
        Value::Table(table) => {
            let member = |(name, value)| {
                let value = json(value, &format!("{key}.{name}"))?;
                Ok((name, value))
            };
            let members = table.into_iter().map(member).collect::<Result<serde_json::Map<_, _>, (String, Value)>>()?;
            members.into()
        }
    })
}
