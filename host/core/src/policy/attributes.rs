//! What policies note about a request for those that come after them.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Attributes of one request.
pub const ATTRIBUTES: usize = 16;
/// Characters of a name.
pub const ATTRIBUTE_NAME_CHARS: usize = 64;
/// Bytes of a value.
pub const ATTRIBUTE_BYTES: usize = 256;
/// Characters of a name that an error repeats.
const SHOWN_CHARS: usize = 128;

/// Names and values, which an auth or validator policy sets and later hooks read. No client sets any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes(BTreeMap<String, String>);

/// Nothing was set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    #[error(
        "an attribute of the name {name:?}, which is not 1 to {ATTRIBUTE_NAME_CHARS} of the characters a-z, 0-9, '.', '_' \
         and '-'"
    )]
    Name { name: String },
    #[error("the attribute {name} has {bytes} bytes, over {ATTRIBUTE_BYTES}")]
    Value { name: String, bytes: usize },
    #[error("the attribute {name} is one more than the {ATTRIBUTES} that a request may have")]
    Full { name: String },
}

impl Attributes {
    /// Sets an attribute, in place of what it was before.
    ///
    /// # Errors
    /// Name or value are out of bounds, or there are too many.
    pub fn set(&mut self, name: &str, value: String) -> Result<(), AttributeError> {
        let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
        if name.is_empty() || name.len() > ATTRIBUTE_NAME_CHARS || !name.bytes().all(is_allowed) {
            return Err(AttributeError::Name { name: name.chars().take(SHOWN_CHARS).collect() });
        }
        if value.len() > ATTRIBUTE_BYTES {
            return Err(AttributeError::Value { name: name.to_owned(), bytes: value.len() });
        }
        if self.0.len() >= ATTRIBUTES && !self.0.contains_key(name) {
            return Err(AttributeError::Full { name: name.to_owned() });
        }
        self.0.insert(name.to_owned(), value);
        Ok(())
    }

    /// Bytes of all names and values.
    pub fn bytes(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_value_replaces_an_earlier_one() {
        let mut attributes = Attributes::default();
        attributes.set("tier", "gold".to_owned()).unwrap();
        attributes.set("tier", "silver".to_owned()).unwrap();
        assert_eq!((attributes.get("tier"), attributes.get("Tier")), (Some("silver"), None));
        assert_eq!(attributes.bytes(), 10);
    }

    #[test]
    fn takes_names_and_values_at_their_bounds_and_none_past_them() {
        let mut attributes = Attributes::default();
        let set = |attributes: &mut Attributes, name: &str, bytes| attributes.set(name, "x".repeat(bytes));
        set(&mut attributes, &"a".repeat(64), 256).unwrap();
        set(&mut attributes, "az-09._", 0).unwrap();
        for name in ["", "A", "a b", "a\n", "é", "a:b", &"a".repeat(65)] {
            let error = set(&mut attributes, name, 1).unwrap_err();
            assert_eq!(error, AttributeError::Name { name: name.to_owned() });
        }
        assert!(set(&mut attributes, &"\u{1}".repeat(9999), 1).unwrap_err().to_string().len() < 1100);
        let error = set(&mut attributes, "long", 257).unwrap_err();
        assert_eq!(error.to_string(), "the attribute long has 257 bytes, over 256");
        assert_eq!(attributes.get("long"), None);
    }

    #[test]
    fn a_full_set_still_takes_what_it_has() {
        let mut attributes = Attributes::default();
        for number in 0..ATTRIBUTES {
            attributes.set(&format!("a{number}"), String::new()).unwrap();
        }
        assert_eq!(attributes.set("b", String::new()), Err(AttributeError::Full { name: "b".to_owned() }));
        attributes.set("a3", "again".to_owned()).unwrap();
        assert_eq!((attributes.get("a3"), attributes.get("b")), (Some("again"), None));
    }
}
