//! Why a disk tier cannot be opened, inspected or cleared.
use std::path::PathBuf;

/// Why a directory of segments cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("cannot {verb} {path}")]
    Io { verb: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{0} is used by another process")]
    InUse(PathBuf),
}
