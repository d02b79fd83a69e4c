//! Looks at a file of PyTorch before Burn's reader does: what that would unpack is bounded, and nothing in it is ever run.
use std::io::{Cursor, Write};

use tempfile::NamedTempFile;
use zip::{CompressionMethod, ZipArchive};

/// Bytes of the pickle that names the tensors.
const PICKLE_BYTES: u64 = 16 << 20;
/// Files in the archive.
const ENTRIES: usize = 65_536;

/// A copy of the file that Burn's reader opens by its path, which goes with the value.
///
/// # Errors
/// It is no archive as PyTorch has written them since version 1.6, or unpacks to more than it holds.
pub(crate) fn checked(bytes: &[u8]) -> Result<NamedTempFile, String> {
    let mut archive = ZipArchive::new(Cursor::new(bytes))
        .map_err(|error| format!("is no archive as PyTorch has written them since version 1.6: {error}"))?;
    if archive.len() > ENTRIES {
        return Err(format!("has {} files, at most {ENTRIES}", archive.len()));
    }
    let mut all = 0u64;
    for at in 0..archive.len() {
        let file = archive.by_index_raw(at).map_err(|error| format!("its file number {at} cannot be read: {error}"))?;
        // PyTorch compresses nothing: a few bytes never become gigabytes.
        if file.compression() != CompressionMethod::Stored || file.size() != file.compressed_size() {
            return Err(format!("its file number {at} is compressed, which PyTorch never does"));
        }
        all = all.saturating_add(file.size());
        if all > bytes.len() as u64 {
            return Err(format!("its files have more bytes than its {}", bytes.len()));
        }
        if file.name().ends_with(".pkl") && file.size() > PICKLE_BYTES {
            return Err(format!("its pickle has {} bytes, at most {PICKLE_BYTES}", file.size()));
        }
    }
    let copy = || {
        let mut file = NamedTempFile::new()?;
        file.write_all(bytes)?;
        file.flush()?;
        Ok(file)
    };
    copy().map_err(|error: std::io::Error| format!("cannot be copied for its reader: {error}"))
}
