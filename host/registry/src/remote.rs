//! What a source says that a model consists of.
use url::Url;

use crate::client::Secret;
use crate::digest::Digest;
use crate::file_name::FileName;

/// A model upstream.
#[derive(Debug)]
pub(crate) struct Remote {
    /// What the source has under its name now: a commit, a manifest's digest.
    pub(crate) revision: Option<String>,
    /// In order; at most [`crate::limits::PARTS`].
    pub(crate) files: Vec<RemoteFile>,
    /// Follows a refusal.
    pub(crate) hint: &'static str,
}

/// A file to be downloaded.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    pub(crate) name: FileName,
    pub(crate) url: Url,
    pub(crate) secret: Option<Secret>,
    /// What it must have, if somebody said so.
    pub(crate) sha256: Option<Digest>,
    /// The same of its size.
    pub(crate) bytes: Option<u64>,
    /// What tells a changed file, if the source says so before the file is asked for.
    pub(crate) etag: Option<String>,
}
