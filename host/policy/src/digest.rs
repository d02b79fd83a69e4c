//! SHA-256 of files.
use sha2::{Digest, Sha256};

/// The SHA-256 of a file in lower-case hexadecimal.
pub(crate) fn digest_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
