//! The directory of compiled code: one in which nobody else can put anything, for what lies there runs without further
//! checks.
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::error::PolicyError;
use crate::trust::check_trusted;

/// What a directory for compiled code must at least take.
const TRIAL_BYTES: usize = 64 << 10;
/// How the names of files of compiled code end.
pub(crate) const SUFFIX: &str = ".code";
/// How the names of files begin that are being written.
const PARTIAL: [&str; 2] = [".trial-", ".code-"];
/// Nobody makes room by removing what was used since then.
const YOUNG: Duration = Duration::from_secs(10);
/// Nobody writes a file for so long.
const LEFT: Duration = Duration::from_secs(3600);

/// The directory in which compiled code can be kept: this one, or one for temporary files or in memory, where there is none
/// or the first cannot be written to.
pub(crate) fn usable_dir(dir: Option<&Path>) -> Option<PathBuf> {
    usable_of(dir, &[std::env::temp_dir(), PathBuf::from("/dev/shm")])
}

fn usable_of(dir: Option<&Path>, temporary: &[PathBuf]) -> Option<PathBuf> {
    let own = format!("camshaft-compiled-{}", rustix::process::geteuid().as_raw());
    let others: Vec<PathBuf> = temporary.iter().map(|above| above.join(&own)).collect();
    let why = match dir.map(can_be_used) {
        Some(Ok(dir)) => return Some(dir),
        Some(Err(error)) => error.sentence(),
        None => "neither XDG_CACHE_HOME nor HOME names a directory".to_owned(),
    };
    let found = others.iter().find_map(|other| can_be_used(other).ok());
    let instead = found.as_deref().map(|dir| tracing::field::display(dir.display()));
    tracing::warn!(why, instead, "compiled policies are not kept where they should be");
    found
}

/// Makes a directory to which no other user can write, and in which nobody else has put anything. To be called before each
/// use: the directory may have been removed, and made again by somebody else.
///
/// # Errors
/// It belongs to somebody else, lies where others can replace it, or cannot be made.
pub(crate) fn make_private(dir: &Path) -> Result<PathBuf, PolicyError> {
    make_private_by(dir, |dir| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir))
}

fn make_private_by(dir: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<PathBuf, PolicyError> {
    let failed = |source| PolicyError::Cache { path: dir.to_path_buf(), source };
    let dir = std::path::absolute(dir).map_err(failed)?;
    let check = || check_trusted(&dir).map_err(|error| failed(io::Error::other(error)));
    check()?;
    make(&dir).map_err(failed)?;
    // Somebody else may have made a part of it meanwhile.
    check()?;
    let meta = fs::symlink_metadata(&dir).map_err(failed)?;
    if !meta.is_dir() || meta.mode() & 0o1000 != 0 {
        return Err(failed(io::Error::other(
            "it is a link, or a directory for everybody, which cannot be made private",
        )));
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(PolicyError::ForeignCache { path: dir });
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    let was = match meta.mode() & 0o077 {
        0 => Openness::Closed,
        open if open & 0o022 == 0 => Openness::Entered,
        _ => Openness::Written,
    };
    remove_foreign(&dir, was).map_err(failed)?;
    Ok(dir)
}

/// Whether something can be written to a private directory, or its file system is full and there is code in it that others
/// could give up.
fn can_be_used(dir: &Path) -> Result<PathBuf, PolicyError> {
    let dir = make_private(dir)?;
    // A file system may be read-only whatever its modes say. On a full one files can be made, but nothing can be written to
    // them.
    let trial = write_partial(&dir, "trial", &|file| file.write_all(&[0; TRIAL_BYTES]));
    match trial.and_then(fs::remove_file) {
        Err(error) if is_full(&error) && !by_age(&dir).is_empty() => Ok(dir),
        // Somebody else may tidy up.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(PolicyError::Cache { path: dir, source: error }),
        _ => Ok(dir),
    }
}

/// Writes a file whose name nobody else uses, and returns its path. Where the file system is full, the files that nobody
/// used for the longest time go, one after the other.
pub(crate) fn write_in_room(dir: &Path, write: impl Fn(&mut File) -> io::Result<()>) -> io::Result<PathBuf> {
    loop {
        let error = match write_partial(dir, "code", &write) {
            Err(error) if is_full(&error) => error,
            written => return written,
        };
        // The server for which it was just made may not have loaded it yet.
        let is_old = |file: &Whole| is_past(file.used, YOUNG);
        if !by_age(dir).iter().any(|file| is_old(file) && fs::remove_file(&file.path).is_ok()) {
            return Err(error);
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn write_partial(dir: &Path, what: &str, write: &dyn Fn(&mut File) -> io::Result<()>) -> io::Result<PathBuf> {
    // Processes that share the directory may have the same number, in namespaces of their own.
    let path = dir.join(format!(".{what}-{:032x}", rand::random::<u128>()));
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&path)?;
    let written = write(&mut file);
    if written.is_err() {
        // It is as good as gone where somebody else has removed it.
        let _ = fs::remove_file(&path);
    }
    written.map(|()| path)
}

/// A file that was written whole.
pub(crate) struct Whole {
    pub(crate) used: SystemTime,
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
}

/// The files that were written whole, the one first that nobody used for the longest time. Removes what processes have left
/// that were killed while they wrote.
pub(crate) fn by_age(dir: &Path) -> Vec<Whole> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut files = Vec::new();
    for entry in entries.flatten() {
        // Somebody else may have removed it.
        let Ok(meta) = entry.metadata() else { continue };
        let Ok(used) = meta.modified() else { continue };
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        let is_partial = PARTIAL.iter().any(|begins| name.starts_with(begins));
        if meta.is_file() && name.ends_with(SUFFIX) {
            files.push(Whole { used, path, bytes: meta.len() });
        } else if is_partial && is_past(used, LEFT) {
            // Somebody else may have done it.
            let _ = fs::remove_file(path);
        }
    }
    files.sort_by_key(|file| file.used);
    files
}

/// Whether a time is longer ago than this. So is one that is as far ahead: a clock was wrong once.
fn is_past(time: SystemTime, longest: Duration) -> bool {
    time.elapsed().unwrap_or_else(|ahead| ahead.duration()) > longest
}

/// What others could do in the directory of compiled code before it was made private.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Openness {
    Closed,
    /// They could write to what lies in it, if that allows them.
    Entered,
    /// They could put files in it whose names nobody can tell from good ones.
    Written,
}

/// Whether a file's name is one of compiled code, whole or partial.
fn is_code(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.ends_with(SUFFIX) || PARTIAL.iter().any(|begins| name.starts_with(begins))
}

/// Removes what is called compiled code, and somebody else has made or could have changed. Nothing else is ever loaded.
fn remove_foreign(dir: &Path, was: Openness) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let meta = match fs::symlink_metadata(&path) {
            // Another process that compiles has renamed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            meta => meta?,
        };
        let writable = was == Openness::Entered && meta.mode() & 0o022 != 0;
        let foreign = was == Openness::Written || meta.uid() != own || !meta.is_file() || writable;
        if !foreign || !is_code(&entry.file_name()) {
            continue;
        }
        tracing::warn!(path = %path.display(), "compiled code that somebody else could have made is removed");
        match if meta.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) } {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_what_others_could_have_put_among_compiled_code_is_removed() {
        // The modes of the directory and of a file in it; whether the file stays.
        let rows = [(0o700, 0o664, true), (0o755, 0o644, true), (0o755, 0o646, false)];
        for (top, file, stays) in rows {
            let above = tempfile::tempdir().unwrap();
            let dir = above.path().join("compiled");
            fs::create_dir_all(dir.join("models")).unwrap();
            let [code, partial, others, model] =
                ["a.code", ".code-a", "notes", "models/m.gguf"].map(|name| dir.join(name));
            for path in [&code, &partial, &others, &model] {
                fs::write(path, "code").unwrap();
                fs::set_permissions(path, fs::Permissions::from_mode(file)).unwrap();
            }
            let elsewhere = above.path().join("elsewhere");
            fs::write(&elsewhere, "code").unwrap();
            for link in ["b.code", "link"] {
                std::os::unix::fs::symlink(&elsewhere, dir.join(link)).unwrap();
            }
            fs::set_permissions(&dir, fs::Permissions::from_mode(top)).unwrap();
            make_private(&dir).unwrap();
            assert_eq!((code.exists(), partial.exists()), (stays, stays), "{top:o} {file:o}");
            assert!(fs::symlink_metadata(dir.join("b.code")).is_err(), "a link leads where others may write");
            let kept = [others, model, elsewhere, dir.join("link")];
            assert!(kept.iter().all(|path| path.exists()), "what is no compiled code is the operator's");
            assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn regression_a_directory_for_everybody_and_one_behind_a_link_stay_as_they_are() {
        let above = tempfile::tempdir().unwrap();
        let (shared, link) = (above.path().join("shared"), above.path().join("link"));
        fs::create_dir(&shared).unwrap();
        fs::write(shared.join("a.code"), "code").unwrap();
        std::os::unix::fs::symlink(&shared, &link).unwrap();
        for (mode, dir) in [(0o1777, &shared), (0o755, &link)] {
            fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).unwrap();
            let why = make_private(dir).unwrap_err().sentence();
            assert!(why.contains("cannot be made private"), "{why}");
            assert_eq!(fs::metadata(&shared).unwrap().mode() & 0o7777, mode);
            assert!(shared.join("a.code").exists());
        }
    }

    #[test]
    fn regression_without_a_directory_of_its_own_compiled_code_is_kept_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let (temporary, blocked) = (dir.path().join("temporary"), dir.path().join("file"));
        fs::create_dir(&temporary).unwrap();
        fs::write(&blocked, "").unwrap();
        for wanted in [None, Some(blocked.as_path())] {
            let found = usable_of(wanted, &[blocked.clone(), temporary.clone()]);
            assert!(found.as_ref().is_some_and(|found| found.starts_with(&temporary)), "{wanted:?}: {found:?}");
            assert_eq!(usable_of(wanted, std::slice::from_ref(&blocked)), None, "{wanted:?}");
        }
    }

    /// A file that was used so many seconds ago.
    fn used(dir: &Path, name: &str, ago: u64) {
        let file = File::create(dir.join(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(ago)).unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.map(|name| name.split('-').next().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn regression_where_the_file_system_is_full_old_files_go_until_there_is_room() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        for (name, ago) in [("young.code", 2), ("new.code", 12), ("old.code", 30), ("older.code", 40), ("other", 90)] {
            used(dir, name, ago);
        }
        let ahead = File::create(dir.join("ahead.code")).unwrap();
        ahead.set_modified(SystemTime::now() + Duration::from_secs(9000)).unwrap();
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let leaving = |most: usize| move |_: &mut File| if by_age(dir).len() <= most { Ok(()) } else { Err(full()) };
        let written = write_in_room(dir, leaving(3)).unwrap();
        assert_eq!(names(dir), [".code", "ahead.code", "new.code", "other", "young.code"]);
        fs::remove_file(written).unwrap();
        let refused = write_in_room(dir, |_| Err(full())).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        assert_eq!(names(dir), ["other", "young.code"], "what was just made is not loaded yet");
        // Any other error is no reason to remove anything.
        used(dir, "old.code", 30);
        write_in_room(dir, |_| Err(io::ErrorKind::InvalidInput.into())).unwrap_err();
        assert_eq!(names(dir), ["old.code", "other", "young.code"]);
    }

    #[test]
    fn regression_what_a_killed_process_left_is_in_nobodys_way_and_goes() {
        let dir = tempfile::tempdir().unwrap();
        for (name, ago) in [(".code-a", 3700), (".code-b", 3500), ("whole.code", 9000), (".mine", 9000)] {
            used(dir.path(), name, ago);
        }
        let whole: Vec<_> = by_age(dir.path()).into_iter().map(|file| file.path).collect();
        assert_eq!(whole, [dir.path().join("whole.code")]);
        assert_eq!(names(dir.path()), [".code", ".mine", "whole.code"], "one may still be written, one is not ours");
    }

    #[test]
    fn regression_a_directory_that_somebody_else_makes_meanwhile_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("made/by/others");
        let made = make_private_by(&cache, |cache| {
            fs::create_dir_all(cache)?;
            fs::set_permissions(dir.path().join("made"), fs::Permissions::from_mode(0o777))
        });
        let why = made.unwrap_err().sentence();
        assert!(why.contains("made can be written to by others"), "{why}");
        let own = can_be_used(&dir.path().join("own/cache")).unwrap();
        assert_eq!(fs::read_dir(&own).unwrap().count(), 0, "the trial leaves nothing");
        assert_eq!(fs::metadata(own).unwrap().mode() & 0o777, 0o700);
    }
}
