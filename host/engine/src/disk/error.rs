//! Why there is no disk tier.
use std::path::PathBuf;

/// What stopped a directory of segments from being used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("cannot {verb} {path}")]
    Io { verb: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{0} is used by another process")]
    InUse(PathBuf),
}
