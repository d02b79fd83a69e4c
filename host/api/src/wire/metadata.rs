//! Checks `metadata`, which answers repeat.
use camshaft_core::limits;
use serde_json::Value;

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::wrong_type;

const PATH: &str = "metadata";

/// An object of a few short texts.
///
/// # Errors
/// 400 that names the bound.
pub(crate) fn check(metadata: Option<&Value>) -> Result<(), RequestError> {
    let Some(value) = metadata else { return Ok(()) };
    let map = value.as_object().ok_or_else(|| wrong_type(PATH, "an object", value))?;
    let (most, name_chars, value_chars) = (limits::METADATA, limits::METADATA_NAME_CHARS, limits::METADATA_VALUE_CHARS);
    if map.len() > most {
        return Err(RequestError::field(PATH, format!("metadata has {} entries, at most {most}", map.len())));
    }
    for (name, value) in map {
        let chars = name.chars().count();
        if chars > name_chars {
            let message = format!("a name in metadata may have at most {name_chars} characters, got {chars}");
            return Err(RequestError::field(PATH, message));
        }
        let path = format!("{PATH}.{}", Shown(name));
        let chars = value.as_str().ok_or_else(|| wrong_type(&path, "a string", value))?.chars().count();
        if chars > value_chars {
            let message = format!("{path} may have at most {value_chars} characters, got {chars}");
            return Err(RequestError::field(path, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check_one(name: usize, value: usize) -> Result<(), RequestError> {
        check(Some(&json!({"n".repeat(name): "é".repeat(value)})))
    }

    #[test]
    fn takes_texts_up_to_their_bounds_and_nothing_past_them() {
        let (name, value) = (limits::METADATA_NAME_CHARS, limits::METADATA_VALUE_CHARS);
        check_one(name, value).unwrap();
        assert!(check_one(name + 1, 1).unwrap_err().to_string().contains("at most 64 characters, got 65"));
        assert!(check_one(1, value + 1).unwrap_err().to_string().contains("at most 512 characters, got 513"));
        let many = |count: usize| Value::Object((0..count).map(|i| (i.to_string(), json!("x"))).collect());
        check(Some(&many(limits::METADATA))).unwrap();
        assert!(check(Some(&many(limits::METADATA + 1))).unwrap_err().to_string().contains("17 entries, at most 16"));
        assert!(check(Some(&json!([]))).is_err() && check(Some(&json!({"a": 1}))).is_err() && check(None).is_ok());
    }
}
