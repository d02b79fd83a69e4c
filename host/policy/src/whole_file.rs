//! Reads files that people edit, whole, whatever lies in their place meanwhile.
use std::fs::{Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// Why a file cannot be had whole.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// A directory, a pipe, a device.
    #[error("{}: is not a regular file", path.display())]
    NotRegular { path: PathBuf },
    #[error("{}: has {size_bytes} bytes, more than the {limit_bytes} allowed", path.display())]
    TooLarge { path: PathBuf, size_bytes: u64, limit_bytes: u64 },
}

/// Reads a file whole, of which no more than `limit_bytes` are taken even if it grows meanwhile. Never waits for a writer,
/// as opening a pipe would.
///
/// # Errors
/// It cannot be opened or read, is not a regular file, or has more than `limit_bytes`.
pub fn read_whole(path: &Path, limit_bytes: u64) -> Result<Vec<u8>, FileError> {
    let unreadable = |source| FileError::Unreadable { path: path.to_owned(), source };
    let check = |meta: &Metadata| match (meta.is_file(), meta.len()) {
        (false, _) => Err(FileError::NotRegular { path: path.to_owned() }),
        (true, size_bytes) if size_bytes > limit_bytes => {
            Err(FileError::TooLarge { path: path.to_owned(), size_bytes, limit_bytes })
        }
        _ => Ok(()),
    };
    // Opening a device may do something.
    check(&std::fs::metadata(path).map_err(unreadable)?)?;
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = file.map_err(unreadable)?;
    // Asked of what was opened: the path may be something else by now.
    let meta = file.metadata().map_err(unreadable)?;
    check(&meta)?;
    let mut bytes = Vec::new();
    file.take(limit_bytes + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > limit_bytes {
        let size_bytes = meta.len().max(bytes.len() as u64);
        return Err(FileError::TooLarge { path: path.to_owned(), size_bytes, limit_bytes });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn reads_at_the_bound_and_refuses_one_past_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, [7; 10]).unwrap();
        assert_eq!(read_whole(&path, 10).unwrap().len(), 10);
        let error = read_whole(&path, 9).unwrap_err().to_string();
        assert_eq!(error, format!("{}: has 10 bytes, more than the 9 allowed", path.display()));
    }

    #[test]
    fn regression_a_pipe_or_directory_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        for path in [pipe.as_path(), dir.path()] {
            let (say, said) = crossbeam_channel::bounded(1);
            let asked = path.to_owned();
            std::thread::spawn(move || say.send(read_whole(&asked, 9).map_err(|error| error.to_string())));
            let error = said.recv_timeout(std::time::Duration::from_secs(30)).expect("it waits for nobody");
            assert_eq!(error, Err(format!("{}: is not a regular file", path.display())));
        }
    }
}
