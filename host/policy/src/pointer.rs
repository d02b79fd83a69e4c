//! One value of a JSON text by its JSON pointer (RFC 6901), without a tree of all others: a text of 2 MiB can have a million values.
use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// The text of the value that the pointer names; `None` if there is none. Of keys that are given twice, the last counts.
///
/// # Errors
/// The text is not JSON as far as it was read.
pub(crate) fn find<'a>(text: &'a str, pointer: &str) -> serde_json::Result<Option<&'a str>> {
    let path: Vec<String> = match pointer.strip_prefix('/') {
        None if pointer.is_empty() => Vec::new(),
        None => return Ok(None),
        Some(rest) => rest.split('/').map(|step| step.replace("~1", "/").replace("~0", "~")).collect(),
    };
    let mut found = Some(text.trim());
    for step in &path {
        let Some(value) = found else { break };
        let mut reader = serde_json::Deserializer::from_str(value);
        found = Step(step).deserialize(&mut reader)?;
    }
    Ok(found)
}

/// One step into an object or a list.
struct Step<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for Step<'_> {
    type Value = Option<&'de str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Step<'_> {
    type Value = Option<&'de str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Key<'de>>()? {
            if key.0 == self.0 {
                found = Some(map.next_value::<&RawValue>()?.get());
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        // Without leading zeros, as the RFC says.
        let plain = self.0 == "0" || self.0.starts_with(|c: char| matches!(c, '1'..='9'));
        let wanted = self.0.parse::<usize>().ok().filter(|_| plain);
        let (mut found, mut at) = (None, 0);
        while let Some(value) = list.next_element::<&RawValue>()? {
            if Some(at) == wanted {
                found = Some(value.get());
            }
            at += 1;
        }
        Ok(found)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// A key, which is borrowed where it has no escapes.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_values_of_any_kind_as_their_text() {
        let text = r#" {"a": {"b/c": [1, {"d~": null}, "x\n"], "e": 1e2}, "n\u0061me": "s", "a2": true} "#;
        for (pointer, expected) in [
            ("", Some(text.trim())),
            ("/a/b~1c/0", Some("1")),
            ("/a/b~1c/1", Some(r#"{"d~": null}"#)),
            ("/a/b~1c/1/d~0", Some("null")),
            ("/a/b~1c/2", Some(r#""x\n""#)),
            ("/a/e", Some("1e2")),
            ("/name", Some(r#""s""#)),
            ("/a/b~1c/3", None),
            ("/a/b~1c/00", None),
            ("/a/b~1c/+0", None),
            ("/a/b~1c/-", None),
            ("/a/e/x", None),
            ("/name/0", None),
            ("/nothing", None),
            ("a", None),
        ] {
            assert_eq!(find(text, pointer).unwrap(), expected, "{pointer}");
        }
        assert_eq!(find(r#"{"a": 1, "a": 2}"#, "/a").unwrap(), Some("2"));
        assert!(find("{\"a\": ", "/a").is_err());
    }

    #[test]
    fn regression_two_megabytes_of_numbers_are_no_tree() {
        let text = format!(r#"{{"prompt": [{}7], "n": 3}}"#, "1,".repeat(1 << 20));
        assert_eq!(find(&text, "/n").unwrap(), Some("3"));
        assert_eq!(find(&text, "/prompt/1048576").unwrap(), Some("7"));
    }
}
