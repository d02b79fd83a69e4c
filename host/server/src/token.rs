//! The token of the admin listener, in a file that only operators read.
use std::path::Path;

use crate::config::Origins;
use crate::error::{Problem, ServerError};

/// Bytes of the file.
const FILE_MAX_BYTES: u64 = 4096;
/// Characters of a token. Less can be guessed.
const MIN_CHARS: usize = 16;

/// Reads the token, without the line break at its end.
///
/// # Errors
/// A file that is missing, too large, or holds no token, or that others can read or replace.
pub(crate) fn read(path: &Path, origins: &Origins) -> Result<String, ServerError> {
    let bad = |problem: Problem| ServerError::value(origins, "admin.token-file", &path.display(), problem);
    camshaft_policy::check_secret(path).map_err(|error| bad(error.into()))?;
    let bytes = camshaft_policy::read_whole(path, FILE_MAX_BYTES).map_err(|error| bad(error.into()))?;
    let text = String::from_utf8_lossy(&bytes);
    let token = text.trim();
    match token.len() >= MIN_CHARS && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(token.to_owned()),
        false => Err(bad(format!("holds no token: one line of at least {MIN_CHARS} visible ASCII characters").into())),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_has_bounds() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let check = |text: &str| {
            std::fs::write(file.path(), text).unwrap();
            read(file.path(), &Origins::default()).map_err(|error| error.to_string())
        };
        assert_eq!(check("0123456789abcdef\n"), Ok("0123456789abcdef".to_owned()));
        assert!(check("0123456789abcde").unwrap_err().contains("16"));
        assert!(check("").is_err() && check("0123456789 abcdef").is_err());
        assert!(check(&"x".repeat(4096)).is_ok());
        assert!(check(&"x".repeat(4097)).unwrap_err().contains("admin.token-file"));
    }

    #[test]
    fn regression_a_token_that_others_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("token"), dir.path().join("link"));
        std::fs::write(&file, "0123456789abcdef").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for (mode, fine) in [(0o600, true), (0o400, true), (0o644, false), (0o640, false), (0o666, false)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            // Whoever mounts secrets mounts links.
            for path in [&file, &link] {
                let found = read(path, &Origins::default()).map_err(|error| error.to_string());
                assert_eq!(found.is_ok(), fine, "{mode:o} {}: {found:?}", path.display());
                assert!(fine || found.unwrap_err().contains("admin.token-file"));
            }
        }
    }
}
