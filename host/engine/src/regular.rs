//! Opens regular files in directories that operators fill, and refuses whatever else lies there: pipes, devices, directories.
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a file to read it.
///
/// # Errors
/// As [`open_with`].
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// Opens a file. Never waits for the other end of a pipe.
///
/// # Errors
/// It cannot be opened, or is not a regular file.
pub(crate) fn open_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Looks before it opens: opening a device can have effects.
    if let Ok(data) = fs::metadata(path) {
        check(&data)?;
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    // Checks what was opened, because the path may name something else by now.
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(data: &Metadata) -> io::Result<()> {
    match data {
        data if data.is_file() => Ok(()),
        data if data.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        _ => Err(io::Error::other("not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn regression_a_pipe_or_directory_is_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        let write: fn() -> OpenOptions = || OpenOptions::new().create(true).write(true).clone();
        let append: fn() -> OpenOptions = || OpenOptions::new().append(true).clone();
        for options in [|| OpenOptions::new().read(true).clone(), write, append] {
            for path in [pipe.as_path(), dir.path()] {
                let (say, said) = crossbeam_channel::bounded(1);
                let asked = path.to_owned();
                std::thread::spawn(move || say.send(open_with(&asked, &mut options()).is_ok()));
                assert!(!said.recv_timeout(Duration::from_secs(30)).expect("it waits for nobody"), "{path:?}");
            }
            assert!(open_with(&file, &mut options()).is_ok());
        }
    }
}
