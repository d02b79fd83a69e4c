//! What is in the cache.
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::digest::Digest;
use crate::error::RegistryError;
use crate::lock::Kind;
use crate::room;
use crate::store::Store;

/// Everything that the cache holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listing {
    pub directory: PathBuf,
    /// Bytes of all files, each counted once, and of what pulls have so far.
    pub bytes: u64,
    pub models: Vec<Listed>,
    /// Pulls that have not ended well so far.
    pub partials: Vec<ListedPartial>,
    /// What could not be read, and why.
    pub damaged: Vec<String>,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    pub name: String,
    pub source: String,
    pub revision: Option<String>,
    /// Of the model, as `sha256` in the configuration has it.
    pub sha256: Digest,
    pub bytes: u64,
    pub files: Vec<ListedFile>,
    /// What is loaded.
    pub path: PathBuf,
    pub in_use: bool,
    /// Seconds since the Unix epoch.
    pub pulled: u64,
    pub last_used: u64,
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedFile {
    pub name: String,
    pub sha256: Digest,
    pub bytes: u64,
}

/// A pull that was torn, or runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ListedPartial {
    pub directory: PathBuf,
    pub bytes: u64,
    pub total: u64,
    pub running: bool,
}

/// # Errors
/// A directory cannot be read.
pub(crate) fn list(store: &Store) -> Result<Listing, RegistryError> {
    let tables = store.tables(Kind::Shared)?;
    let entries = store.entries(&tables)?;
    let models = entries.known.iter().map(|entry| {
        let folder = store.snapshot(&entry.snapshot());
        let file = |file: &crate::entry::EntryFile| ListedFile {
            name: file.name.to_string(),
            sha256: file.sha256,
            bytes: file.bytes,
        };
        Listed {
            name: entry.name.clone(),
            source: entry.source.clone(),
            revision: entry.revision.clone(),
            sha256: entry.digest(),
            bytes: entry.bytes(),
            files: entry.files.iter().map(file).collect(),
            path: entry.files.first().map_or(folder.clone(), |first| folder.join(first.name.as_str())),
            in_use: store.is_in_use(&tables, entry),
            pulled: entry.pulled,
            last_used: seconds(store.used(entry)).max(entry.pulled),
        }
    });
    let models = models.collect();
    let partials = room::partials(store)?;
    let bytes = room::blobs(store)?.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    Ok(Listing {
        directory: store.dir().to_owned(),
        bytes: partials.iter().map(|partial| partial.bytes).fold(bytes, u64::saturating_add),
        models,
        partials: partials
            .into_iter()
            .map(|partial| ListedPartial {
                directory: partial.dir,
                bytes: partial.bytes,
                total: partial.total,
                running: partial.is_pulled,
            })
            .collect(),
        damaged: entries.bad.into_iter().map(|(path, why)| format!("{}: {why}", path.display())).collect(),
    })
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
