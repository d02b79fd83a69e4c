//! What the operator says of a document.
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A document of a settings file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct DocumentSpec {
    pub(crate) name: String,
    pub(crate) source: Source,
    /// From one read to the next.
    pub(crate) refresh: Duration,
    pub(crate) max_bytes: u64,
}

/// Where a document is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Source {
    /// Absolute.
    Path(PathBuf),
    Url {
        url: String,
        /// For all of a fetch, redirects included.
        timeout: Duration,
        /// Certificates (PEM) to trust instead of the system's.
        ca: Option<PathBuf>,
    },
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Path(path) => path.display().fmt(f),
            // What follows may be a key.
            Source::Url { url, .. } => f.write_str(url.split(['?', '#']).next().unwrap_or_default()),
        }
    }
}
