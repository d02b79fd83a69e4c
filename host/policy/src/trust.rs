//! Whether a path can be trusted: nobody but root and this user can put something else in its place.
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Links on one path.
const LINKS_MAX: u32 = 40;
const ROOT: u32 = 0;

/// Why a path cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum Untrusted {
    #[error("{} belongs to user {owner}, who can replace what is in it", path.display())]
    Foreign { path: PathBuf, owner: u32 },
    #[error("{} can be written to by others (mode {mode:o}): remove that right, or set the sticky bit", path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("{} can be read by others (mode {mode:o}): remove it, or set its mode to 600", path.display())]
    Shared { path: PathBuf, mode: u32 },
    #[error("{}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
}

/// Checks every directory and link on the way to `path`, and itself, as far as they exist: each belongs to root or to this
/// user, and others cannot write to it, or (in a directory with the sticky bit) only add to it.
///
/// # Errors
/// The first that cannot be trusted.
pub fn check_trusted(path: &Path) -> Result<(), Untrusted> {
    let unreadable = |source| Untrusted::Unreadable { path: path.to_owned(), source };
    let path = std::path::absolute(path).map_err(unreadable)?;
    let mut links = 0;
    check(&path, &mut links)
}

/// The same for a secret, which others must not even read.
///
/// # Errors
/// It cannot be trusted, or others can read it.
pub fn check_secret(path: &Path) -> Result<(), Untrusted> {
    check_trusted(path)?;
    // A link's own mode says nothing.
    match fs::metadata(path) {
        Ok(meta) if meta.mode() & 0o077 != 0 => {
            Err(Untrusted::Shared { path: path.to_owned(), mode: meta.mode() & 0o7777 })
        }
        // Whoever needs it makes it.
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Untrusted::Unreadable { path: path.to_owned(), source }),
    }
}

fn check(path: &Path, links: &mut u32) -> Result<(), Untrusted> {
    let mut so_far = PathBuf::new();
    let mut parts = path.components();
    while let Some(part) = parts.next() {
        match part {
            Component::ParentDir => drop(so_far.pop()),
            part => so_far.push(part),
        }
        let unreadable = |source| Untrusted::Unreadable { path: so_far.clone(), source };
        let meta = match fs::symlink_metadata(&so_far) {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(unreadable(source)),
        };
        check_one(&so_far, &meta)?;
        if meta.is_symlink() {
            *links += 1;
            if *links > LINKS_MAX {
                return Err(unreadable(io::Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error())));
            }
            let target = fs::read_link(&so_far).map_err(unreadable)?;
            so_far.pop();
            return check(&so_far.join(target).join(parts.as_path()), links);
        }
    }
    Ok(())
}

fn check_one(path: &Path, meta: &fs::Metadata) -> Result<(), Untrusted> {
    let (path, owner, mode) = (path.to_owned(), meta.uid(), meta.mode() & 0o7777);
    if owner != ROOT && owner != rustix::process::geteuid().as_raw() {
        return Err(Untrusted::Foreign { path, owner });
    }
    // A link's own mode says nothing.
    if !meta.is_symlink() && mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(Untrusted::Writable { path, mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn regression_each_part_of_a_path_must_be_safe_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let (above, below) = (dir.path().join("above"), dir.path().join("above/below"));
        fs::create_dir_all(&below).unwrap();
        for (mode, fine) in
            [(0o755, true), (0o700, true), (0o1777, true), (0o777, false), (0o775, false), (0o2770, false)]
        {
            chmod(&above, mode);
            for path in [above.clone(), below.clone(), below.join("later/and/deeper")] {
                let found = check_trusted(&path);
                assert_eq!(found.is_ok(), fine, "{mode:o} {}: {found:?}", path.display());
                if !fine {
                    let error = found.unwrap_err().to_string();
                    assert!(error.contains("above") && error.contains(&format!("{mode:o}")), "{error}");
                }
            }
        }
        // A link is followed, and what it points at is checked, too.
        chmod(&above, 0o777);
        symlink(&above, dir.path().join("link")).unwrap();
        assert!(matches!(check_trusted(&dir.path().join("link/below")), Err(Untrusted::Writable { .. })));
        symlink("loop", dir.path().join("loop")).unwrap();
        assert!(matches!(check_trusted(&dir.path().join("loop")), Err(Untrusted::Unreadable { .. })));
    }

    #[test]
    fn regression_a_secret_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        check_secret(&key).unwrap();
        fs::write(&key, "secret").unwrap();
        for (mode, fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o660, false)] {
            chmod(&key, mode);
            assert_eq!(check_secret(&key).is_ok(), fine, "{mode:o}");
        }
    }

    #[test]
    fn regression_another_users_directory_is_not_trusted() {
        if !rustix::process::geteuid().is_root() {
            // Only root can give a directory away; others meet one that somebody else owns.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        fs::create_dir_all(theirs.join("mine")).unwrap();
        std::os::unix::fs::chown(&theirs, Some(12_345), None).unwrap();
        let error = check_trusted(&theirs.join("mine")).unwrap_err();
        assert!(matches!(error, Untrusted::Foreign { owner: 12_345, .. }), "{error}");
        symlink(dir.path(), dir.path().join("link")).unwrap();
        std::os::unix::fs::lchown(dir.path().join("link"), Some(12_345), None).unwrap();
        assert!(matches!(check_trusted(&dir.path().join("link")), Err(Untrusted::Foreign { .. })));
    }
}
