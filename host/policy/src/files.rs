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

/// Policies of a hook.
pub(crate) const POLICIES_MAX: usize = 256;

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

/// The policies in the folder of a hook.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// In file order.
    pub(crate) policies: BTreeMap<Place, Files>,
    /// Whether there are more than [`POLICIES_MAX`], which are left out.
    pub(crate) is_cut: bool,
}

/// Lists the policies of a hook; `None`: there is no such folder. Where there are too many, the last in file order are left
/// out, but never one that `serves`.
pub(crate) fn list(dir: &Path, hook: Hook, serves: impl Fn(&Place) -> bool) -> Result<Option<Listing>, PolicyError> {
    let path = dir.join(hook.as_str());
    let failed = |source| PolicyError::Read { path: path.clone(), source };
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        // A link to nowhere says that there ought to be one.
        Err(error) if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() => {
            return Ok(None);
        }
        Err(error) => return Err(failed(error)),
    };
    let (mut kept, mut others, mut is_cut) = (BTreeMap::new(), BTreeMap::new(), false);
    for entry in entries {
        let file = entry.map_err(failed)?.path();
        let Some((stem, "wasm")) = file.file_name().and_then(|name| name.to_str()).and_then(parse) else { continue };
        let place = Place { hook, stem: stem.to_owned() };
        if serves(&place) { &mut kept } else { &mut others }.insert(place, file);
        if kept.len() + others.len() > POLICIES_MAX && others.pop_last().is_some() {
            is_cut = true;
        }
    }
    kept.append(&mut others);
    let policies = kept.into_iter().map(|(place, component)| (place, Files::beside(component))).collect();
    Ok(Some(Listing { policies, is_cut }))
}

impl Files {
    /// Those of a component that was listed.
    fn beside(component: PathBuf) -> Self {
        let sidecar = component.with_extension("toml");
        let is_there = !matches!(fs::symlink_metadata(&sidecar), Err(error) if error.kind() == io::ErrorKind::NotFound);
        Self { sidecar: is_there.then_some(sidecar), component }
    }
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
    pub(crate) fn of(meta: &Metadata) -> Self {
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

impl Stamp {
    /// How long ago the file was last written; zero if that is in the future.
    pub(crate) fn age(&self, now: SystemTime) -> Duration {
        now.duration_since(self.changed.max(self.modified)).unwrap_or_default()
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

/// A policy's files as they were when something was ordered for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenFiles {
    /// As [`PolicyStatus::file`](camshaft_core::policy::PolicyStatus::file).
    component: String,
    /// `None`: they could not be read.
    stamps: Option<Stamps>,
}

impl SeenFiles {
    /// As they are now.
    pub(crate) fn now(component: &str) -> Self {
        let stamps = Stamps::of(&Files::beside(PathBuf::from(component))).ok();
        Self { component: component.to_owned(), stamps }
    }

    /// Whether a policy whose component is this file has others by now.
    pub(crate) fn have_changed(&self, component: &str) -> bool {
        Self::now(component) != *self
    }
}

/// What is in the files of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    /// Where the component was read.
    pub(crate) file: PathBuf,
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
        ContentKey {
            component: self.digest.clone(),
            sidecar: self.sidecar.as_deref().map(digest_of),
            mode: None,
            is_outdated: false,
        }
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
        Ok(Self { file: files.component.clone(), digest: digest_of(&component), component, sidecar, stamps })
    }
}

/// Digests of both files, and the mode that an operator chose instead of the file's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContentKey {
    component: String,
    sidecar: Option<String>,
    pub(crate) mode: Option<Mode>,
    /// What the files name has changed since: the same files are to be loaded again.
    pub(crate) is_outdated: bool,
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

    /// Digest of the component.
    pub(crate) fn component(&self) -> &str {
        &self.component
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
        let list = |hook| list(dir.path(), hook, |_| false);
        assert_eq!(list(Hook::Auth).unwrap(), None);
        fs::create_dir(dir.path().join("validator")).unwrap();
        assert_eq!(list(Hook::Validator).unwrap(), Some(Listing::default()));
        fs::write(dir.path().join("auth"), "a file").unwrap();
        assert!(list(Hook::Auth).is_err());
    }

    #[test]
    fn a_folder_of_more_policies_than_the_bound_is_cut_but_not_by_what_serves() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("sampler");
        fs::create_dir(&folder).unwrap();
        let stem = |number: usize| format!("{number:04}-s");
        let put = |number: usize| fs::write(folder.join(stem(number)).with_extension("wasm"), "").unwrap();
        let stems = |serving: &[usize]| {
            let serves = |place: &Place| serving.iter().any(|number| place.stem == stem(*number));
            let listing = list(dir.path(), Hook::Sampler, serves).unwrap().unwrap();
            (listing.policies.into_keys().map(|place| place.stem).collect::<Vec<_>>(), listing.is_cut)
        };
        (1..=POLICIES_MAX).for_each(put);
        fs::write(folder.join("0001-s.toml"), "").unwrap();
        let listing = list(dir.path(), Hook::Sampler, |_| false).unwrap().unwrap();
        assert_eq!((listing.policies.len(), listing.is_cut), (POLICIES_MAX, false));
        let settings: Vec<_> = listing.policies.into_values().filter_map(|files| files.sidecar).collect();
        assert_eq!(settings, [folder.join("0001-s.toml")]);
        put(POLICIES_MAX + 1);
        let first: Vec<String> = (1..=POLICIES_MAX).map(stem).collect();
        assert_eq!(stems(&[]), (first, true));
        // What comes later with a lower number ends nothing that serves.
        put(0);
        let all: Vec<usize> = (1..=POLICIES_MAX).collect();
        assert_eq!(stems(&all), (all.iter().map(|number| stem(*number)).collect(), true));
        let (found, is_cut) = stems(&[POLICIES_MAX + 1]);
        assert!(is_cut && found.len() == POLICIES_MAX && found[0] == stem(0));
        assert_eq!(found[POLICIES_MAX - 2..], [stem(POLICIES_MAX - 2), stem(POLICIES_MAX + 1)]);
    }
}
