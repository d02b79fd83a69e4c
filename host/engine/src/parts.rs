//! The files of a model, one or the parts of a split one, from before they are read until they are loaded.
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Read, Seek};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::EngineLoadError;
use crate::gguf::{self, Header};
use crate::regular;

/// The files of a model, by the name of its first: `name-00001-of-00003.gguf` has two more, as llama.cpp names them. Any
/// other file is alone.
pub fn parts_of(path: &Path) -> Vec<PathBuf> {
    named_parts(path).unwrap_or_else(|| vec![path.to_owned()])
}

fn named_parts(path: &Path) -> Option<Vec<PathBuf>> {
    let name = path.file_name()?.as_bytes().strip_suffix(b".gguf")?;
    let (name, count) = name.split_at_checked(name.len().checked_sub(5)?)?;
    let name = name.strip_suffix(b"-00001-of-")?;
    let count = std::str::from_utf8(count).ok().filter(|count| count.bytes().all(|digit| digit.is_ascii_digit()))?;
    let count: u16 = count.parse().ok().filter(|count| *count > 0)?;
    let part = |number| {
        let mut part = name.to_owned();
        part.extend(format!("-{number:05}-of-{count:05}.gguf").bytes());
        path.with_file_name(OsString::from_vec(part))
    };
    Some((1..=count).map(part).collect())
}

/// Open files of a model, as they were when they were opened.
pub(crate) struct ModelFiles {
    /// What errors call the model.
    shown: PathBuf,
    files: Vec<OpenFile>,
}

struct OpenFile {
    path: PathBuf,
    file: File,
    before: Stamp,
}

/// Differs if the name leads to another file, or the file was written to. Moving a file or giving it another name changes
/// its `changed`, so that a file that was away for a while differs, too.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl ModelFiles {
    /// Opens all files and checks their headers. Returns the header of the first.
    ///
    /// # Errors
    /// One is missing, not a regular file, or bad, or the name of the first does not say how many there are.
    pub(crate) fn open(path: &Path, shown: &Path) -> Result<(Self, Header), EngineLoadError> {
        let mut files = Self { shown: shown.to_owned(), files: Vec::new() };
        let mut header = files.add(path)?;
        // The header is what llama.cpp goes by.
        let count = usize::from(header.split_count).max(1);
        if count > 1 {
            let parts = parts_of(path);
            if parts.len() != count {
                let why = format!(
                    "it is one of {count} parts, and its name does not end in -00001-of-{count:05}.gguf as the first's does"
                );
                return Err(EngineLoadError::BadFile { path: files.shown, why });
            }
            for part in &parts[1..] {
                header.tensors.extend(files.add(part)?.tensors);
            }
        }
        Ok((files, header))
    }

    fn add(&mut self, path: &Path) -> Result<Header, EngineLoadError> {
        let file = OpenFile::open(path);
        let mut file = file.map_err(|error| self.unreadable(path, error))?;
        let header = gguf::preflight(&mut file.file).map_err(|error| match error {
            gguf::Refused::Io(source) => self.unreadable(path, source),
            gguf::Refused::Bad(why) => {
                EngineLoadError::BadFile { path: self.shown.clone(), why: self.of_part(path, &why) }
            }
        })?;
        self.files.push(file);
        Ok(header)
    }

    /// The error for the model, which says which part it is about.
    fn unreadable(&self, path: &Path, error: io::Error) -> EngineLoadError {
        let source = match self.files.is_empty() {
            true => error,
            false => io::Error::new(error.kind(), self.of_part(path, &error.to_string())),
        };
        EngineLoadError::Unreadable { path: self.shown.clone(), source }
    }

    fn of_part(&self, path: &Path, why: &str) -> String {
        match self.files.first() {
            Some(first) if first.path != path => format!("{}: {why}", path.display()),
            _ => why.to_owned(),
        }
    }

    /// SHA-256 in hexadecimal: of the file, or, if there are several, of a text with a line for the digest of each.
    pub(crate) fn digest(&mut self) -> Result<String, EngineLoadError> {
        let mut digests = Vec::new();
        for at in 0..self.files.len() {
            let digest = self.files[at].digest();
            digests.push(digest.map_err(|error| self.unreadable(&self.files[at].path, error))?);
        }
        if let [digest] = &digests[..] {
            return Ok(digest.clone());
        }
        let mut hash = Sha256::new();
        digests.iter().for_each(|digest| hash.update(format!("{digest}\n")));
        Ok(hex(hash))
    }

    /// Of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|of| of.before.bytes).sum()
    }

    /// The first file, to read from.
    pub(crate) fn first(&mut self) -> Option<&mut File> {
        self.files.first_mut().map(|of| &mut of.file)
    }

    /// Checks that llama.cpp, which opens the files by their names, found what was checked here.
    ///
    /// # Errors
    /// One was replaced or written to.
    pub(crate) fn check_unchanged(&self) -> Result<(), EngineLoadError> {
        match self.files.iter().find(|of| !of.is_unchanged()) {
            None => Ok(()),
            Some(_) => Err(EngineLoadError::Replaced { path: self.shown.clone() }),
        }
    }
}

impl OpenFile {
    fn open(path: &Path) -> io::Result<Self> {
        let file = regular::open(path)?;
        let before = Stamp::of(&file.metadata()?);
        Ok(Self { path: path.to_owned(), file, before })
    }

    fn digest(&mut self) -> io::Result<String> {
        self.file.rewind()?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            let n = self.file.read(&mut buffer)?;
            if n == 0 {
                return Ok(hex(hash));
            }
            hash.update(&buffer[..n]);
        }
    }

    fn is_unchanged(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|data| Stamp::of(&data) == self.before)
    }
}

impl Stamp {
    fn of(data: &Metadata) -> Self {
        Self {
            file: (data.dev(), data.ino()),
            bytes: data.len(),
            modified: (data.mtime(), data.mtime_nsec()),
            changed: (data.ctime(), data.ctime_nsec()),
        }
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
