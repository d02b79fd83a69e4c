//! The demo model, so that the server answers from any directory without any file.
use std::sync::Arc;

use camshaft_engine::{EngineLoadError, LoadOptions, LoadedModel};

static GGUF: &[u8] = include_bytes!("../../../config/models/demo.gguf");

/// What names it on a command line.
pub(crate) const NAME: &str = "demo";

pub(crate) const BYTES: u64 = GGUF.len() as u64;

pub(crate) fn load(options: &LoadOptions) -> Result<Arc<LoadedModel>, EngineLoadError> {
    LoadedModel::from_bytes(NAME, GGUF, options)
}
