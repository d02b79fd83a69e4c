//! Loading models: the bundled one or a file, with errors that say which exit code they mean.
use std::path::{Path, PathBuf};
use std::sync::Arc;

use camshaft_core::engine::{ModelKind, Reuse, Tokenizer};
use camshaft_engine::{EngineLoadError, LoadOptions, LoadedModel, ModelOutline, Placement, WrongKind};
use camshaft_policy::FileError;
use camshaft_tensor::TensorModel;
use serde::{Deserialize, Serialize};

use crate::config::{Auto, FlashKey, Format, ModelConfig, ModelSource};
use crate::demo;
use crate::error::{DraftProblem, ModelProblem, ServerError};
use crate::progress::{LoadBar, ProgressSink};
use crate::tensors;

/// Bound of a file with a chat template.
const TEMPLATE_BYTES: u64 = 1 << 20;

/// Refuses settings that only models of another kind have.
pub(crate) fn settings_fit(config: &ModelConfig, kind: ModelKind) -> Result<(), ServerError> {
    let (embed, generate) = (("embed", of_embedders(config)), ("generate", of_generators(config)));
    let tensors = ("compute tensors", of_predictors(config));
    let others = match kind {
        ModelKind::Generate => vec![embed, tensors],
        ModelKind::Embed => vec![generate, tensors],
        ModelKind::Predict => vec![embed, generate, ("read texts", of_texts(config))],
    };
    for (of, settings) in others {
        if let Some((key, value)) = settings.into_iter().find_map(|(key, value)| Some((key, value?))) {
            return Err(ServerError::value(
                &config.origins,
                key,
                &value,
                format!("only for models that {of}, and this one does not: remove it"),
            ));
        }
    }
    Ok(())
}

/// What reads the model's file. Refuses a kind that such a file has none of.
pub(crate) fn format(config: &ModelConfig) -> Result<Format, ServerError> {
    let format = Format::of(&config.file_name());
    let wrong = match (format, config.kind.wanted()) {
        (Format::Tensors, Some(ModelKind::Generate | ModelKind::Embed)) => ("\"predict\"", "a tensor model's file"),
        (Format::Gguf, Some(ModelKind::Predict)) => ("\"generate\" or \"embed\"", "a GGUF file"),
        _ => return Ok(format),
    };
    let (expected, file) = wrong;
    let kind = config.kind.wanted().map_or("auto", ModelKind::as_str);
    Err(ServerError::value(&config.origins, "kind", &kind, format!("must be \"auto\" or {expected} for {file}")))
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

/// The settings that only embedding models have, with their values where something is asked for.
fn of_embedders(config: &ModelConfig) -> Vec<(&'static str, Option<String>)> {
    let dimensions = &config.dimensions;
    vec![
        ("dimensions", (!dimensions.is_empty()).then(|| format!("{dimensions:?}"))),
        ("embed-token-ids", config.embed_token_ids.then(|| "true".to_owned())),
    ]
}

/// The same, of models that generate.
fn of_generators(config: &ModelConfig) -> Vec<(&'static str, Option<String>)> {
    let shown = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let usual = ModelConfig::default();
    vec![
        ("adapter", (!config.adapter.is_empty()).then(|| format!("{} adapters", config.adapter.len()))),
        ("sampling", (config.sampling != usual.sampling).then(|| "set".to_owned())),
        ("lora", shown(&config.lora)),
        ("lora-scale", (config.lora_scale != usual.lora_scale).then(|| config.lora_scale.to_string())),
        ("sequences", config.sequences.set().map(|sequences| sequences.to_string())),
        ("max-sequences", config.max_sequences.map(|most| most.to_string())),
        ("max-tenant-sequences", config.max_tenant_sequences.map(|most| most.to_string())),
        ("kv-type", config.kv_type.set().map(|kv_type| kv_type.kv_type().as_str().to_owned())),
        ("kv-layout", config.kv_layout.set().map(|layout| layout.layout().as_str().to_owned())),
        ("kv-reserve", (config.kv_reserve != usual.kv_reserve).then(|| config.kv_reserve.as_str().to_owned())),
        ("kv-on-gpu", (!config.kv_on_gpu).then(|| config.kv_on_gpu.to_string())),
        ("step-target", (config.step_target != usual.step_target).then(|| config.step_target.to_string())),
        ("draft-model", shown(&config.draft_model)),
        ("chat-template", shown(&config.chat_template)),
        ("draft-tokens", (config.draft_tokens() > 0).then(|| config.draft_tokens().to_string())),
    ]
}

/// The same, of tensor models.
fn of_predictors(config: &ModelConfig) -> Vec<(&'static str, Option<String>)> {
    let usual = ModelConfig::default();
    let (backend, size, window) = (config.backend, config.batch_size, config.batch_window);
    vec![
        ("backend", (backend != usual.backend).then(|| backend.as_str().to_owned())),
        ("batch-size", (size != usual.batch_size).then(|| size.to_string())),
        ("batch-window", (window != usual.batch_window).then(|| window.to_string())),
    ]
}

/// The same, of models that llama.cpp computes.
fn of_texts(config: &ModelConfig) -> Vec<(&'static str, Option<String>)> {
    let tokens = |tokens: &Auto<u32>| tokens.set().map(|tokens| tokens.to_string());
    vec![
        ("context-tokens", tokens(&config.context_tokens)),
        ("batch-tokens", tokens(&config.batch_tokens)),
        ("max-step-tokens", config.max_step_tokens.map(|most| most.to_string())),
        ("threads", tokens(&config.threads)),
        ("gpu-layers", tokens(&config.gpu_layers).filter(|layers| layers != "0")),
        ("devices", (!config.devices.is_empty()).then(|| format!("{:?}", config.devices))),
        ("main-device", config.main_device.clone()),
        ("tensor-split", (!config.tensor_split.is_empty()).then(|| format!("{:?}", config.tensor_split))),
        ("flash-attention", (config.flash_attention == FlashKey::On).then(|| "on".to_owned())),
    ]
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
