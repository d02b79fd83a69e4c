//! A model's weights, checked against its configuration, and what is made of them: engines, embedders, drafters.
use std::fs;
use std::sync::Arc;

use camshaft_core::embed::Embedder;
use camshaft_core::engine::{EngineLimits, ModelInfo, ModelKind};
use camshaft_core::fake::FakeEngine;
use camshaft_core::ids::WorkerId;
use camshaft_core::sizes::{DraftNeeds, ModelNeeds, Sizes, Wishes};
use camshaft_core::speculate::{Drafter, ModelDrafter, PromptLookup};
use camshaft_core::worker::Speculation;
use camshaft_engine::disk::DiskError;
use camshaft_engine::{EngineOptions, KvType, LlamaEmbedder, LlamaEngine, LoadedModel, MappedFile, Placement};
use camshaft_registry::InUse;
use camshaft_tensor::TensorModel;

use crate::cache_plan::{CacheOwner, CachePlan};
use crate::config::{FlashKey, Format, IsolationKey, KvTypeKey, ModelConfig, Models};
use crate::devices::Devices;
use crate::error::{Problem, ServerError};
use crate::models;
use crate::own_program::has_roles;
use crate::progress::ProgressSink;
use crate::registry::{self, Obtained};

/// What the fake engines pretend to have been trained for.
const FAKE_TOKENS: u32 = 8192;
const FAKE_LIMITS: EngineLimits =
    EngineLimits { sequences: 1, kv_tokens: FAKE_TOKENS, batch_tokens: 512, context_tokens: FAKE_TOKENS };

/// What runs the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engines {
    Llama,
    /// The fakes of core, which compute nothing: what is then measured or tested is everything around them. No
    /// configuration names them, see [`crate::serve_fake_models`].
    Fake,
}

/// A configured model with its weights.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) config: ModelConfig,
    pub(crate) source: WeightsSource,
    /// The chat template of the configuration.
    pub(crate) template: Option<String>,
    /// More layers do not work on devices.
    pub(crate) most_layers: Option<u32>,
    /// Flash attention was turned off, because devices failed at it.
    pub(crate) lost_flash: bool,
    /// A process of its own computes: its weights are not here.
    pub(crate) is_apart: bool,
    /// Keeps its files in the cache of models, if they lie there.
    pub(crate) held: Option<Arc<InUse>>,
}

/// A model with its weights and its sizes, ready to be started.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    pub(crate) loaded: Loaded,
    pub(crate) sizes: Sizes,
}

#[derive(Debug, Clone)]
pub(crate) enum WeightsSource {
    Llama {
        model: Arc<LoadedModel>,
        draft: Option<Arc<LoadedModel>>,
    },
    Tensors {
        model: Arc<TensorModel>,
        /// Of its file, if somebody wants to know it.
        sha256: Option<String>,
    },
    /// Generates or embeds.
    Fake(ModelKind),
}

impl Engines {
    /// Loads a model's weights, or only looks at them, if some will lie on devices: how many follows from the sizes of all
    /// models. `digest`: the disk cache wants to know them by their digest. `sink` hears how far it is.
    ///
    /// # Errors
    /// What is wrong with its file, or with what its configuration asks of it.
    pub(crate) fn load(
        self,
        config: &ModelConfig,
        digest: bool,
        devices: &Devices,
        sink: &ProgressSink,
    ) -> Result<Loaded, ServerError> {
        let mut is_apart = may_be_apart(config);
        let source = match self {
            Self::Fake => WeightsSource::Fake(match config.kind.wanted() {
                Some(ModelKind::Embed) => ModelKind::Embed,
                _ => ModelKind::Generate,
            }),
            Self::Llama if models::format(config)? == Format::Tensors => {
                models::settings_fit(config, ModelKind::Predict)?;
                let (model, sha256) = models::load_tensors(config, sink)?;
                WeightsSource::Tensors { model: Arc::new(model), sha256 }
            }
            Self::Llama => {
                let wants_devices = devices.are_wanted(config);
                let looks = wants_devices || is_apart;
                let placement = if looks { Placement::Nowhere } else { Placement::Host };
                // Reading all of a file twice would take its time.
                let mut model = models::load(config, digest && !looks, placement, sink)?;
                models::settings_fit(config, model.info().kind)?;
                models::kv_type_fits(config, &model)?;
                is_apart &= !wants_devices && model.info().kind == ModelKind::Generate;
                if looks && !wants_devices && !is_apart {
                    model = models::load_again(config, digest, Placement::Host, sink)?;
                }
                let place = if is_apart { Placement::Nowhere } else { Placement::Host };
                let draft = config.draft_model.as_ref();
                let draft = draft.map(|path| models::load_draft(config, path, &model, (place, sink))).transpose()?;
                WeightsSource::Llama { model, draft }
            }
        };
        is_apart &= !matches!(source, WeightsSource::Tensors { .. } | WeightsSource::Fake(ModelKind::Embed));
        let template = models::chat_template(config)?;
        let (most_layers, lost_flash, held) = (None, false, None);
        Ok(Loaded { config: config.clone(), source, template, most_layers, lost_flash, is_apart, held })
    }
}

impl Engines {
    /// A model with the path of its file, pulled if it has a source and is not in the cache.
    ///
    /// # Errors
    /// It cannot be had.
    pub(crate) fn obtain(
        self,
        models: &Models,
        config: &ModelConfig,
        sink: &ProgressSink,
    ) -> Result<Obtained, ServerError> {
        match self {
            // They read no file.
            Self::Fake => Ok(Obtained { config: config.clone(), held: None }),
            Self::Llama => registry::obtain(models, config, sink),
        }
    }
}

impl Loaded {
    pub(crate) fn kind(&self) -> ModelKind {
        match &self.source {
            WeightsSource::Llama { model, .. } => model.info().kind,
            WeightsSource::Tensors { .. } => ModelKind::Predict,
            WeightsSource::Fake(kind) => *kind,
        }
    }

    /// The files that its weights and those of its draft model are mapped from.
    pub(crate) fn mapped_files(&self) -> Vec<Arc<MappedFile>> {
        match &self.source {
            WeightsSource::Llama { model, draft } => {
                [Some(model), draft.as_ref()].into_iter().flatten().flat_map(|of| of.mapped_files().to_vec()).collect()
            }
            WeightsSource::Tensors { .. } | WeightsSource::Fake(_) => Vec::new(),
        }
    }

    /// Workers that keep prefixes, each of which gets an equal share of the cache. Embedders keep none.
    pub(crate) fn caching_workers(&self) -> u64 {
        match self.kind() {
            ModelKind::Generate => u64::from(self.config.workers),
            ModelKind::Embed | ModelKind::Predict => 0,
        }
    }

    /// Workers that it has.
    pub(crate) fn workers(&self) -> u32 {
        self.config.workers
    }

    /// What it takes of memory, and what its configuration asks for.
    pub(crate) fn needs(&self, devices: &Devices) -> ModelNeeds {
        let (config, mut wishes) = (&self.config, self.config.wishes());
        let generates = self.kind() == ModelKind::Generate;
        match &self.source {
            WeightsSource::Llama { model, draft } => {
                // They lie beside the weights, and each is about as large as its file. One that cannot be read is refused when it is loaded.
                let adapters = config.lora.iter().chain(config.adapter.iter().map(|adapter| &adapter.path));
                let bytes = adapters.filter_map(|path| fs::metadata(path).ok()).map(|file| file.len());
                let adapter = bytes.fold(0, u64::saturating_add);
                let kv_type = config.kv_type.set().map_or(KvType::F16, KvTypeKey::kv_type);
                let packs = |model: &LoadedModel| model.takes_kv_type(KvType::Q8_0).is_ok();
                wishes.may_quantize &= packs(model) && draft.as_deref().is_none_or(packs);
                // It has as large a cache as the model.
                let draft = draft.as_ref().map(|draft| DraftNeeds {
                    weights: draft.info().weight_bytes,
                    kv_token: draft.kv_token_bytes(kv_type),
                    kv_token_q8: draft.kv_token_bytes(KvType::Q8_0),
                    sequence: draft.sequence_bytes(),
                    batch_token: draft.batch_token_bytes(),
                });
                let states = model.input_state_bytes().saturating_mul(u64::from(self.workers()));
                let states = if generates { 0 } else { states };
                let batch_token = if generates {
                    model.batch_token_bytes()
                } else {
                    let batch = wishes.batch_tokens.unwrap_or_default();
                    let longest = wishes.kv_tokens.unwrap_or(u32::MAX);
                    model.input_token_bytes(longest, batch, config.flash_attention != FlashKey::Off)
                };
                ModelNeeds {
                    generates,
                    workers: self.workers(),
                    weights: model.info().weight_bytes.saturating_add(adapter).saturating_add(states),
                    input_weights: model.input_weight_bytes(),
                    trained_tokens: model.info().trained_context_tokens,
                    kv_token: model.kv_token_bytes(kv_type),
                    kv_token_q8: model.kv_token_bytes(KvType::Q8_0),
                    sequence: model.sequence_bytes(),
                    batch_token,
                    devices: devices.needs(config, model.layers(), self.most_layers),
                    draft: draft.unwrap_or_default(),
                    wishes,
                }
            }
            WeightsSource::Tensors { model, .. } => ModelNeeds {
                generates,
                workers: self.workers(),
                weights: model.memory_bytes(self.workers(), self.config.batch_size),
                input_weights: 0,
                trained_tokens: 1,
                kv_token: 0,
                kv_token_q8: 0,
                sequence: 0,
                batch_token: 0,
                devices: None,
                draft: DraftNeeds::default(),
                // Each worker is one.
                wishes: Wishes { threads: Some(1), ..Wishes::default() },
            },
            WeightsSource::Fake(_) => ModelNeeds {
                generates,
                workers: config.workers,
                weights: 0,
                input_weights: 0,
                trained_tokens: FAKE_TOKENS,
                kv_token: 1,
                kv_token_q8: 1,
                sequence: 0,
                batch_token: 1,
                devices: None,
                draft: DraftNeeds::default(),
                wishes,
            },
        }
    }

    /// What is known of a model that reads texts, with the chat template of the configuration.
    pub(crate) fn text_info(&self) -> Option<ModelInfo> {
        let WeightsSource::Llama { model, .. } = &self.source else { return None };
        let info = model.info().clone();
        Some(match &self.template {
            Some(template) => ModelInfo { chat_template: Some(template.clone()), tool_template: None, ..info },
            None => info,
        })
    }

    /// Its name, as its file has it, and how many parameters it has.
    pub(crate) fn described(&self) -> (String, u64) {
        match &self.source {
            WeightsSource::Llama { model, .. } => (model.info().name.clone(), model.info().parameters),
            WeightsSource::Tensors { model, .. } => (model.facts.name.clone(), model.facts.parameters),
            WeightsSource::Fake(_) => ("fake".to_owned(), 0),
        }
    }
}

impl Weights {
    pub(crate) fn config(&self) -> &ModelConfig {
        &self.loaded.config
    }

    /// Threads that compute, of all its workers.
    pub(crate) fn threads_of_all(&self) -> u32 {
        self.loaded.workers().saturating_mul(self.sizes.threads)
    }

    /// Whether each of its workers computes with threads that were started for it, and with nothing else: a draft model has threads
    /// of its own beside them, and so has a device.
    pub(crate) fn computes_in_teams(&self) -> bool {
        let shares = self.config().draft_model.is_some() || self.sizes.offloaded.layers > 0;
        self.is_generating() && self.sizes.threads > 1 && !shares
    }

    /// Whether a device computes all of its layers, so that processors are left.
    pub(crate) fn computes_on_device(&self) -> bool {
        match &self.loaded.source {
            WeightsSource::Llama { model, .. } => self.sizes.offloaded.layers >= model.layers(),
            WeightsSource::Tensors { .. } | WeightsSource::Fake(_) => false,
        }
    }

    pub(crate) fn is_generating(&self) -> bool {
        self.loaded.kind() == ModelKind::Generate
    }

    pub(crate) fn computes_tensors(&self) -> bool {
        self.loaded.kind() == ModelKind::Predict
    }

    /// Type of the numbers in the KV cache.
    pub(crate) fn kv_type(&self) -> KvType {
        self.engine_options().kv_type
    }

    /// What one worker's context is made with.
    pub(crate) fn engine_options(&self) -> EngineOptions {
        engine_options(self.config(), &self.sizes)
    }

    /// Makes what a first worker would run, and lets go of it.
    ///
    /// # Errors
    /// There is not enough memory, or the configuration does not fit the model.
    pub(crate) fn try_out(&self) -> Result<(), ServerError> {
        let config = self.config();
        match &self.loaded.source {
            WeightsSource::Llama { model, .. } if !self.is_generating() => {
                dimensions_fit(config, embedder(config, model, &self.sizes)?.limits().dimensions)
            }
            WeightsSource::Llama { model, draft } => {
                let options = self.engine_options();
                drop(engine(config, model, &options)?);
                speculation(config, draft.as_ref(), &options).map(drop)
            }
            // It was when it was loaded.
            WeightsSource::Tensors { .. } | WeightsSource::Fake(_) => Ok(()),
        }
    }

    /// Checks that its workers could keep segments on disk. Leaves nothing behind.
    ///
    /// # Errors
    /// The directory cannot be made or read, or another process uses it.
    pub(crate) fn check_disk(&self, plan: &CachePlan) -> Result<(), DiskError> {
        let WeightsSource::Llama { model, .. } = &self.loaded.source else { return Ok(()) };
        let workers = u32::try_from(self.loaded.caching_workers()).unwrap_or_default();
        let options = self.engine_options();
        let id = &self.config().id;
        let owner = |worker| CacheOwner { id, model, options: &options, worker: WorkerId(worker) };
        (0..workers).try_for_each(|worker| plan.check_disk(&owner(worker)))
    }
}

/// Whether a process of its own may compute for a model that generates, if no device does.
fn may_be_apart(config: &ModelConfig) -> bool {
    config.isolation == IsolationKey::Process && has_roles()
}

/// What a fake engine of these sizes can hold.
pub(crate) fn fake_limits(sizes: &Sizes) -> EngineLimits {
    let Sizes { sequences, kv_tokens, batch_tokens, .. } = *sizes;
    EngineLimits { sequences, kv_tokens, batch_tokens, context_tokens: sizes.sequence_tokens() }
}

/// What the fake engines say that they are.
pub(crate) fn fake_info(kind: ModelKind) -> ModelInfo {
    ModelInfo { kind, ..FakeEngine::info(FAKE_LIMITS) }
}

/// A fake engine of a worker.
pub(crate) fn fake_engine(limits: EngineLimits, worker: WorkerId) -> FakeEngine {
    let mut engine = FakeEngine::new(limits, u64::from(worker.0));
    engine.memory = 8;
    engine
}

/// What a context of a model is made with.
pub(crate) fn engine_options(config: &ModelConfig, sizes: &Sizes) -> EngineOptions {
    let Sizes { sequences, kv_tokens, layout, batch_tokens, threads, .. } = *sizes;
    let chosen = if sizes.quantized { KvType::Q8_0 } else { KvType::F16 };
    EngineOptions {
        sequences,
        kv_tokens,
        kv_layout: layout,
        batch_tokens,
        threads,
        kv_type: config.kv_type.set().map_or(chosen, KvTypeKey::kv_type),
        flash_attention: config.flash_attention.wanted(),
        kv_on_device: config.kv_on_gpu,
    }
}

pub(crate) fn engine(
    config: &ModelConfig,
    model: &Arc<LoadedModel>,
    options: &EngineOptions,
) -> Result<LlamaEngine, ServerError> {
    LlamaEngine::new(model, options).map_err(|error| models::from_engine(config, error))
}

pub(crate) fn embedder(
    config: &ModelConfig,
    model: &Arc<LoadedModel>,
    sizes: &Sizes,
) -> Result<LlamaEmbedder, ServerError> {
    let flash = config.flash_attention.wanted();
    let embedder = LlamaEmbedder::new(model, sizes.batch_tokens, sizes.input_tokens, sizes.threads, flash);
    embedder.map_err(|error| models::from_engine(config, error))
}

pub(crate) fn dimensions_fit(config: &ModelConfig, dimensions: u32) -> Result<(), ServerError> {
    match config.dimensions.iter().find(|&&shorter| shorter >= dimensions) {
        None => Ok(()),
        Some(&got) => {
            let problem = Problem::TooManyDimensions { own: dimensions, got };
            let value = format!("{:?}", config.dimensions);
            Err(ServerError::value(&config.origins, "dimensions", &value, problem))
        }
    }
}

/// Who drafts for a worker.
pub(crate) fn speculation(
    config: &ModelConfig,
    draft: Option<&Arc<LoadedModel>>,
    options: &EngineOptions,
) -> Result<Option<Speculation>, ServerError> {
    if config.draft_tokens() == 0 {
        return Ok(None);
    }
    let drafter: Box<dyn Drafter> = match draft {
        None => Box::new(PromptLookup),
        Some(draft) => Box::new(ModelDrafter::new(engine(config, draft, options)?)),
    };
    Ok(Some(Speculation { drafter, draft_tokens: config.draft_tokens() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_plan::CacheShare;
    use crate::config::{Config, Overrides};

    fn config(set: &str) -> Config {
        let overrides = Overrides { set: vec![set.to_owned()], ..Overrides::default() };
        Config::load(None, std::iter::empty(), &overrides).unwrap()
    }

    #[test]
    fn regression_embedding_models_take_no_share_of_the_prefix_cache() {
        let config = config(r#"model=[{id="a", workers=3}, {id="b", kind="embed", workers=5}]"#);
        let loaded = config
            .live
            .model
            .iter()
            .map(|model| Engines::Fake.load(model, false, &Devices::default(), &ProgressSink::default()).unwrap());
        let workers: u64 = loaded.map(|loaded| loaded.caching_workers()).sum();
        assert_eq!(workers, 3);
        assert_eq!(CachePlan::of(&config, CacheShare { workers, chosen: 3 << 30, most: 9 << 30 }).ram_bytes, 1 << 30);
    }
}
