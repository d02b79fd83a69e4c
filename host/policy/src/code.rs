//! Compiled code between runs, and between the process that compiles and the one that serves: a file for each component.
//!
//! Code that is loaded runs without further checks, and one bit that the disk changed would end the process. So a file begins
//! with a checksum, which is verified before anything is loaded:
//!
//! | bytes | |
//! |---|---|
//! | 8 | `CAMCODE1`: magic and version of the format |
//! | 32 | SHA-256 of the file's name and the code |
//! | … | code, as wasmtime serializes it |
//!
//! The name says for what the code is: the component's SHA-256, the hook for which it was compiled, and what wasmtime's
//! version, the settings and the CPU make of it.
use std::fs::{self, File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::SystemTime;

use camshaft_core::policy::Hook;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::digest::digest_of;
use crate::error::PolicyError;
use crate::memory::memory_left;
use crate::private_dir::{self, SUFFIX};

const MAGIC: &[u8; 8] = b"CAMCODE1";
const SUM_BYTES: usize = 32;
const HEAD_BYTES: usize = MAGIC.len() + SUM_BYTES;
/// Maximum bytes of a file: code, data, and what tells where code can trap.
pub(crate) const IMAGE_MAX_BYTES: usize = 256 << 20;
const FILE_MAX_BYTES: u64 = (HEAD_BYTES + IMAGE_MAX_BYTES) as u64;
/// Maximum bytes of all files: past it, those go that nobody loaded for the longest time.
const DIR_MAX_BYTES: u64 = 1 << 30;
/// What loading code takes at its peak, in sizes of the file: what is read, and the image.
const LOAD_IMAGES: u64 = 2;

/// A private directory of compiled code, see [`crate::private_dir`].
#[derive(Debug)]
pub(crate) struct CodeDir<'a> {
    path: &'a Path,
    max_bytes: u64,
}

/// The name of a component's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CodeName(String);

impl CodeName {
    pub(crate) fn of(engine: &Engine, hook: Hook, component: &[u8]) -> Self {
        let mut made_by = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut made_by);
        Self(format!("{}-{hook}-{:016x}{SUFFIX}", digest_of(component), made_by.finish()))
    }
}

impl<'a> CodeDir<'a> {
    pub(crate) fn new(path: &'a Path) -> Self {
        Self { path, max_bytes: DIR_MAX_BYTES }
    }

    /// Keeps a component's code, and gives up old code where there is too much.
    ///
    /// # Errors
    /// It has more than [`IMAGE_MAX_BYTES`], or cannot be written.
    pub(crate) fn keep(&self, name: &CodeName, component: &Component) -> Result<(), PolicyError> {
        let code = component.serialize().map_err(|error| PolicyError::Runtime(error.into()))?;
        if code.len() > IMAGE_MAX_BYTES {
            let too_large = format!("compiles to {} bytes, which exceeds the maximum of {IMAGE_MAX_BYTES}", code.len());
            return Err(PolicyError::OverLimits(too_large.into()));
        }
        let not_kept = |source| PolicyError::CodeNotKept { path: self.path.to_owned(), source };
        self.write(&name.0, &code).map_err(not_kept)?;
        self.shrink(&name.0);
        Ok(())
    }

    /// The file appears whole. After a power cut it may not be: its checksum says so.
    fn write(&self, name: &str, code: &[u8]) -> io::Result<()> {
        let partial = private_dir::write_in_room(self.path, |file| {
            file.write_all(MAGIC)?;
            file.write_all(&sum(name, code))?;
            file.write_all(code)
        })?;
        let kept = fs::rename(&partial, self.path.join(name));
        if kept.is_err() {
            let _ = fs::remove_file(&partial);
        }
        kept
    }

    /// Removes what nobody used for the longest time, until the rest fits. Other processes may remove the same files.
    fn shrink(&self, newest: &str) {
        let files = private_dir::by_age(self.path);
        let mut total_bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let newest = self.path.join(newest);
        for file in files.into_iter().filter(|file| file.path != newest) {
            if total_bytes <= self.max_bytes {
                break;
            }
            if fs::remove_file(file.path).is_ok() {
                total_bytes -= file.bytes;
            }
        }
    }

    /// Removes a component's code. What cannot be removed stays until there is too much.
    pub(crate) fn forget(&self, name: &CodeName) {
        let _ = fs::remove_file(self.path.join(&name.0));
    }

    /// Loads a component's code. `None`: there is none, or it is damaged.
    ///
    /// # Errors
    /// The control group does not leave the memory, or the file cannot be read.
    pub(crate) fn load(&self, engine: &Engine, name: &CodeName) -> Result<Option<Component>, PolicyError> {
        let path = self.path.join(&name.0);
        let unreadable = |source| PolicyError::Cache { path: path.clone(), source };
        let meta = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            meta => meta.map_err(unreadable)?,
        };
        let component = if !meta.is_file() || meta.size() > FILE_MAX_BYTES {
            Err("it is no file of compiled code".to_owned())
        } else {
            check_room(meta.size(), memory_left())?;
            let file = match open(&path) {
                // Another process has just made room.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                file => file.map_err(unreadable)?,
            };
            match intact(&file, name).map_err(unreadable)? {
                // What is in use is not old. If it cannot be noted, it is compiled again some day.
                Some(bytes) => loaded(engine, &bytes).inspect(|_| drop(file.set_modified(SystemTime::now()))),
                None => Err("its checksum is wrong".to_owned()),
            }
        };
        match component {
            Ok(component) => Ok(Some(component)),
            Err(why) => {
                tracing::warn!(file = %path.display(), why, "compiled code is damaged: it is compiled again");
                // What cannot be removed may still be replaced.
                let _ = if meta.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
                Ok(None)
            }
        }
    }
}

/// The code in the bytes of an intact file, or why wasmtime does not take it: it is for another version or CPU.
#[expect(unsafe_code)]
fn loaded(engine: &Engine, bytes: &[u8]) -> Result<Component, String> {
    // SAFETY: Nobody but this user can write to the directory, and the checksum says that these are the bytes that
    // `CodeDir::keep` serialized.
    let component = unsafe { Component::deserialize(engine, &bytes[HEAD_BYTES..]) };
    component.map_err(|error| format!("{error:#}"))
}

/// Opens what is no link, and waits for no writer of a pipe. What this user may not read is made readable: it is its own.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = || OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
            open()
        }
        opened => opened,
    }
}

/// The whole file, if it is as it was written.
fn intact(file: &File, name: &CodeName) -> io::Result<Option<Vec<u8>>> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(None);
    }
    let mut bytes = Vec::with_capacity(meta.len().min(FILE_MAX_BYTES) as usize);
    file.take(FILE_MAX_BYTES + 1).read_to_end(&mut bytes)?;
    let is_whole = (HEAD_BYTES..=FILE_MAX_BYTES as usize).contains(&bytes.len())
        && bytes.starts_with(MAGIC)
        && bytes[MAGIC.len()..HEAD_BYTES] == sum(&name.0, &bytes[HEAD_BYTES..]);
    Ok(is_whole.then_some(bytes))
}

/// The checksum of the code that lies under a name.
fn sum(name: &str, code: &[u8]) -> [u8; SUM_BYTES] {
    Sha256::new().chain_update(name).chain_update([0]).chain_update(code).finalize().into()
}

/// Whether code can be loaded in the memory that the control group leaves.
fn check_room(image_bytes: u64, left: Option<u64>) -> Result<(), PolicyError> {
    let needs_bytes = image_bytes.saturating_mul(LOAD_IMAGES);
    match left.filter(|left_bytes| *left_bytes < needs_bytes) {
        Some(left_bytes) => Err(PolicyError::LoadMemory { needs_bytes, left_bytes }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::addresses::Addresses;
    use crate::engine;

    /// The smallest component.
    const EMPTY: &[u8] = b"\0asm\x0d\0\x01\0";

    struct Rig {
        dir: tempfile::TempDir,
        engine: Engine,
        name: CodeName,
        component: Component,
    }

    impl Rig {
        fn new() -> Self {
            let engine = engine::start(1, Addresses::Plenty).unwrap();
            let component = Component::from_binary(&engine, EMPTY).unwrap();
            let name = CodeName::of(&engine, Hook::Auth, EMPTY);
            Self { dir: tempfile::tempdir().unwrap(), engine, name, component }
        }

        fn code(&self) -> CodeDir<'_> {
            CodeDir::new(self.dir.path())
        }

        fn file(&self) -> PathBuf {
            self.dir.path().join(&self.name.0)
        }

        /// Puts something in the place of the component's file, and says whether it is loaded.
        fn loads(&self, make: impl FnOnce(&Path)) -> bool {
            let _ = fs::remove_file(self.file());
            assert!(!self.file().exists());
            make(&self.file());
            let loaded = self.code().load(&self.engine, &self.name).unwrap().is_some();
            assert_eq!(self.file().exists(), loaded, "what is damaged is removed");
            loaded
        }
    }

    #[test]
    fn regression_code_with_one_bit_changed_is_not_loaded() {
        let rig = Rig::new();
        rig.code().keep(&rig.name, &rig.component).unwrap();
        let good = fs::read(rig.file()).unwrap();
        assert!(rig.loads(|path| fs::write(path, &good).unwrap()));
        // Each byte of the head, and some of the code.
        let positions =
            (0..HEAD_BYTES + 8).chain((HEAD_BYTES + 8..good.len()).step_by(good.len() / 64)).chain([good.len() - 1]);
        for position in positions {
            let mut bad = good.clone();
            bad[position] ^= 1 << (position % 8);
            assert!(!rig.loads(|path| fs::write(path, &bad).unwrap()), "byte {position}");
        }
        for cut in [0, 1, MAGIC.len(), HEAD_BYTES - 1, HEAD_BYTES, good.len() - 1] {
            assert!(!rig.loads(|path| fs::write(path, &good[..cut]).unwrap()), "{cut} bytes");
        }
        let longer = [&good[..], b"\0"].concat();
        assert!(!rig.loads(|path| fs::write(path, longer).unwrap()));
        assert!(rig.loads(|path| fs::write(path, &good).unwrap()));
    }

    #[test]
    fn code_of_one_component_is_not_that_of_another() {
        let rig = Rig::new();
        let other = CodeName::of(&rig.engine, Hook::Validator, EMPTY);
        rig.code().keep(&other, &rig.component).unwrap();
        assert!(!rig.loads(|path| fs::rename(rig.dir.path().join(&other.0), path).unwrap()));
    }

    #[test]
    fn code_that_wasmtime_does_not_take_is_not_loaded() {
        let rig = Rig::new();
        let code = b"of another version";
        let file = [&MAGIC[..], &sum(&rig.name.0, code), code].concat();
        assert!(!rig.loads(|path| fs::write(path, file).unwrap()));
    }

    #[test]
    fn neither_a_pipe_nor_a_huge_file_is_read() {
        let rig = Rig::new();
        assert!(!rig.loads(|path| mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap()));
        let huge = |bytes: usize| move |path: &Path| File::create(path).unwrap().set_len(bytes as u64).unwrap();
        assert!(!rig.loads(huge(HEAD_BYTES + IMAGE_MAX_BYTES + 1)));
        assert!(!rig.loads(|path| fs::create_dir_all(path.join("folder")).unwrap()));
        assert!(!rig.loads(|_| {}), "there is none");
    }

    #[test]
    fn files_that_nobody_loaded_for_the_longest_time_go() {
        let rig = Rig::new();
        let [auth, validator, scheduler, sampler, ..] = Hook::ALL;
        let names = [auth, validator, scheduler, sampler].map(|hook| CodeName::of(&rig.engine, hook, EMPTY));
        rig.code().keep(&names[0], &rig.component).unwrap();
        let each = fs::metadata(rig.dir.path().join(&names[0].0)).unwrap().len();
        let code = CodeDir { max_bytes: 2 * each, ..rig.code() };
        let left = || names.iter().map(|name| rig.dir.path().join(&name.0).exists()).collect::<Vec<_>>();
        code.keep(&names[1], &rig.component).unwrap();
        assert_eq!(left(), [true, true, false, false], "at the bound");
        for (age, name) in [(30, &names[0]), (60, &names[1])] {
            let file = File::options().write(true).open(rig.dir.path().join(&name.0)).unwrap();
            file.set_modified(SystemTime::now() - std::time::Duration::from_secs(age)).unwrap();
        }
        assert!(code.load(&rig.engine, &names[1]).unwrap().is_some());
        let smaller = CodeDir { max_bytes: 2 * each + each - 1, ..rig.code() };
        smaller.keep(&names[2], &rig.component).unwrap();
        assert_eq!(left(), [false, true, true, false], "one byte past it; what was loaded stays");
        CodeDir { max_bytes: 0, ..rig.code() }.keep(&names[3], &rig.component).unwrap();
        assert_eq!(left(), [false, false, false, true], "what was just compiled stays");
    }

    #[test]
    fn code_is_loaded_only_where_the_control_group_leaves_room_for_it() {
        for (left, fits) in [(None, true), (Some(20), true), (Some(19), false), (Some(0), false)] {
            assert_eq!(check_room(10, left).is_ok(), fits, "{left:?}");
        }
        let why = check_room(10, Some(19)).unwrap_err();
        assert!(why.is_transient() && why.sentence().contains("20 bytes") && why.sentence().contains("19"), "{why}");
    }
}
