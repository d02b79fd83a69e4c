//! Reads a file of PyTorch: an archive with a pickle, which describes tensors, and a file for each storage of their numbers.
use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::ops::Range;

use burn_core::tensor::DType;
use zip::{CompressionMethod, ZipArchive};

use crate::error::shown;
use crate::pickle;
use crate::state_dictionary::{self, Place};

/// Bytes of the pickle that names the tensors.
const PICKLE_BYTES: usize = 16 << 20;
/// Files in the archive.
const ENTRIES: usize = 65_536;
/// The pickle, in the archive's own folder.
const PICKLE: &str = "data.pkl";

/// A tensor of the file.
#[derive(Debug, PartialEq)]
pub(crate) struct Part {
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    /// The bytes of the file that are its numbers. `None`: they are not in order.
    pub(crate) bytes: Option<Range<usize>>,
}

/// Finds the tensors of a file by their names. Every byte of it that they refer to is there, and is what was saved.
///
/// # Errors
/// It is no archive as PyTorch has written them since version 1.6, is damaged, or has what no state dictionary needs.
pub(crate) fn read(bytes: &[u8]) -> Result<BTreeMap<String, Part>, String> {
    let files = files(bytes)?;
    let is_pickle =
        |name: &str| name.strip_suffix(PICKLE).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'));
    let mut pickles = files.iter().filter(|(name, _)| is_pickle(name));
    let (Some((name, range)), None) = (pickles.next(), pickles.next()) else {
        return Err(format!(
            "must have one file {PICKLE}, has {}",
            files.keys().filter(|name| is_pickle(name)).count()
        ));
    };
    let folder = name.strip_suffix(PICKLE).unwrap_or_default();
    if range.len() > PICKLE_BYTES {
        return Err(format!("its pickle has {} bytes, at most {PICKLE_BYTES}", range.len()));
    }
    let order = files.get(&format!("{folder}byteorder")).and_then(|range| bytes.get(range.clone()));
    if order.is_some_and(|order| order.trim_ascii() != b"little") {
        return Err("its numbers have their highest bytes first, which is not supported".to_owned());
    }
    let text = bytes.get(range.clone()).unwrap_or_default();
    let (pickle, value) = pickle::read(text).map_err(|why| format!("its pickle {why}"))?;
    let described = state_dictionary::tensors(&pickle, value).map_err(|why| format!("its pickle {why}"))?;
    let part = |(name, tensor): (String, state_dictionary::Described<'_>)| {
        let bad = |why: String| format!("its tensor {}: {why}", shown(&name));
        let storage = files.get(&format!("{folder}data/{}", tensor.storage));
        let storage = storage.ok_or_else(|| bad(format!("its storage {} is not in the file", tensor.storage)))?;
        let bytes = match tensor.place(storage.len() as u64).map_err(bad)? {
            Place::Bytes(place) => Some(storage.start + place.start..storage.start + place.end),
            Place::Scattered => None,
        };
        Ok((name, Part { dtype: tensor.numbers.dtype, shape: tensor.shape, bytes }))
    };
    described.into_iter().map(part).collect()
}

/// Where each file of the archive is. All are read to their ends, so that what was altered is noticed.
fn files(bytes: &[u8]) -> Result<HashMap<String, Range<usize>>, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes))
        .map_err(|error| format!("is no archive as PyTorch has written them since version 1.6: {error}"))?;
    if archive.len() > ENTRIES {
        return Err(format!("has {} files, at most {ENTRIES}", archive.len()));
    }
    let mut files = HashMap::with_capacity(archive.len());
    let mut all = 0u64;
    for at in 0..archive.len() {
        let unreadable = |error: &dyn std::error::Error| format!("its file number {at} cannot be read: {error}");
        let file = archive.by_index_raw(at).map_err(|error| unreadable(&error))?;
        // PyTorch compresses nothing: a few bytes never become gigabytes.
        if file.compression() != CompressionMethod::Stored || file.size() != file.compressed_size() {
            return Err(format!("its file number {at} is compressed, which PyTorch never does"));
        }
        all = all.saturating_add(file.size());
        if all > bytes.len() as u64 {
            return Err(format!("its files have more bytes than its {}", bytes.len()));
        }
        drop(file);
        let mut file = archive.by_index(at).map_err(|error| unreadable(&error))?;
        let read = std::io::copy(&mut file, &mut std::io::sink()).map_err(|error| unreadable(&error))?;
        let start = file.data_start().and_then(|start| usize::try_from(start).ok());
        let end = start.and_then(|start| start.checked_add(usize::try_from(read).ok()?));
        let range = start.zip(end).map(|(start, end)| start..end);
        let range = range.filter(|range| read == file.size() && range.end <= bytes.len());
        let range = range.ok_or_else(|| format!("its file number {at} reaches beyond its {} bytes", bytes.len()))?;
        files.insert(file.name().to_owned(), range);
    }
    Ok(files)
}
