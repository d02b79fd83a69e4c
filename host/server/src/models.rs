//! Loading models: the bundled one or a file, with errors that say which exit code they mean.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use camshaft_core::engine::{ModelKind, Reuse, Tokenizer};
use camshaft_engine::{EngineLoadError, LoadOptions, LoadedModel, ModelOutline, Placement, WrongKind};
use camshaft_policy::FileError;
use camshaft_tensor::TensorModel;
use serde::{Deserialize, Serialize};

use crate::config::{Format, ModelConfig, ModelSource};
use crate::demo;
use crate::error::{DraftProblem, ModelProblem, ServerError};
use crate::progress::{LoadBar, ProgressSink};
use crate::tensors;

/// Bound of a file with a chat template.
const TEMPLATE_BYTES: u64 = 1 << 20;

/// Settings that only embedding models have.
const OF_EMBEDDERS: &[&str] = &["dimensions", "embed-token-ids"];
/// The same, of models that generate.
const OF_GENERATORS: &[&str] = &[
    "adapter",
    "sampling",
    "lora",
    "lora-scale",
    "sequences",
    "max-sequences",
    "max-tenant-sequences",
    "kv-type",
    "kv-layout",
    "kv-reserve",
    "kv-on-gpu",
    "step-target",
    "draft-model",
    "chat-template",
    "draft-tokens",
];
/// The same, of tensor models.
const OF_PREDICTORS: &[&str] = &["backend", "batch-size", "batch-window"];
/// The same, of models that llama.cpp computes.
const OF_TEXTS: &[&str] = &[
    "context-tokens",
    "batch-tokens",
    "max-step-tokens",
    "threads",
    "gpu-layers",
    "devices",
    "main-device",
    "tensor-split",
    "flash-attention",
];

/// Refuses settings that only models of another kind have.
pub(crate) fn settings_fit(config: &ModelConfig, kind: ModelKind) -> Result<(), ServerError> {
    let (embed, generate, tensors) =
        (("embed", OF_EMBEDDERS), ("generate", OF_GENERATORS), ("compute tensors", OF_PREDICTORS));
    let others = match kind {
        ModelKind::Generate => vec![embed, tensors],
        ModelKind::Embed => vec![generate, tensors],
        ModelKind::Predict => vec![embed, generate, ("read texts", OF_TEXTS)],
    };
    let mut settings = config.settings();
    // What every model without devices does.
    settings.retain(|key, value| match key.as_str() {
        "gpu-layers" => *value != 0,
        "flash-attention" => *value != "off",
        _ => true,
    });
    for (of, keys) in others {
        if let Some((key, value)) = keys.iter().find_map(|&key| Some((key, settings.get(key)?))) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let why = format!("only for models that {of}, and this one does not: remove it");
            return Err(ServerError::value(&config.origins, key, &value, why));
        }
    }
    Ok(())
}

/// What reads the model's file. Refuses a kind that such a file has none of.
pub(crate) fn format(config: &ModelConfig) -> Result<Format, ServerError> {
    let format = Format::of(&config.file_name());
    let (expected, file) = match (format, config.kind.wanted()) {
        (Format::Tensors, Some(ModelKind::Generate | ModelKind::Embed)) => ("\"predict\"", "a tensor model's file"),
        (Format::Gguf, Some(ModelKind::Predict)) => ("\"generate\" or \"embed\"", "a GGUF file"),
        _ => return Ok(format),
    };
    let kind = config.kind.wanted().map_or("auto", ModelKind::as_str);
    let why = format!("must be \"auto\" or {expected} for {file}");
    Err(ServerError::value(&config.origins, "kind", &kind, why))
}

/// Loads a tensor model. Its digest comes with it if one was asked for.
///
/// # Errors
/// Its file is no model that can be served.
pub(crate) fn load_tensors(config: &ModelConfig) -> Result<(TensorModel, Option<String>), ServerError> {
    if let ModelSource::Remote(source) = config.source() {
        return Err(not_pulled(&source));
    }
    let path = config.file_name();
    let bad = |key, problem| ServerError::model(&config.id, &config.origins, key, problem);
    let read = tensors::read(&path).map_err(|problem| bad("path", problem))?;
    let digest = config.sha256.as_ref().map(|_| read.sha256());
    if let (Some(wanted), Some(found)) = (&config.sha256, &digest)
        && wanted != found
    {
        let (wanted, found) = (wanted.clone(), found.clone());
        return Err(bad("sha256", EngineLoadError::WrongDigest { path, wanted, found }.into()));
    }
    let model = read.load(config.backend.choice()).map_err(|problem| bad("path", problem))?;
    Ok((model, digest))
}

/// What the files of a model say of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outlines {
    pub(crate) model: Arc<ModelOutline>,
    pub(crate) draft: Option<Arc<ModelOutline>>,
}

/// Reads what the files of a model say, and what reads its texts.
///
/// # Errors
/// They are no models that can be served.
pub(crate) fn outlines(config: &ModelConfig) -> Result<(Arc<dyn Tokenizer>, Outlines), ServerError> {
    let bar = LoadBar::new(&config.id, &ProgressSink::default());
    let model = load(config, false, Placement::Nowhere, &bar)?;
    let outline = |model: &LoadedModel| Arc::new(model.outline().clone());
    let draft = config.draft_model.as_ref();
    let draft = draft.map(|path| load_draft(config, path, Placement::Nowhere)).transpose()?;
    Ok((model.tokenizer(), Outlines { model: outline(&model), draft: draft.map(|draft| outline(&draft)) }))
}

impl Outlines {
    /// Refuses what a configuration asks of such models that they cannot have.
    pub(crate) fn fit(&self, config: &ModelConfig) -> Result<(), ServerError> {
        settings_fit(config, self.model.info.kind)?;
        let takes = |model: &ModelOutline| {
            config.kv_type.set().map_or(Ok(()), |kv_type| model.takes_kv_type(kv_type.kv_type()))
        };
        // No device changes that.
        takes(&self.model).map_err(|error| ServerError::model(&config.id, &config.origins, "kv-type", error))?;
        let (Some(draft), Some(path)) = (&self.draft, &config.draft_model) else { return Ok(()) };
        let bad = |source| {
            let problem = ModelProblem::Draft { path: path.clone(), source };
            ServerError::model(&config.id, &config.origins, "draft-model", problem)
        };
        takes(draft).map_err(|error| bad(DraftProblem::KvType(error)))?;
        let (theirs, ours) = (&draft.info.vocabulary, &self.model.info.vocabulary);
        if !theirs.is_same_as(ours) {
            return Err(bad(DraftProblem::Vocabulary { theirs: theirs.size(), ours: ours.size() }));
        }
        if draft.info.reuse != Reuse::Ranges || self.model.info.reuse != Reuse::Ranges {
            return Err(bad(DraftProblem::StateCannotBeCut));
        }
        Ok(())
    }
}

/// The chat template that the configuration names.
pub(crate) fn chat_template(config: &ModelConfig) -> Result<Option<String>, ServerError> {
    let bad = |problem: FileError| ServerError::model(&config.id, &config.origins, "chat-template", problem);
    let read = |path: &PathBuf| {
        let bytes = camshaft_policy::read_whole(path, TEMPLATE_BYTES).map_err(bad)?;
        String::from_utf8(bytes).map_err(|error| {
            let source = std::io::Error::new(std::io::ErrorKind::InvalidData, error);
            bad(FileError::Unreadable { path: path.clone(), source })
        })
    };
    config.chat_template.as_ref().map(read).transpose()
}

/// Loads a model's weights. `digest`: their digest is wanted.
///
/// # Errors
/// Its file is no model that can be served.
pub(crate) fn load(
    config: &ModelConfig,
    digest: bool,
    placement: Placement,
    bar: &LoadBar,
) -> Result<Arc<LoadedModel>, ServerError> {
    let options = LoadOptions {
        verify_sha256: config.sha256.clone(),
        digest,
        kind: config.kind.wanted(),
        adapter: config.adapter(),
        copy: !config.mmap,
        lock: config.mlock,
        progress: Some(bar.stage("loading")),
        placement,
    };
    let loaded = match config.source() {
        ModelSource::Demo => demo::load(&options),
        ModelSource::Remote(source) => return Err(not_pulled(&source)),
        // The classifier is a tensor model, which `load_tensors` loads.
        ModelSource::File(_) | ModelSource::Digits => LoadedModel::from_file(&config.file_name(), &options),
    };
    loaded.map_err(|error| from_engine(config, error))
}

/// Loads a draft model.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_draft(
    config: &ModelConfig,
    path: &Path,
    placement: Placement,
) -> Result<Arc<LoadedModel>, ServerError> {
    let (kind, copy) = (Some(ModelKind::Generate), !config.mmap);
    let options = LoadOptions { kind, copy, placement, ..LoadOptions::default() };
    LoadedModel::from_file(path, &options).map_err(|error| match error {
        // It is not the kind of the model that is at fault.
        EngineLoadError::WrongKind { .. } => ServerError::model(&config.id, &config.origins, "draft-model", error),
        error => from_engine(config, error),
    })
}

/// The host's memory has no room for a model whose device failed.
pub(crate) fn no_room(config: &ModelConfig, wanted: u64, available: u64) -> ServerError {
    ServerError::model(&config.id, &config.origins, "gpu-layers", ModelProblem::NoRoom { wanted, available })
}

/// Other weights are where a model was loaded from.
pub(crate) fn replaced(config: &ModelConfig) -> ServerError {
    from_engine(config, EngineLoadError::Replaced { path: config.file_name() })
}

/// Whoever loads a model has pulled it before.
fn not_pulled(source: &str) -> ServerError {
    ServerError::internal("load", anyhow::anyhow!("{source:?} was not pulled"))
}

/// What the engine says of a model, as the process's error.
pub(crate) fn from_engine(config: &ModelConfig, error: EngineLoadError) -> ServerError {
    if let EngineLoadError::WrongKind { why: WrongKind::Encoder { .. }, .. } = error {
        let kind = config.kind.wanted().map_or("auto".to_owned(), |kind| kind.to_string());
        return ServerError::value(&config.origins, "kind", &kind, error);
    }
    ServerError::model(&config.id, &config.origins, key_at_fault(config, &error), error)
}

/// The key of a model whose value the error is about.
fn key_at_fault(config: &ModelConfig, error: &EngineLoadError) -> &'static str {
    let path = match error {
        EngineLoadError::WrongDigest { .. } => return "sha256",
        EngineLoadError::WrongKind { .. } => return "kind",
        EngineLoadError::NoContext { .. } => return "context-tokens",
        EngineLoadError::KvType { .. } => return "kv-type",
        EngineLoadError::NotAnAdapter { path, .. }
        | EngineLoadError::BadAdapter { path, .. }
        | EngineLoadError::ActivatedAdapter { path } => Some(path),
        EngineLoadError::NoDevice { .. } => return "devices",
        EngineLoadError::Unreadable { path, .. }
        | EngineLoadError::BadFile { path, .. }
        | EngineLoadError::Replaced { path }
        | EngineLoadError::NotLoaded { path, .. } => Some(path),
        EngineLoadError::Unpack(_) | EngineLoadError::NoKernels { .. } | EngineLoadError::NoCache => None,
    };
    match path {
        Some(_) if path == config.lora.as_ref() => "lora",
        Some(_) if path == config.draft_model.as_ref() => "draft-model",
        Some(path) if config.adapter.iter().any(|adapter| adapter.path == *path) => "adapter",
        _ => "path",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Overrides};

    fn config(line: &str) -> ModelConfig {
        let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
        std::fs::write(file.path(), format!("[[model]]\nid = \"m\"\n{line}\n")).unwrap();
        let mut config = Config::load(Some(file.path()), std::iter::empty(), &Overrides::default()).unwrap();
        config.live.model.remove(0)
    }

    #[test]
    fn settings_of_another_kind_are_refused_by_name() {
        let generates = [
            "lora = \"adapter.gguf\"",
            "adapter = [{path = \"adapter.gguf\"}]",
            "sequences = 4",
            "kv-type = \"f16\"",
            "kv-layout = \"pooled\"",
            "kv-reserve = \"full\"",
            "kv-on-gpu = false",
            "step-target = \"20ms\"",
            "lora-scale = 0.5",
            "sampling = { temperature = 0.5 }",
            "draft-model = \"small.gguf\"",
            "draft-tokens = 4",
        ];
        let texts =
            ["context-tokens = 512", "batch-tokens = 64", "threads = 2", "gpu-layers = 3", "devices = [\"GPU0\"]"];
        for (lines, kind, other) in [
            (&generates[..], ModelKind::Generate, ModelKind::Embed),
            (&generates[..1], ModelKind::Generate, ModelKind::Predict),
            (&["dimensions = [64]"][..], ModelKind::Embed, ModelKind::Generate),
            (&["dimensions = [64]"][..], ModelKind::Embed, ModelKind::Predict),
            (
                &["backend = \"cpu\"", "batch-size = 4", "batch-window = \"0ms\""][..],
                ModelKind::Predict,
                ModelKind::Embed,
            ),
            (
                &["backend = \"wgpu\"", "batch-size = 4", "batch-window = \"5ms\""][..],
                ModelKind::Predict,
                ModelKind::Generate,
            ),
            (&texts[..], ModelKind::Embed, ModelKind::Predict),
        ] {
            for line in lines {
                let config = config(line);
                assert!(settings_fit(&config, kind).is_ok(), "{line}");
                let error = settings_fit(&config, other).unwrap_err();
                let key = line.split(' ').next().unwrap();
                let told = format!(
                    "{error}: {}",
                    std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default()
                );
                assert!(told.contains(key), "{line}: {told}");
            }
        }
        for kind in [ModelKind::Generate, ModelKind::Embed, ModelKind::Predict] {
            assert!(settings_fit(&config("workers = 2"), kind).is_ok(), "each kind has workers");
            assert!(settings_fit(&config("kv-type = \"auto\""), kind).is_ok());
        }
    }
}
