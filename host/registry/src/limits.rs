//! Bounds of everything that comes from outside.

/// Bytes of one file of a model.
pub(crate) const FILE_BYTES: u64 = 4 << 40;
/// Files of one model.
pub(crate) const PARTS: u32 = 512;
/// Bytes of an answer that is no file: a manifest.
pub(crate) const MANIFEST_BYTES: u64 = 1 << 20;
/// Layers of a manifest.
pub(crate) const LAYERS: usize = 1024;
/// Bytes of an answer's head.
pub(crate) const HEAD_BYTES: usize = 64 << 10;
/// Redirects of one request.
pub(crate) const REDIRECTS: usize = 5;
/// Bytes of a source, and of a URL that a redirect names.
pub(crate) const SOURCE_BYTES: usize = 4096;
/// Characters of a name.
pub(crate) const NAME_CHARS: usize = 256;
/// Bytes of a file's name, as the system has it.
pub(crate) const FILE_NAME_BYTES: usize = 255;
/// Models of one cache.
pub(crate) const ENTRIES: usize = 4096;
/// Bytes of a file that the cache wrote about a model.
pub(crate) const ENTRY_BYTES: u64 = 512 << 10;
/// Bytes of a token.
pub(crate) const TOKEN_BYTES: usize = 4096;
/// Bytes that must arrive in the time of [`Times::stall`](crate::Times::stall), or what is left of the file: fewer is a stall.
pub(crate) const STALL_BYTES: u64 = 4096;
/// Attempts are counted anew once this much has arrived.
pub(crate) const PROGRESS_BYTES: u64 = 1 << 20;
/// Times that a file is begun anew because it changed, or its server cannot resume.
pub(crate) const RESTARTS: u32 = 2;
