//! Loading models: the bundled one or a file, with errors that say which exit code they mean.
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use camshaft_core::engine::{ModelKind, Reuse};
use camshaft_engine::{
    AdapterOptions, EngineLoadError, EngineOptions, KvLayout, KvType, LlamaEmbedder, LlamaEngine, LoadOptions,
    LoadedModel, WrongKind,
};

use crate::config::{ModelConfig, ModelSource};
use crate::error::ServerError;
use crate::progress::{self, LoadBar};

/// The demo model, so that the server answers from any directory without any file.
static DEMO: &[u8] = include_bytes!("../../../config/models/demo.gguf");

/// What names it on a command line.
const DEMO_NAME: &str = "demo";

fn from_bytes(options: &LoadOptions) -> Result<Arc<LoadedModel>, EngineLoadError> {
    LoadedModel::from_bytes(DEMO_NAME, DEMO, options)
}

/// Refuses settings that only models of another kind have.
pub(crate) fn settings_fit(config: &ModelConfig, kind: ModelKind) -> Result<(), ServerError> {
    let only_for = |what: &str, kind: ModelKind| {
        Err(ServerError::Config(format!("{what} of {:?}: only for models with kind = \"{kind}\"", config.id)))
    };
    match kind {
        ModelKind::Generate if !config.dimensions.is_empty() => only_for("model.dimensions", ModelKind::Embed),
        ModelKind::Embed if config.lora.is_some() => only_for("model.lora", ModelKind::Generate),
        ModelKind::Embed if config.draft_tokens() > 0 => only_for("model.draft-tokens", ModelKind::Generate),
        _ => Ok(()),
    }
}

/// Loads a model's weights. `digest`: their digest is wanted.
pub(crate) fn load(config: &ModelConfig, digest: bool) -> Result<Arc<LoadedModel>, ServerError> {
    let adapter = config.adapter();
    let bar = LoadBar::new(&config.id);
    let options = LoadOptions {
        verify_sha256: config.sha256.clone(),
        digest,
        kind: config.kind.wanted(),
        adapter,
        progress: Some(bar.stage("loading")),
    };
    let lora = config.lora.as_deref();
    match config.source() {
        ModelSource::Demo => {
            // The bundled weights are known to be good; an adapter is not.
            if lora.is_some() {
                probe(Path::new(DEMO_NAME), lora, &bar)?;
            }
            from_bytes(&options).map_err(|error| from_engine(config, error))
        }
        ModelSource::File(path) => probe(&path, lora, &bar)
            .and_then(|()| LoadedModel::from_file(&path, &options).map_err(|error| from_engine(config, error))),
    }
}

/// Loads a file in another process first, because llama.cpp aborts on some corrupt files. The weights are mapped, so the
/// second load finds them in the page cache.
fn probe(path: &Path, lora: Option<&Path>, bar: &LoadBar) -> Result<(), ServerError> {
    let program = std::env::current_exe().map_err(|error| ServerError::internal("find the own program", error))?;
    let mut command = Command::new(program);
    command.arg("probe-model").arg(path).args(lora);
    let failed = |error| ServerError::internal("start the probe of a model", error);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.map_err(failed)?;
    let said = child.stdout.take();
    let output = std::thread::scope(|scope| {
        scope.spawn(|| bar.follow(said));
        child.wait_with_output()
    });
    let output = output.map_err(failed)?;
    match (output.status.code(), output.status.signal()) {
        // The load itself meets an ordinary refusal again, and reports it better.
        (Some(_), _) => Ok(()),
        (None, signal) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let reason =
                said.lines().find(|line| line.contains("ASSERT") || line.contains("abort") || line.contains("error"));
            let reason = reason.unwrap_or("no reason given").trim();
            let file = lora.map_or(path, |lora| lora);
            let reason = reason.rsplit_once(".cpp:").map_or(reason, |(_, rest)| rest);
            let signal = signal.unwrap_or_default();
            Err(ServerError::BadData(format!(
                "bad model file {}: llama.cpp crashed on it (signal {signal}): {reason}",
                file.display()
            )))
        }
    }
}

/// What the other process of [`probe`] does: loads the file, makes a small context, decodes one token.
pub(crate) fn probe_here(path: &Path, lora: Option<PathBuf>) -> Result<(), ServerError> {
    use camshaft_core::embed::Embedder;
    use camshaft_core::engine::{Batch, Engine};
    use camshaft_core::ids::{SeqId, Token};
    let bad = |error: String| ServerError::BadData(error);
    let adapter = lora.map(|path| AdapterOptions { path, scale: 1.0 });
    let load = LoadOptions { adapter, progress: Some(progress::tell_parent()), ..LoadOptions::default() };
    let is_demo = path == Path::new(DEMO_NAME);
    let model = if is_demo { from_bytes(&load) } else { LoadedModel::from_file(path, &load) };
    let model = model.map_err(|error| bad(error.to_string()))?;
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
    if model.info().kind == ModelKind::Embed {
        let mut embedder = LlamaEmbedder::new(model, 64, 1).map_err(|error| bad(error.to_string()))?;
        return embedder.embed(&[[Token(0)].into()]).map(drop).map_err(|error| bad(error.to_string()));
    }
    let mut engine = LlamaEngine::new(model, &options).map_err(|error| bad(error.to_string()))?;
    let mut batch = Batch::default();
    batch.push(Token(0), 0, SeqId(0), true);
    engine.decode(&batch).map_err(|error| bad(error.to_string()))
}

/// Loads a draft model.
///
/// # Errors
/// As [`load`], and one that has another vocabulary or whose state cannot be cut.
pub(crate) fn load_draft(
    config: &ModelConfig,
    path: &Path,
    target: &LoadedModel,
) -> Result<Arc<LoadedModel>, ServerError> {
    let draft = probe(path, None, &LoadBar::new(&config.id)).and_then(|()| {
        let options = LoadOptions { kind: Some(ModelKind::Generate), ..LoadOptions::default() };
        LoadedModel::from_file(path, &options).map_err(|error| from_engine(config, error))
    })?;
    let bad = |why: String| {
        Err(ServerError::BadData(format!("model {:?}: draft-model {}: {why}", config.id, path.display())))
    };
    let (theirs, ours) = (&draft.info().vocabulary, &target.info().vocabulary);
    if !theirs.is_same_as(ours) {
        let (theirs, ours) = (theirs.size(), ours.size());
        return bad(format!("its vocabulary of {theirs} tokens is not the model's own of {ours}"));
    }
    if draft.info().reuse != Reuse::Ranges || target.info().reuse != Reuse::Ranges {
        return bad("a rejected draft cannot be removed from the state of such a model".to_owned());
    }
    Ok(draft)
}

/// What the engine says of a model, as the process's error.
pub(crate) fn from_engine(config: &ModelConfig, error: EngineLoadError) -> ServerError {
    match error {
        EngineLoadError::WrongKind { why: WrongKind::Encoder { .. }, .. } => {
            ServerError::Config(format!("model.kind of {:?}: {error}", config.id))
        }
        source => ServerError::Model { id: config.id.clone(), source },
    }
}
