//! The bytes that a document has since it changed last.
use serde::{Deserialize, Serialize};

/// One version of a document.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Version {
    /// No two versions have the same while the server runs, whichever document they are of.
    pub(crate) number: u64,
    pub(crate) bytes: Vec<u8>,
}
