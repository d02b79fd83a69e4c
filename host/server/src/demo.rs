//! The demo model, so that the server answers from any directory without any file.
use std::sync::Arc;

use camshaft_core::sampling::SamplingDefaults;
use camshaft_engine::{EngineLoadError, LoadOptions, LoadedModel};

static GGUF: &[u8] = include_bytes!("../../../config/models/demo.gguf");

/// What names it on a command line.
pub(crate) const NAME: &str = "demo";

/// How its requests are sampled that name no parameters. It is small: unlikely tokens are seldom of any use, and its file does not
/// say so.
pub(crate) fn sampling() -> SamplingDefaults {
    SamplingDefaults {
        temperature: Some(0.8),
        top_k: Some(40),
        top_p: Some(0.95),
        min_p: Some(0.05),
        ..SamplingDefaults::default()
    }
}

pub(crate) fn load(options: &LoadOptions) -> Result<Arc<LoadedModel>, EngineLoadError> {
    LoadedModel::from_bytes(NAME, GGUF, options)
}
