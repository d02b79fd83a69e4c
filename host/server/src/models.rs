//! Loading models: the bundled one or a file, with errors that say which exit code they mean.
use std::sync::Arc;

use camshaft_engine::{EngineLoadError, LoadOptions, LoadedModel};

use crate::config::{ModelConfig, ModelSource};
use crate::error::ServerError;

/// The demo model, so that the server answers from any directory without any file.
static DEMO: &[u8] = include_bytes!("../../../config/models/demo.gguf");

/// Loads a model's weights.
pub(crate) fn load(config: &ModelConfig) -> Result<Arc<LoadedModel>, ServerError> {
    let options = LoadOptions { verify_sha256: config.sha256.clone() };
    match &config.source {
        ModelSource::Demo => LoadedModel::from_bytes("demo", DEMO, &options).map_err(|error| from_engine(config, &error)),
        ModelSource::File(path) => LoadedModel::from_file(path, &options).map_err(|error| from_engine(config, &error)),
    }
}

/// An engine's load error as the process's.
pub(crate) fn from_engine(config: &ModelConfig, error: &EngineLoadError) -> ServerError {
    match (&config.source, error.is_missing_input()) {
        (ModelSource::File(path), true) => ServerError::MissingInput { path: path.clone(), why: error.to_string() },
        _ => ServerError::BadData(format!("model {:?}: {error}", config.id)),
    }
}
