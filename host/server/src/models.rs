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

use crate::config::{ModelConfig, ModelSource, Origins};
use crate::error::{DraftProblem, ModelProblem, Problem, ServerError};
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
    let only_for = |key: &str, value: String, kind: ModelKind| {
        Err(ServerError::value(&config.origins, key, &value, Problem::OnlyFor(kind)))
    };
    match (kind, &config.lora) {
        (ModelKind::Generate, _) if !config.dimensions.is_empty() => {
            only_for("dimensions", format!("{:?}", config.dimensions), ModelKind::Embed)
        }
        (ModelKind::Embed, Some(lora)) => only_for("lora", lora.display().to_string(), ModelKind::Generate),
        (ModelKind::Embed, None) if config.draft_tokens() > 0 => {
            only_for("draft-tokens", config.draft_tokens().to_string(), ModelKind::Generate)
        }
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
        copy: !config.mmap,
        progress: Some(bar.stage("loading")),
    };
    match config.source() {
        ModelSource::Demo => {
            // The bundled weights are known to be good; an adapter is not.
            if config.lora.is_some() {
                probe(Path::new(DEMO_NAME), config, Tried::Model, &bar)?;
            }
            from_bytes(&options).map_err(|error| from_engine(config, error))
        }
        ModelSource::File(path) => probe(&path, config, Tried::Model, &bar)
            .and_then(|()| LoadedModel::from_file(&path, &options).map_err(|error| from_engine(config, error))),
    }
}

/// What is loaded in another process first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tried {
    /// The model, with its adapter.
    Model,
    Draft,
}

/// Loads a file in another process first, because llama.cpp aborts on some corrupt files. The weights are mapped, so the
/// second load finds them in the page cache.
fn probe(path: &Path, config: &ModelConfig, tried: Tried, bar: &LoadBar) -> Result<(), ServerError> {
    let (lora, key) = match (tried, config.lora.as_deref()) {
        (Tried::Draft, _) => (None, "draft-model"),
        (Tried::Model, Some(lora)) => (Some(lora), "lora"),
        (Tried::Model, None) => (None, "path"),
    };
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
            let reason = reason.map(|line| line.trim().rsplit(".cpp:").next().unwrap_or_default().to_owned());
            let (path, signal) = (lora.unwrap_or(path).to_owned(), signal.unwrap_or_default());
            let crash = ModelProblem::Crash { path, signal, reason };
            Err(ServerError::model(&config.id, &config.origins, key, crash))
        }
    }
}

/// What the other process of [`probe`] does: loads the file, makes a small context, decodes one token.
pub(crate) fn probe_here(path: &Path, lora: Option<PathBuf>) -> Result<(), ServerError> {
    use camshaft_core::embed::Embedder;
    use camshaft_core::engine::{Batch, Engine};
    use camshaft_core::ids::{SeqId, Token};
    fn bad<T>(path: &Path, result: Result<T, impl Into<ModelProblem>>) -> Result<T, ServerError> {
        let id = path.to_string_lossy();
        result.map_err(|problem| ServerError::model(&id, &Origins::default(), "path", problem))
    }
    let adapter = lora.map(|path| AdapterOptions { path, scale: 1.0 });
    let load = LoadOptions { adapter, progress: Some(progress::tell_parent()), ..LoadOptions::default() };
    let is_demo = path == Path::new(DEMO_NAME);
    let model = if is_demo { from_bytes(&load) } else { LoadedModel::from_file(path, &load) };
    let model = bad(path, model)?;
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
        let mut embedder = bad(path, LlamaEmbedder::new(model, 64, 1))?;
        return bad(path, embedder.embed(&[[Token(0)].into()])).map(drop);
    }
    let mut engine = bad(path, LlamaEngine::new(model, &options))?;
    let mut batch = Batch::default();
    batch.push(Token(0), 0, SeqId(0), true);
    bad(path, engine.decode(&batch))
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
    let draft = probe(path, config, Tried::Draft, &LoadBar::new(&config.id)).and_then(|()| {
        let (kind, copy) = (Some(ModelKind::Generate), !config.mmap);
        let options = LoadOptions { kind, copy, ..LoadOptions::default() };
        LoadedModel::from_file(path, &options).map_err(|error| from_engine(config, error))
    })?;
    let bad = |source| {
        let problem = ModelProblem::Draft { path: path.to_owned(), source };
        Err(ServerError::model(&config.id, &config.origins, "draft-model", problem))
    };
    let (theirs, ours) = (&draft.info().vocabulary, &target.info().vocabulary);
    if !theirs.is_same_as(ours) {
        let (theirs, ours) = (theirs.size(), ours.size());
        return bad(DraftProblem::Vocabulary { theirs, ours });
    }
    if draft.info().reuse != Reuse::Ranges || target.info().reuse != Reuse::Ranges {
        return bad(DraftProblem::StateCannotBeCut);
    }
    Ok(draft)
}

/// What the engine says of a model, as the process's error.
pub(crate) fn from_engine(config: &ModelConfig, error: EngineLoadError) -> ServerError {
    if let EngineLoadError::WrongKind { why: WrongKind::Encoder { .. }, .. } = error {
        let kind = config.kind.wanted().map_or("auto".to_owned(), |kind| kind.to_string());
        return ServerError::value(&config.origins, "kind", &kind, Problem::WrongKind(error));
    }
    ServerError::model(&config.id, &config.origins, key_at_fault(config, &error), error)
}

/// The key of a model whose value the error is about.
fn key_at_fault(config: &ModelConfig, error: &EngineLoadError) -> &'static str {
    let path = match error {
        EngineLoadError::WrongDigest { .. } => return "sha256",
        EngineLoadError::WrongKind { .. } => return "kind",
        EngineLoadError::NoContext { .. } => return "context-tokens",
        EngineLoadError::NotAnAdapter { .. } => return "lora",
        EngineLoadError::Unreadable { path, .. }
        | EngineLoadError::BadFile { path, .. }
        | EngineLoadError::NotLoaded { path, .. } => Some(path),
        EngineLoadError::Backend(_) | EngineLoadError::Unpack(_) => None,
    };
    match path {
        Some(_) if path == config.lora.as_ref() => "lora",
        Some(_) if path == config.draft_model.as_ref() => "draft-model",
        _ => "path",
    }
}
