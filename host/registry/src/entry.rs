//! What the cache knows of a model: a file of its own for each, written whole.
use std::io::Read;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::error::RegistryError;
use crate::file_name::FileName;
use crate::limits::{ENTRY_BYTES, FILE_BYTES, PARTS};
use crate::lock::open_regular;
use crate::source::check_name;

/// The form of the file. Another one is not read.
const VERSION: u32 = 1;

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    version: u32,
    /// What people call it.
    pub(crate) name: String,
    /// Where it came from.
    pub(crate) source: String,
    /// What the source had under its name: a commit, a manifest's digest.
    pub(crate) revision: Option<String>,
    /// In order; the first is what is loaded.
    pub(crate) files: Vec<EntryFile>,
    /// Seconds since the Unix epoch.
    pub(crate) pulled: u64,
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EntryFile {
    pub(crate) name: FileName,
    pub(crate) sha256: Digest,
    pub(crate) bytes: u64,
    /// What tells a changed file upstream: its entity tag.
    pub(crate) etag: Option<String>,
}

impl Entry {
    pub(crate) fn new(name: String, source: String, revision: Option<String>, files: Vec<EntryFile>) -> Self {
        let pulled = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self { version: VERSION, name, source, revision, files, pulled }
    }

    /// Of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// What names the folder of its files: the same files under the same names have the same.
    pub(crate) fn snapshot(&self) -> Digest {
        let lines: String = self.files.iter().map(|file| format!("{}\0{}\n", file.name, file.sha256)).collect();
        Digest::of(lines.as_bytes())
    }

    /// Of the model, as `sha256` in the configuration has it.
    pub(crate) fn digest(&self) -> Digest {
        Digest::of_parts(&self.files.iter().map(|file| file.sha256).collect::<Vec<_>>())
    }

    /// Reads one, and believes nothing of it.
    ///
    /// # Errors
    /// The file is not there, or holds something else.
    pub(crate) fn read(path: &Path) -> Result<Self, RegistryError> {
        let bytes = read_small(path, ENTRY_BYTES)?;
        let bad = |why: String| RegistryError::BadEntry { path: path.to_owned(), why };
        let entry: Self = serde_json::from_slice(&bytes).map_err(|error| bad(error.to_string()))?;
        if entry.version != VERSION {
            return Err(bad(format!("version {}, known is {VERSION}", entry.version)));
        }
        let counts = (1..=PARTS as usize).contains(&entry.files.len());
        let sizes = entry.files.iter().all(|file| file.bytes <= FILE_BYTES);
        let mut names: Vec<_> = entry.files.iter().map(|file| &file.name).collect();
        names.sort();
        names.dedup();
        if !counts || !sizes || names.len() != entry.files.len() || check_name(&entry.name).is_err() {
            return Err(bad("out of bounds".to_owned()));
        }
        Ok(entry)
    }
}

/// A file that the cache wrote, within a bound.
///
/// # Errors
/// It cannot be read, or is larger.
pub(crate) fn read_small(path: &Path, max: u64) -> Result<Vec<u8>, RegistryError> {
    let failed = |error| RegistryError::io("read", path, error);
    let file = open_regular(path, std::fs::OpenOptions::new().read(true)).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > max {
        return Err(RegistryError::BadEntry { path: path.to_owned(), why: format!("has more than {max} bytes") });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        let file = EntryFile {
            name: FileName::new("x.gguf").unwrap(),
            sha256: Digest::of(b"x"),
            bytes: 1,
            etag: Some("\"e\"".to_owned()),
        };
        Entry::new("n".to_owned(), "hf:a/b/x.gguf".to_owned(), None, vec![file])
    }

    fn reads(text: &str) -> Result<Entry, RegistryError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("e.json");
        std::fs::write(&path, text).unwrap();
        Entry::read(&path)
    }

    #[test]
    fn what_is_written_reads_as_the_same_entry() {
        assert_eq!(reads(&serde_json::to_string(&entry()).unwrap()).unwrap(), entry());
    }

    #[test]
    fn hostile_entries_are_refused() {
        let good = serde_json::to_string(&entry()).unwrap();
        for bad in [
            good.replace("x.gguf\",\"sha256", "../x.gguf\",\"sha256"),
            good.replace("\"version\":1", "\"version\":2"),
            good.replace("\"bytes\":1", "\"bytes\":18446744073709551615"),
            good.replace("\"name\":\"n\"", "\"name\":\"a\\nb\""),
            good.replace(&Digest::of(b"x").to_string(), "../../x"),
            good[..good.len() - 1].to_owned(),
            String::new(),
            format!("{{\"files\":[{}]}}", "[".repeat(100_000)),
            "x".repeat(ENTRY_BYTES as usize + 1),
        ] {
            assert!(matches!(reads(&bad), Err(RegistryError::BadEntry { .. })), "{:.300}", bad);
        }
    }
}
