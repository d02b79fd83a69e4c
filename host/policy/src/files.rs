//! The policy directory: which files count, and reading one whole while others may be writing it.
use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use camshaft_core::policy::{Hook, Mode};

use crate::digest::digest_of;
use crate::error::PolicyError;
use crate::whole_file::{FileError, read_whole};

/// Bytes of a component, and of the settings file beside it.
pub(crate) const COMPONENT_MAX_BYTES: u64 = 64 << 20;
pub(crate) const SIDECAR_MAX_BYTES: u64 = 256 << 10;

/// A policy by its place: order is chain order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) hook: Hook,
    /// `NN-name`.
    pub(crate) stem: String,
}

impl Place {
    /// What is between `NN-` and the extension.
    pub(crate) fn name(&self) -> &str {
        self.stem.split_once('-').map_or(&self.stem, |(_, name)| name)
    }

    /// The file name of its settings.
    pub(crate) fn sidecar_name(&self) -> String {
        format!("{}.toml", self.stem)
    }
}

/// The files of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Files {
    pub(crate) component: PathBuf,
    pub(crate) sidecar: Option<PathBuf>,
}

/// `NN-name.wasm` or `NN-name.toml`: stem and extension. Anything else (editors' temporary files, the `..data` of a
/// mounted volume) is no policy.
pub(crate) fn parse(file_name: &str) -> Option<(&str, &str)> {
    let (stem, extension) = file_name.rsplit_once('.')?;
    let (number, name) = stem.split_once('-')?;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let ok = number.len() >= 2
        && number.chars().all(|c| c.is_ascii_digit())
        && !name.is_empty()
        && name.chars().all(plain)
        && matches!(extension, "wasm" | "toml");
    ok.then_some((stem, extension))
}

/// The policies in the folder of a hook, in file order.
pub(crate) type Listing = BTreeMap<Place, Files>;

/// Lists the policies of a hook; `None`: there is no such folder.
pub(crate) fn list(dir: &Path, hook: Hook) -> Result<Option<Listing>, PolicyError> {
    let path = dir.join(hook.as_str());
    let failed = |source| PolicyError::Read { path: path.clone(), source };
    let mut components = BTreeMap::new();
    let mut sidecars = BTreeMap::new();
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let file = entry.map_err(failed)?.path();
        let Some((stem, extension)) = file.file_name().and_then(|name| name.to_str()).and_then(parse) else { continue };
        let of = if extension == "wasm" { &mut components } else { &mut sidecars };
        of.insert(stem.to_owned(), file.clone());
    }
    let policy = |(stem, component)| {
        let sidecar = sidecars.remove(&stem);
        (Place { hook, stem }, Files { component, sidecar })
    };
    Ok(Some(components.into_iter().map(policy).collect()))
}

/// Tells whether a file is the one that was seen before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamp {
    device: u64,
    inode: u64,
    size_bytes: u64,
    modified: SystemTime,
    /// Moves with every write, and unlike `modified` cannot be set back.
    changed: SystemTime,
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        let seconds = u64::try_from(meta.ctime()).unwrap_or(0);
        let nanoseconds = u32::try_from(meta.ctime_nsec()).unwrap_or(0);
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size_bytes: meta.len(),
            modified: meta.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            changed: SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds),
        }
    }
}

/// The stamps of both files of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stamps {
    component: Stamp,
    sidecar: Option<Stamp>,
}

impl Stamps {
    /// Reads the stamps of both files, through symbolic links.
    pub(crate) fn of(files: &Files) -> Result<Self, PolicyError> {
        let stamp = |path: &Path| {
            fs::metadata(path).map(|m| Stamp::of(&m)).map_err(|source| PolicyError::Read { path: path.into(), source })
        };
        Ok(Self { component: stamp(&files.component)?, sidecar: files.sidecar.as_deref().map(stamp).transpose()? })
    }

    /// When either file was last written.
    pub(crate) fn changed(&self) -> SystemTime {
        let stamps = std::iter::once(&self.component).chain(&self.sidecar);
        stamps.map(|stamp| stamp.changed.max(stamp.modified)).max().unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// How long ago that was; zero if it is in the future.
    pub(crate) fn age(&self, now: SystemTime) -> Duration {
        now.duration_since(self.changed()).unwrap_or_default()
    }
}

/// What is in the files of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    pub(crate) component: Vec<u8>,
    /// Digest of the component.
    pub(crate) digest: String,
    pub(crate) sidecar: Option<Vec<u8>>,
    /// What both files had when they were read.
    pub(crate) stamps: Stamps,
}

impl Content {
    /// What two contents are told apart by.
    pub(crate) fn key(&self) -> ContentKey {
        ContentKey { component: self.digest.clone(), sidecar: self.sidecar.as_deref().map(digest_of), mode: None }
    }

    /// Reads both files whole.
    ///
    /// # Errors
    /// `Unsettled` if one changed meanwhile or is no longer what `stamps` say.
    pub(crate) fn read(files: &Files, stamps: Stamps) -> Result<Self, PolicyError> {
        let component = read(&files.component, "a component", COMPONENT_MAX_BYTES)?;
        let sidecar = files.sidecar.as_deref().map(|path| read(path, "a settings file", SIDECAR_MAX_BYTES));
        let sidecar = sidecar.transpose()?;
        if Stamps::of(files)? != stamps {
            return Err(PolicyError::Unsettled { path: files.component.clone() });
        }
        Ok(Self { digest: digest_of(&component), component, sidecar, stamps })
    }
}

/// Digests of both files, and the mode that an operator chose instead of the file's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContentKey {
    component: String,
    sidecar: Option<String>,
    pub(crate) mode: Option<Mode>,
}

impl ContentKey {
    pub(crate) fn with_mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// These settings and this mode, with the component of `other`.
    pub(crate) fn with_component_of(&self, other: &ContentKey) -> Self {
        Self { component: other.component.clone(), ..self.clone() }
    }

    /// Whether there is a settings file.
    pub(crate) fn has_settings(&self) -> bool {
        self.sidecar.is_some()
    }

    pub(crate) fn same_component(&self, other: &ContentKey) -> bool {
        self.component == other.component
    }

    /// Whether the files are the same, whatever the mode.
    pub(crate) fn same_files(&self, other: &ContentKey) -> bool {
        self.component == other.component && self.sidecar == other.sidecar
    }
}

/// Reads a file of a policy whole.
pub(crate) fn read(path: &Path, what: &'static str, limit_bytes: u64) -> Result<Vec<u8>, PolicyError> {
    read_whole(path, limit_bytes).map_err(|error| match error {
        FileError::Unreadable { path, source } => PolicyError::Read { path, source },
        FileError::NotRegular { path } => {
            PolicyError::Read { path, source: io::Error::new(io::ErrorKind::InvalidInput, "not a regular file") }
        }
        FileError::TooLarge { size_bytes, limit_bytes, .. } => PolicyError::TooLarge { what, size_bytes, limit_bytes },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_only_numbered_components_and_sidecars() {
        assert_eq!(parse("10-api-keys.wasm"), Some(("10-api-keys", "wasm")));
        assert_eq!(parse("007-x2.toml"), Some(("007-x2", "toml")));
        for name in [
            "1-x.wasm",
            "x.wasm",
            "10-.wasm",
            "10-X.wasm",
            "10-x.wasm.swp",
            ".10-x.wasm",
            "10-x.wasm~",
            "10-x.wat",
            "10_x.wasm",
            "..data",
            "10-x.wasm.tmp",
            "#10-x.wasm#",
            "10-x y.wasm",
            "10-é.wasm",
        ] {
            assert_eq!(parse(name), None, "{name}");
        }
    }

    #[test]
    fn reads_at_the_bound_and_refuses_one_past_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, [7; 10]).unwrap();
        assert_eq!(read(&path, "x", 10).unwrap().len(), 10);
        assert_eq!(read(&path, "x", 9).unwrap_err().to_string(), "x of 10 bytes is larger than the 9 bytes allowed");
        assert!(read(dir.path(), "x", 9).is_err());
    }

    #[test]
    fn a_missing_folder_is_told_apart_from_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(list(dir.path(), Hook::Auth).unwrap(), None);
        fs::create_dir(dir.path().join("validator")).unwrap();
        assert_eq!(list(dir.path(), Hook::Validator).unwrap(), Some(Listing::new()));
        fs::write(dir.path().join("auth"), "a file").unwrap();
        assert!(list(dir.path(), Hook::Auth).is_err());
    }
}
