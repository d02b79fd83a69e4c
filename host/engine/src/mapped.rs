//! Notices that a mapped file of weights was changed in place.
//!
//! Whoever reads a page of a map that the file no longer has is ended by the system (SIGBUS); no handler can go on safely
//! inside llama.cpp. So the file is looked at now and then. A file that is replaced (a new one is moved to its name) is no
//! danger: the map keeps the old one.
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use crate::regular;

/// A file is compared at 256 places of 4096 bytes each, from its first byte to its last.
const SAMPLES: u64 = 256;
const SAMPLE_BYTES: u64 = 4096;

/// What happened to a mapped file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDamage {
    /// Weights are missing: reading them ends the process.
    Shrunk { was: u64, is: u64 },
    /// Bytes were written, and the weights are others, or cannot be read.
    Written,
    /// It was written to, or touched, and is the same wherever it was compared. Said once for each time.
    Touched,
}

/// A file as it was when it was mapped.
#[derive(Debug)]
pub struct MappedFile {
    file: File,
    bytes: u64,
    samples: blake3::Hash,
    /// When it was last seen to be the same.
    modified: Mutex<SystemTime>,
}

impl MappedFile {
    /// # Errors
    /// The file cannot be read.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::of(regular::open(path)?)
    }

    pub(crate) fn of(file: File) -> io::Result<Self> {
        let data = file.metadata()?;
        let (bytes, modified) = (data.len(), Mutex::new(data.modified()?));
        Ok(Self { bytes, modified, samples: samples(&file, bytes)?, file })
    }

    /// What happened to the file since it was opened, or touched; `None` if nothing did. Waits for the file system.
    pub fn damage(&self) -> Option<FileDamage> {
        let data = self.file.metadata().ok()?;
        if data.len() < self.bytes {
            return Some(FileDamage::Shrunk { was: self.bytes, is: data.len() });
        }
        let mut known = self.modified.lock().unwrap_or_else(PoisonError::into_inner);
        let modified = data.modified().ok().filter(|modified| modified != &*known)?;
        if !samples(&self.file, self.bytes).is_ok_and(|samples| samples == self.samples) {
            return Some(FileDamage::Written);
        }
        *known = modified;
        Some(FileDamage::Touched)
    }
}

/// The digest of some places of a file that has `bytes` bytes: all of a small one.
fn samples(file: &File, bytes: u64) -> io::Result<blake3::Hash> {
    let mut hash = blake3::Hasher::new();
    let mut sample = [0; SAMPLE_BYTES as usize];
    let last = bytes.saturating_sub(SAMPLE_BYTES);
    let step = last.div_ceil(SAMPLES - 1).max(SAMPLE_BYTES);
    let places = (0..SAMPLES).map(|number| number * step).take_while(|&at| at < last);
    for at in places.chain([last]) {
        let sample = &mut sample[..(bytes - at).min(SAMPLE_BYTES) as usize];
        file.read_exact_at(sample, at)?;
        hash.update(sample);
    }
    Ok(hash.finalize())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::Duration;

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
        write(&path, 3, &[9], 1);
        assert_eq!(mapped.damage(), Some(FileDamage::Written));
        File::options().write(true).open(&path).unwrap().set_len(9).unwrap();
        assert_eq!(mapped.damage(), Some(FileDamage::Shrunk { was: 10, is: 9 }));
    }

    /// Writes `bytes`, as if `seconds` from now.
    fn write(path: &Path, at: u64, bytes: &[u8], seconds: u64) {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(bytes, at).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn regression_a_file_that_is_touched_or_written_as_it_was_is_not_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        for length in [0, 1, 4095, 4096, 4097, 9000, 1 << 20, (2 << 20) + 77] {
            let content: Vec<u8> = (0..length).map(|at| (at / 7) as u8).collect();
            fs::write(&path, &content).unwrap();
            let mapped = MappedFile::open(&path).unwrap();
            for seconds in [10, 20] {
                write(&path, 0, &content, seconds);
                assert_eq!(
                    (mapped.damage(), mapped.damage()),
                    (Some(FileDamage::Touched), None),
                    "{length}: said once"
                );
            }
            // What is appended belongs to no weight.
            write(&path, length, b"more", 30);
            assert_eq!(mapped.damage(), Some(FileDamage::Touched), "{length}");
            if length > 0 {
                write(&path, length - 1, &[!content[length as usize - 1]], 40);
                assert_eq!(mapped.damage(), Some(FileDamage::Written), "{length}: its last byte");
            }
        }
        // Another model of the same length differs everywhere.
        let (one, other) = (vec![1; 3 << 20], vec![2; 3 << 20]);
        fs::write(&path, one).unwrap();
        let mapped = MappedFile::open(&path).unwrap();
        write(&path, 0, &other[..2 << 20], 10);
        assert_eq!(mapped.damage(), Some(FileDamage::Written));
    }
}
