//! Why a model could not be had, and what kind of failure that is.
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

use crate::digest::Digest;
use crate::text::{Bytes, shown};

/// What went wrong. Messages name the field, the value (at most 128 characters of it) and the bound.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("{what} {:?}: {why}", shown(value))]
    Value { what: &'static str, value: String, why: String },
    #[error("no directory for models: set models.cache-dir, XDG_CACHE_HOME or HOME")]
    NoDirectory,
    #[error("{}: {why}", path.display())]
    BadDirectory { path: PathBuf, why: String },
    #[error("no model {:?} is cached", shown(name))]
    Unknown { name: String },
    #[error("model {:?} is in use", shown(name))]
    InUse { name: String },
    #[error("model {:?} is being pulled", shown(name))]
    Pulling { name: String },
    #[error("{url}: not found ({status})")]
    NotFound { url: String, status: u16 },
    #[error("{url}: access is refused ({status}){hint}")]
    Refused { url: String, status: u16, hint: &'static str },
    #[error("{url}: the server answers {status}")]
    Status { url: String, status: u16 },
    /// After all attempts.
    #[error("{url}: {why} (tried {attempts} times)")]
    Unreachable { url: String, why: String, attempts: u32 },
    /// The connection broke, after all attempts.
    #[error(
        "{url}: torn after {got} of {total} bytes: {why} (tried {attempts} times); what has arrived is kept, pull again to resume"
    )]
    Torn { url: String, got: u64, total: u64, why: String, attempts: u32 },
    #[error("{url}: {why}")]
    BadAnswer { url: String, why: String },
    #[error("{file}: wrong digest: expected sha256 {expected}, got {got}{hint}; nothing of it is kept")]
    WrongDigest { file: String, expected: Digest, got: Digest, hint: &'static str },
    #[error("{url}: wrong size: expected {expected} bytes, the server announces {got}")]
    WrongSize { url: String, expected: u64, got: u64 },
    #[error("{url}: more than the {announced} bytes that were announced; nothing of it is kept")]
    Oversize { url: String, announced: u64 },
    #[error("{file}: has {bytes} bytes, at most {max} are taken")]
    FileTooLarge { file: String, bytes: u64, max: u64 },
    #[error("needs {} on the disk of {}, {} free ({needed} bytes, {free} free)", Bytes(*needed), dir.display(), Bytes(*free))]
    NoSpace { dir: PathBuf, needed: u64, free: u64 },
    #[error(
        "needs {} in the cache of at most {} (models.cache-size), {} of it in use or being pulled ({needed} bytes of {bound}, {held} held)",
        Bytes(*needed), Bytes(*bound), Bytes(*held)
    )]
    TooLarge { needed: u64, bound: u64, held: u64 },
    #[error("the disk is full at {}: {source}; what has arrived is kept, free some space and pull again to resume", path.display())]
    DiskFull { path: PathBuf, source: io::Error },
    #[error("the cache holds {max} models, at most {max}: remove some")]
    TooMany { max: usize },
    #[error("{}: written by a newer version of this program, or damaged: {why}", path.display())]
    BadEntry { path: PathBuf, why: String },
    #[error("cannot {what} {}: {source}", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("another process has held {} for more than {} s", path.display(), waited.as_secs())]
    Locked { path: PathBuf, waited: Duration },
    #[error("a file that was cached vanished while its model was pulled, time and again")]
    Vanished,
    #[error("cancelled")]
    Cancelled,
}

/// Kinds of failure, for exit codes and statuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// What was asked for makes no sense.
    Usage,
    /// What came is not what was asked for.
    Data,
    /// There is no such thing.
    Missing,
    /// It may work later: the network, the disk's space, or somebody who uses it.
    Unavailable,
    /// The system fails.
    Internal,
}

impl RegistryError {
    pub fn class(&self) -> Class {
        match self {
            Self::Value { .. } | Self::NoDirectory => Class::Usage,
            Self::WrongDigest { .. }
            | Self::WrongSize { .. }
            | Self::Oversize { .. }
            | Self::BadAnswer { .. }
            | Self::FileTooLarge { .. }
            | Self::BadEntry { .. } => Class::Data,
            Self::Unknown { .. } | Self::NotFound { .. } => Class::Missing,
            Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => Class::Missing,
            Self::InUse { .. }
            | Self::Pulling { .. }
            | Self::Refused { .. }
            | Self::Status { .. }
            | Self::Unreachable { .. }
            | Self::Torn { .. }
            | Self::NoSpace { .. }
            | Self::TooLarge { .. }
            | Self::DiskFull { .. }
            | Self::TooMany { .. }
            | Self::Locked { .. }
            | Self::Vanished
            | Self::Cancelled => Class::Unavailable,
            Self::BadDirectory { .. } | Self::Io { .. } => Class::Internal,
        }
    }

    pub(crate) fn value(what: &'static str, value: &str, why: impl Into<String>) -> Self {
        Self::Value { what, value: value.to_owned(), why: why.into() }
    }

    pub(crate) fn answer(url: impl Into<String>, why: impl Into<String>) -> Self {
        Self::BadAnswer { url: url.into(), why: why.into() }
    }

    /// What the system says of a file. A full disk, or a quota, is a condition of its own.
    pub(crate) fn io(what: &'static str, path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        let full = [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error);
        match source.raw_os_error() {
            Some(code) if full.contains(&code) => Self::DiskFull { path, source },
            _ => Self::Io { what, path, source },
        }
    }
}
