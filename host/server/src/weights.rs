//! What is known of a model that is to be served, and what is made of its weights: engines, embedders, drafters.
use std::fs;
use std::sync::Arc;

use camshaft_core::engine::ModelKind;
use camshaft_core::sizes::{DraftNeeds, ModelNeeds, Sizes, Wishes};
use camshaft_engine::{EngineOptions, KvType, ModelOutline, Offload, Placement};
use camshaft_registry::InUse;

use crate::config::{FlashKey, Format, KvTypeKey, ModelConfig, Models};
use crate::devices::Devices;
use crate::engines::{self, FAKE_TOKENS};
use crate::error::ServerError;
use crate::logging::LogHandle;
use crate::models::{self, Outlines};
use crate::progress::ProgressSink;
use crate::reader::{self, Reading};
use crate::registry::{self, Obtained};
use crate::worker_process::{Job, TensorProcess};

/// What runs the models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Engines {
    Llama,
    /// The fakes of core, which compute nothing: what is then measured or tested is everything around them. No
    /// configuration names them, see [`crate::serve_fake_models`].
    Fake,
}

/// A configured model, and what is known of it.
#[derive(Debug, Clone)]
pub(crate) struct Loaded {
    pub(crate) config: ModelConfig,
    pub(crate) source: WeightsSource,
    /// Who reads for it; `None`: it reads no texts.
    pub(crate) reading: Option<Arc<Reading>>,
    /// More layers do not work on devices.
    pub(crate) most_layers: Option<u32>,
    /// Flash attention was turned off, because devices failed at it.
    pub(crate) lost_flash: bool,
    /// Layers on devices that work.
    pub(crate) offload: Option<Offload>,
    /// Keeps its files in the cache of models, if they lie there.
    pub(crate) held: Option<Arc<InUse>>,
}

/// A model with its sizes, ready to be started.
#[derive(Debug, Clone)]
pub(crate) struct Weights {
    pub(crate) loaded: Loaded,
    pub(crate) sizes: Sizes,
}

#[derive(Debug, Clone)]
pub(crate) enum WeightsSource {
    Llama(Outlines),
    /// A tensor model, which is loaded.
    Tensors(Arc<TensorProcess>),
    /// Generates or embeds.
    Fake(ModelKind),
}

impl Engines {
    /// Finds out what a model's file says: its weights are loaded where it is computed. A tensor model is loaded; `log` and `sink` are
    /// for its process.
    ///
    /// # Errors
    /// What is wrong with its file, or with what its configuration asks of it.
    pub(crate) fn load(
        self,
        config: &ModelConfig,
        log: &LogHandle,
        sink: &ProgressSink,
    ) -> Result<Loaded, ServerError> {
        let (reading, source) = match self {
            Self::Llama if models::format(config)? == Format::Tensors => {
                models::settings_fit(config, ModelKind::Predict)?;
                (None, WeightsSource::Tensors(TensorProcess::load(config, log, sink)?.into()))
            }
            _ => {
                let (reading, outlines) = reader::open(config, self == Self::Fake)?;
                let fake = WeightsSource::Fake(reading.info.kind);
                outlines.iter().try_for_each(|outlines| outlines.fit(config))?;
                (Some(Arc::new(reading)), outlines.map_or(fake, WeightsSource::Llama))
            }
        };
        let (most_layers, lost_flash, offload, held) = (None, false, None, None);
        Ok(Loaded { config: config.clone(), source, reading, most_layers, lost_flash, offload, held })
    }

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
            WeightsSource::Llama(outlines) => outlines.model.info.kind,
            WeightsSource::Tensors(_) => ModelKind::Predict,
            WeightsSource::Fake(kind) => *kind,
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
            WeightsSource::Llama(Outlines { model, draft }) => {
                // They lie beside the weights, and each is about as large as its file. One that cannot be read is refused when it is loaded.
                let adapters = config.lora.iter().chain(config.adapter.iter().map(|adapter| &adapter.path));
                let bytes = adapters.filter_map(|path| fs::metadata(path).ok()).map(|file| file.len());
                let adapter = bytes.fold(0, u64::saturating_add);
                let kv_type = config.kv_type.set().map_or(KvType::F16, KvTypeKey::kv_type);
                let packs = |model: &ModelOutline| model.takes_kv_type(KvType::Q8_0).is_ok();
                wishes.may_quantize &= packs(model) && draft.as_deref().is_none_or(packs);
                // It has as large a cache as the model.
                let draft = draft.as_ref().map(|draft| DraftNeeds {
                    weights: draft.info.weight_bytes,
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
                    weights: model.info.weight_bytes.saturating_add(adapter).saturating_add(states),
                    input_weights: model.input_weight_bytes(),
                    trained_tokens: model.info.trained_context_tokens,
                    kv_token: model.kv_token_bytes(kv_type),
                    kv_token_q8: model.kv_token_bytes(KvType::Q8_0),
                    sequence: model.sequence_bytes(),
                    batch_token,
                    devices: devices.needs(config, model.layers, self.most_layers),
                    draft: draft.unwrap_or_default(),
                    wishes,
                }
            }
            WeightsSource::Tensors(process) => ModelNeeds {
                generates,
                workers: self.workers(),
                weights: process.memory_bytes(self.workers(), self.config.batch_size),
                trained_tokens: 1,
                // Each worker is one.
                wishes: Wishes { threads: Some(1), ..Wishes::default() },
                ..ModelNeeds::default()
            },
            WeightsSource::Fake(_) => ModelNeeds {
                generates,
                workers: config.workers,
                trained_tokens: FAKE_TOKENS,
                kv_token: 1,
                kv_token_q8: 1,
                batch_token: 1,
                wishes,
                ..ModelNeeds::default()
            },
        }
    }

    /// Its name, as its file has it, and how many parameters it has.
    pub(crate) fn described(&self) -> (String, u64) {
        match &self.source {
            WeightsSource::Llama(outlines) => (outlines.model.info.name.clone(), outlines.model.info.parameters),
            WeightsSource::Tensors(process) => (process.outline.facts.name.clone(), process.outline.facts.parameters),
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
            WeightsSource::Llama(outlines) => self.sizes.offloaded.layers >= outlines.model.layers,
            WeightsSource::Tensors(_) | WeightsSource::Fake(_) => false,
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
        engines::engine_options(self.config(), &self.sizes)
    }

    /// What a process is to compute for it.
    pub(crate) fn job(&self) -> Job {
        let offload = self.loaded.offload.clone().filter(|_| self.sizes.offloaded.layers > 0);
        let mark = match &self.loaded.source {
            WeightsSource::Llama(outlines) => Some(outlines.model.mark()),
            WeightsSource::Tensors(_) | WeightsSource::Fake(_) => None,
        };
        Job {
            is_fake: matches!(self.loaded.source, WeightsSource::Fake(_)),
            kind: self.loaded.kind(),
            config: self.config().clone(),
            sizes: self.sizes.clone(),
            placement: offload.map_or(Placement::Host, Placement::Devices),
            mark,
        }
    }
}

pub(crate) fn dimensions_fit(config: &ModelConfig, dimensions: u32) -> Result<(), ServerError> {
    match config.dimensions.iter().find(|&&shorter| shorter >= dimensions) {
        None => Ok(()),
        Some(&got) => {
            let why = format!("must be below the model's own {dimensions}, got {got}");
            let value = format!("{:?}", config.dimensions);
            Err(ServerError::value(&config.origins, "dimensions", &value, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_plan::{CachePlan, CacheShare};
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
            .map(|model| Engines::Fake.load(model, &LogHandle::silent(), &ProgressSink::default()).unwrap());
        let workers: u64 = loaded.map(|loaded| loaded.caching_workers()).sum();
        assert_eq!(workers, 3);
        assert_eq!(
            CachePlan::of(&config, CacheShare { workers, chosen: 3 << 30, most: 9 << 30 }).parts().ram_bytes,
            1 << 30
        );
    }
}
