//! Loading models: the bundled one or a file, with errors that say which exit code they mean.
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use camshaft_engine::{EngineLoadError, EngineOptions, KvLayout, KvType, LlamaEngine, LoadOptions, LoadedModel};

use crate::config::{ModelConfig, ModelSource};
use crate::error::ServerError;

/// The demo model, so that the server answers from any directory without any file.
static DEMO: &[u8] = include_bytes!("../../../config/models/demo.gguf");

/// Loads a model's weights. `digest`: their digest is wanted.
pub(crate) fn load(config: &ModelConfig, digest: bool) -> Result<Arc<LoadedModel>, ServerError> {
    let options = LoadOptions { verify_sha256: config.sha256.clone(), digest };
    match &config.source {
        ModelSource::Demo => {
            LoadedModel::from_bytes("demo", DEMO, &options).map_err(|error| from_engine(config, &error))
        }
        ModelSource::File(path) => probe(path)
            .and_then(|()| LoadedModel::from_file(path, &options).map_err(|error| from_engine(config, &error))),
    }
}

/// Tries a file in another process, which may die of it. The weights are mapped, so the second load finds them warm.
fn probe(path: &Path) -> Result<(), ServerError> {
    let program = std::env::current_exe().map_err(|error| ServerError::internal("find the own program", error))?;
    let output = Command::new(program).arg("probe-model").arg(path).stdin(Stdio::null()).output();
    let output = output.map_err(|error| ServerError::internal("start the probe of a model", error))?;
    match (output.status.code(), output.status.signal()) {
        // An ordinary refusal is met again by the load itself, which says it better.
        (Some(_), _) => Ok(()),
        (None, signal) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let reason =
                said.lines().find(|line| line.contains("ASSERT") || line.contains("abort") || line.contains("error"));
            let reason = reason.unwrap_or("no reason given").trim();
            let reason = reason.rsplit_once(".cpp:").map_or(reason, |(_, rest)| rest);
            let signal = signal.unwrap_or_default();
            Err(ServerError::BadData(format!(
                "bad model file {}: llama.cpp died of it (signal {signal}): {reason}",
                path.display()
            )))
        }
    }
}

/// The other process's part of [`probe`]: loads the file, makes a small context, decodes one token.
pub(crate) fn probe_here(path: &Path) -> Result<(), ServerError> {
    use camshaft_core::engine::{Batch, Engine};
    use camshaft_core::ids::{SeqId, Token};
    let bad = |error: String| ServerError::BadData(error);
    let model = LoadedModel::from_file(path, &LoadOptions::default()).map_err(|error| bad(error.to_string()))?;
    let options = EngineOptions {
        sequences: 1,
        kv_tokens: 64,
        kv_layout: KvLayout::Pooled,
        batch_tokens: 16,
        threads: 1,
        kv_type: KvType::F16,
    };
    // Characters that only byte tokens can stand for.
    let _ = model.tokenizer().tokenize("a \u{1F600}\u{1}", true, true);
    let mut engine = LlamaEngine::new(model, &options).map_err(|error| bad(error.to_string()))?;
    let mut batch = Batch::default();
    batch.push(Token(0), 0, SeqId(0), true);
    engine.decode(&batch).map_err(|error| bad(error.to_string()))
}

/// An engine's load error as the process's.
pub(crate) fn from_engine(config: &ModelConfig, error: &EngineLoadError) -> ServerError {
    match (&config.source, error.is_missing_input()) {
        (ModelSource::File(path), true) => ServerError::MissingInput { path: path.clone(), why: error.to_string() },
        _ => ServerError::BadData(format!("model {:?}: {error}", config.id)),
    }
}
