//! Secrets that the operator gives a policy: read from files or the environment, told to the policy and to nobody else.
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::trust::check_secret;
use crate::whole_file::read_whole;

/// Bytes of one secret.
const SECRET_BYTES: usize = 64 << 10;

/// Where a secret is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SecretSource {
    /// Absolute, and its owner's alone. One line break at its end does not count.
    File(PathBuf),
    /// A variable of the server's environment.
    Env(String),
}

/// The secrets of a policy, by name.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Secrets(BTreeMap<String, Vec<u8>>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Secrets {
    /// Reads all of them now.
    ///
    /// # Errors
    /// The name of one that cannot be had, and why: never what is in it.
    pub(crate) fn read(sources: &BTreeMap<String, SecretSource>) -> Result<Self, (String, String)> {
        let read = |(name, source): (&String, &SecretSource)| match source.read() {
            Ok(secret) => Ok((name.clone(), secret)),
            Err(why) => Err((name.clone(), why)),
        };
        sources.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(Vec::as_slice)
    }
}

impl SecretSource {
    fn read(&self) -> Result<Vec<u8>, String> {
        let (secret, place) = match self {
            SecretSource::File(path) => {
                check_secret(path).map_err(|error| error.to_string())?;
                // One more than it may have, for the line break.
                let mut secret = read_whole(path, SECRET_BYTES as u64 + 2).map_err(|error| error.to_string())?;
                if secret.ends_with(b"\n") {
                    secret.truncate(secret.len() - if secret.ends_with(b"\r\n") { 2 } else { 1 });
                }
                (secret, path.display().to_string())
            }
            SecretSource::Env(variable) => {
                use std::os::unix::ffi::OsStringExt;
                let value = std::env::var_os(variable).ok_or_else(|| format!("${variable} is not set"))?;
                (value.into_vec(), format!("${variable}"))
            }
        };
        match secret.len() {
            0 => Err(format!("{place} is empty")),
            1..=SECRET_BYTES => Ok(secret),
            bytes => Err(format!("{place} has {bytes} bytes, more than the {SECRET_BYTES} allowed")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn read(source: SecretSource) -> Result<Vec<u8>, String> {
        let sources = BTreeMap::from([("key".to_owned(), source)]);
        let secrets = Secrets::read(&sources).map_err(|(name, why)| format!("{name}: {why}"))?;
        assert_eq!(format!("{secrets:?}"), "{\"key\"}", "only names are shown");
        assert_eq!(secrets.get("other"), None);
        Ok(secrets.get("key").unwrap().to_vec())
    }

    fn file(path: &Path, content: &[u8], mode: u32) -> Result<Vec<u8>, String> {
        fs::write(path, content).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        read(SecretSource::File(path.to_owned()))
    }

    #[test]
    fn reads_files_that_are_their_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        for (content, secret) in [("abc", "abc"), ("abc\n", "abc"), ("abc\r\n", "abc"), ("abc\n\n", "abc\n")] {
            assert_eq!(file(&path, content.as_bytes(), 0o600).unwrap(), secret.as_bytes());
        }
        assert!(file(&path, b"\n", 0o600).unwrap_err().ends_with("key is empty"));
        let shared = file(&path, b"hidden", 0o644).unwrap_err();
        assert!(shared.contains("others") && !shared.contains("hidden"), "{shared}");
        assert!(read(SecretSource::File(dir.path().join("none"))).is_err());
    }

    #[test]
    fn reads_secrets_at_the_bound_and_refuses_one_past_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        assert_eq!(file(&path, &[7; SECRET_BYTES], 0o600).unwrap().len(), SECRET_BYTES);
        assert!(file(&path, &[7; SECRET_BYTES + 1], 0o600).unwrap_err().contains("65537 bytes, more than the 65536"));
    }

    #[test]
    fn reads_the_environment() {
        assert_eq!(read(SecretSource::Env("PATH".to_owned())).unwrap(), std::env::var("PATH").unwrap().into_bytes());
        let missing = read(SecretSource::Env("CAMSHAFT_NO_SUCH".to_owned())).unwrap_err();
        assert_eq!(missing, "key: $CAMSHAFT_NO_SUCH is not set");
    }
}
