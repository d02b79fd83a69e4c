//! Inspects and clears caches without a server, for `camshaft cache`.
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::directory::{self, Scan, SegmentDirectory};
use super::error::DiskError;
use super::record::{self, Entry};

/// The contents of one layout's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheReport {
    pub path: PathBuf,
    pub data_files: u64,
    pub bytes: u64,
    pub segments: u64,
    /// Number of KV entries in the segments.
    pub tokens: u64,
    /// Descriptions of damaged parts; empty if everything is intact.
    pub damage: Vec<String>,
}

/// Whether a file name is that of a layout's directory.
pub fn is_layout(name: &OsStr) -> bool {
    name.len() == 16 && name.as_encoded_bytes().iter().all(u8::is_ascii_hexdigit)
}

/// The directories of layouts below `dir`. What links point at may be anything.
pub(super) fn layouts(dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
    let failed = |source| DiskError::Io { verb: "list", path: dir.to_owned(), source };
    let mut out = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if is_layout(&entry.file_name()) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            out.push(entry.path());
        }
    }
    out.sort();
    Ok(out)
}

/// Reports on every layout's directory below `dir`. With `states` it also verifies the states, which reads every byte.
///
/// # Errors
/// A directory or file cannot be read. Damage is not an error.
pub fn report(dir: &Path, states: bool) -> Result<Vec<CacheReport>, DiskError> {
    layouts(dir)?.iter().map(|path| report_one(path, states)).collect()
}

fn report_one(path: &Path, states: bool) -> Result<CacheReport, DiskError> {
    let failed = |source| DiskError::Io { verb: "read", path: path.to_owned(), source };
    let numbers = directory::data_files(path).map_err(failed)?;
    let mut report = CacheReport {
        path: path.to_owned(),
        data_files: numbers.len() as u64,
        bytes: 0,
        segments: 0,
        tokens: 0,
        damage: Vec::new(),
    };
    let Some(key) = directory::read_key(&path.join("key")) else {
        if !numbers.is_empty() {
            report.damage.push("the key is missing or damaged: no segment can be used".to_owned());
        }
        return Ok(report);
    };
    for (number, Scan { records, end, bytes }) in directory::scan_all(&key, path)? {
        let file = directory::data_file(path, number);
        report.bytes += bytes;
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if end < bytes {
            let left = bytes - end;
            report.damage.push(format!("{name}: no record can be read at byte {end}; {left} bytes are lost"));
        }
        for (at, header) in records {
            let Entry::Segment(info) = header.entry else { continue };
            let is_intact = || {
                let state = directory::read(&file, at + header.state_at, header.state_len);
                state.is_ok_and(|state| record::is_intact(&key, &state, &header.state_sum))
            };
            if states && !is_intact() {
                report.damage.push(format!("{name}: the state of the segment at byte {at} was changed"));
                continue;
            }
            report.segments += 1;
            report.tokens += (info.tokens.len() as u64).saturating_sub(info.start.into());
        }
    }
    Ok(report)
}

/// Removes all segments below `dir`: the directories with a key of ours. Returns the number of directories removed.
///
/// # Errors
/// A server uses one of the directories, or a file cannot be removed.
pub fn clear(dir: &Path) -> Result<usize, DiskError> {
    let layouts: Vec<PathBuf> = layouts(dir)?.into_iter().filter(|path| directory::has_key(path)).collect();
    // Lock all of them before removing any: if a server uses one, none is removed.
    let held: Vec<SegmentDirectory> =
        layouts.iter().map(|path| SegmentDirectory::open(path)).collect::<Result<_, _>>()?;
    for path in &layouts {
        fs::remove_dir_all(path).map_err(|source| DiskError::Io { verb: "remove", path: path.clone(), source })?;
    }
    Ok(held.len())
}
