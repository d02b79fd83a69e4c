//! Parses the host's JSON text into the author's settings type.
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Settings of a policy without any. Rejects every key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

/// Parses the JSON text of settings.
///
/// # Errors
/// It does not fit. The text is for the operator, and begins with the path of the field at fault.
pub fn parse<S: DeserializeOwned>(text: &str) -> Result<S, String> {
    // Parse into a value first: errors of the second step then name no position in a text that the operator never sees.
    let value: serde_json::Value =
        serde_json::from_str(text).map_err(|error| format!("settings are not JSON: {error}"))?;
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        if path == "." { format!("settings: {}", error.inner()) } else { format!("settings.{path}: {}", error.inner()) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct Outer {
        keys: Vec<Inner>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(rename_all = "kebab-case", deny_unknown_fields)]
    struct Inner {
        max_weight: u32,
    }

    #[test]
    fn reads_kebab_case_settings() {
        let settings: Outer = parse(r#"{"keys": [{"max-weight": 3}]}"#).unwrap();
        assert_eq!(settings, Outer { keys: vec![Inner { max_weight: 3 }] });
    }

    #[test]
    fn names_the_field_of_a_wrong_type() {
        let error = parse::<Outer>(r#"{"keys": [{"max-weight": "x"}]}"#).unwrap_err();
        assert_eq!(error, "settings.keys[0].max-weight: invalid type: string \"x\", expected u32");
    }

    #[test]
    fn names_the_known_fields_beside_an_unknown_one() {
        let error = parse::<NoSettings>(r#"{"wrods": 1}"#).unwrap_err();
        assert!(error.starts_with("settings.wrods: unknown field `wrods`"), "{error}");
    }

    #[test]
    fn refuses_text_that_is_not_json() {
        assert!(parse::<NoSettings>("{").unwrap_err().starts_with("settings are not JSON"));
    }
}
