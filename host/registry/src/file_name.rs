//! Names of files that the cache creates, whoever proposed them.
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::FILE_NAME_BYTES;

/// A name that leads nowhere but to a file of the directory that it is used in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct FileName(String);

/// Why a text is no such name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be a file's name of 1 to {FILE_NAME_BYTES} bytes, without \"/\", control characters and a leading \".\"")]
pub(crate) struct NoFileName;

impl FileName {
    pub(crate) fn new(name: &str) -> Result<Self, NoFileName> {
        let length = 1..=FILE_NAME_BYTES;
        // A leading dot rules out `.` and `..`, and leaves hidden names to the cache itself.
        let good = length.contains(&name.len())
            && !name.starts_with('.')
            && name.chars().all(|c| c != '/' && c != '\\' && !c.is_control());
        if good { Ok(Self(name.to_owned())) } else { Err(NoFileName) }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for FileName {
    type Error = NoFileName;

    fn try_from(name: String) -> Result<Self, NoFileName> {
        Self::new(&name)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_never_leads_out_of_its_directory() {
        for bad in ["", ".", "..", "/x", "a/b", "../x", "a\0b", "a\nb", "a\\b", ".hidden", &"x".repeat(2 << 20)] {
            assert_eq!(FileName::new(bad), Err(NoFileName), "{:.20}", bad);
        }
        for good in ["x.gguf", "ö-00001-of-00002.gguf", "a..b"] {
            assert_eq!(FileName::new(good).unwrap().as_str(), good);
        }
        assert!(FileName::new(&"x".repeat(255)).is_ok());
        assert!(FileName::new(&"x".repeat(256)).is_err());
        assert!(serde_json::from_str::<FileName>("\"../x\"").is_err(), "nor one that was read");
    }
}
