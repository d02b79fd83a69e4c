//! Notices that a mapped file of weights was changed in place.
//!
//! Whoever reads a page of a map that the file no longer has is ended by the system (SIGBUS); no handler can go on safely
//! inside llama.cpp. So the file is looked at now and then. A file that is replaced (a new one is moved to its name) is no
//! danger: the map keeps the old one.
use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

/// What happened to a mapped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDamage {
    /// Weights are missing: reading them ends the process.
    Shrunk { was: u64, is: u64 },
    /// Bytes were written: the weights may be others.
    Written,
}

/// A file as it was when it was mapped.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    bytes: u64,
    modified: SystemTime,
}

impl MappedFile {
    /// # Errors
    /// The file cannot be read.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        let data = file.metadata()?;
        Ok(Self { bytes: data.len(), modified: data.modified()?, file })
    }

    /// What happened to the file since it was opened; `None` if nothing did.
    pub fn damage(&self) -> Option<FileDamage> {
        let data = self.file.metadata().ok()?;
        if data.len() < self.bytes {
            return Some(FileDamage::Shrunk { was: self.bytes, is: data.len() });
        }
        data.modified().is_ok_and(|modified| modified != self.modified).then_some(FileDamage::Written)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn regression_a_file_that_changes_in_place_is_noticed_and_one_that_is_replaced_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        fs::write(&path, [1; 100]).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        assert_eq!(mapped.damage(), None);
        fs::write(dir.path().join("new"), [2; 10]).unwrap();
        fs::rename(dir.path().join("new"), &path).unwrap();
        assert_eq!(mapped.damage(), None, "the map keeps the old file");
        let mapped = MappedFile::open(&path).unwrap();
        let later = SystemTime::now() + std::time::Duration::from_secs(9);
        File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
        assert_eq!(mapped.damage(), Some(FileDamage::Written));
        File::options().write(true).open(&path).unwrap().set_len(9).unwrap();
        assert_eq!(mapped.damage(), Some(FileDamage::Shrunk { was: 10, is: 9 }));
    }
}
