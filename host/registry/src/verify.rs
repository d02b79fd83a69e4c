//! Reads models again and compares their digests.
use std::fs::{self, OpenOptions};
use std::io;
use std::time::Instant;

use crate::digest::Hasher;
use crate::entry::{Entry, EntryFile};
use crate::error::RegistryError;
use crate::lock::{Kind, open_regular};
use crate::progress::{Event, Meter, Moved, Progress};
use crate::store::Store;

/// How the name of content ends that is not what its name says.
const DAMAGED: &str = "damaged";

/// What was found of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    pub name: String,
    pub files: usize,
    pub bytes: u64,
    /// What is wrong, a line for each file. Empty: nothing.
    pub damage: Vec<String>,
}

/// Verifies models by name; none named: all. What is damaged is put aside, so that the next pull downloads it anew.
///
/// # Errors
/// A name is unknown, a directory cannot be read, or somebody cancelled.
pub(crate) fn verify(store: &Store, names: &[String], progress: &dyn Progress) -> Result<Vec<Verified>, RegistryError> {
    let (entries, bad) = {
        let tables = store.tables(Kind::Shared)?;
        let unknown = |name: &String| RegistryError::Unknown { name: name.clone() };
        match names {
            [] => {
                let entries = store.entries(&tables)?;
                (entries.known, entries.bad)
            }
            names => {
                let find = |name: &String| store.find(&tables, name)?.ok_or_else(|| unknown(name));
                (names.iter().map(find).collect::<Result<Vec<_>, _>>()?, Vec::new())
            }
        }
    };
    let mut verified = Vec::new();
    for entry in &entries {
        // Nobody evicts it meanwhile. Where some of it is missing there is nothing to hold.
        let _held = store.hold(&store.tables(Kind::Shared)?, entry)?;
        let mut damage = Vec::new();
        for (file, part) in entry.files.iter().zip(1..) {
            if let Some(why) = wrong(store, entry, (file, part), progress)? {
                damage.push(format!("{}: {why}", file.name));
            }
        }
        verified.push(Verified { name: entry.name.clone(), files: entry.files.len(), bytes: entry.bytes(), damage });
    }
    verified.extend(bad.into_iter().map(|(path, why)| Verified {
        name: path.display().to_string(),
        files: 0,
        bytes: 0,
        damage: vec![why],
    }));
    Ok(verified)
}

/// What is wrong with a file.
fn wrong(
    store: &Store,
    entry: &Entry,
    (file, part): (&EntryFile, u32),
    progress: &dyn Progress,
) -> Result<Option<String>, RegistryError> {
    let path = store.blob(&file.sha256);
    let failed = |error| RegistryError::io("read", &path, error);
    let mut blob = match open_regular(&path, OpenOptions::new().read(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some("is missing".to_owned())),
        other => other.map_err(failed)?,
    };
    let length = blob.metadata().map_err(failed)?.len();
    if length != file.bytes {
        return Ok(Some(put_aside(store, file, format!("has {length} bytes, expected {}", file.bytes))));
    }
    let (mut hasher, mut meter, mut bytes) = (Hasher::default(), Meter::new(Instant::now(), 0), 0);
    let read = hasher.read_all(&mut blob, |n| {
        bytes += n;
        if let Some(rate) = meter.moved(Instant::now(), bytes) {
            let (parts, total) = (entry.files.len() as u32, file.bytes);
            progress.tell(&Event::Moved(Moved { file: file.name.as_str(), part, parts, bytes, total, rate }));
        }
        if progress.is_cancelled() { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
    });
    if let Err(error) = read {
        return Err(if progress.is_cancelled() { RegistryError::Cancelled } else { failed(error) });
    }
    let got = hasher.finish();
    let is_good = got == file.sha256;
    Ok((!is_good).then(|| put_aside(store, file, format!("has sha256 {got}, expected {}", file.sha256))))
}

/// Nobody shall take it for what its name says. Whoever has it open keeps it.
fn put_aside(store: &Store, file: &EntryFile, why: String) -> String {
    let path = store.blob(&file.sha256);
    let moved =
        store.tables(Kind::Exclusive).is_ok_and(|_tables| fs::rename(&path, path.with_extension(DAMAGED)).is_ok());
    if moved { format!("{why}; it is put aside, pull the model again") } else { why }
}
