//! Where the layers of models lie: on devices, as many as fit and work, and the others in the host's memory.
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use camshaft_core::embed::Embedder;
use camshaft_core::engine::{Batch, Engine, EngineError, ModelKind};
use camshaft_core::ids::{SeqId, Token};
use camshaft_core::promised::Promised;
use camshaft_core::sizes::{Offloaded, Sizes};
use crossbeam_channel::bounded;

use crate::config::{FlashKey, KvTypeKey, ModelConfig};
use crate::devices::Devices;
use crate::error::{ModelProblem, ServerError};
use crate::models;
use crate::own_program::has_roles;
use crate::progress::ProgressSink;
use crate::sizing::{self, Room, Sized};
use crate::weights::{Loaded, Weights};
use crate::worker_process::{EngineProcess, ProcessSetup};

/// Tokens of each sequence in the batches of a trial: drivers have kernels of their own for narrow ones.
const TRIAL_WIDTHS: [u32; 7] = [1, 2, 4, 1, 8, 100, 1];

/// Sizes the models, and finds out how many of their layers work on devices, each in a process of its own: a driver may end the one
/// that uses it.
pub(crate) fn place(room: &Room, devices: &Devices, mut loaded: Vec<Loaded>, sink: &ProgressSink) -> Sized {
    loop {
        let sized = sizing::size(room, devices, loaded.clone());
        let mut is_as_planned = true;
        for (weights, loaded) in sized.weights.iter().zip(&mut loaded) {
            let layers = weights.sizes.offloaded.layers;
            let offload = devices.offload(weights.config(), layers);
            if layers == 0 || loaded.offload.as_ref() == Some(&offload) {
                continue;
            }
            is_as_planned = false;
            loaded.offload = Some(offload.clone());
            let weights = Weights { loaded: loaded.clone(), sizes: weights.sizes.clone() };
            // Whoever is started by another program has no process to try it in.
            let (alive, ended) = bounded(0);
            let setup = ProcessSetup { alive, ..ProcessSetup::trial(weights) };
            let tried = has_roles().then(|| EngineProcess::new(setup, sink.clone()).try_out());
            // Until nothing of it is on a device any more.
            let _: Result<Infallible, _> = ended.recv();
            if let Some(Err(error)) = tried {
                let (why, instead) = (error.to_string(), ask_less(loaded, layers));
                let model = loaded.config.id.as_str();
                tracing::warn!(model, layers, instead, why, "a device does not compute the model so");
            }
        }
        if is_as_planned {
            return sized;
        }
    }
}

/// Changes what is asked for, after so many layers on devices did not work, and says what is tried instead.
fn ask_less(loaded: &mut Loaded, layers: u32) -> String {
    let config = &mut loaded.config;
    // Some drivers fail at it. Nothing else reads KV entries of fewer bits.
    let is_plain = config.kv_type.set().is_none_or(|kv_type| kv_type == KvTypeKey::F16);
    if is_plain && config.flash_attention == FlashKey::Auto {
        (config.flash_attention, loaded.lost_flash) = (FlashKey::Off, true);
        loaded.offload = None;
        return "without flash attention".to_owned();
    }
    let fewer = layers / 2;
    loaded.most_layers = Some(fewer);
    loaded.offload = None;
    if fewer > 0 {
        return format!("with {fewer} layers on devices");
    }
    if loaded.lost_flash {
        config.flash_attention = FlashKey::Auto;
    }
    "on the CPU".to_owned()
}

/// Why layers on devices do not compute a model.
pub(crate) fn does_not_work(config: &ModelConfig, why: EngineError) -> ServerError {
    ServerError::model(&config.id, &config.origins, "gpu-layers", ModelProblem::from(why))
}

/// Computes what serving computes: a token, batches of several widths, several sequences at once, and a copy of what it knows of one.
///
/// # Errors
/// It does not work.
pub(crate) fn exercise(engine: &mut impl Engine) -> Result<(), EngineError> {
    engine.warm_up()?;
    let limits = engine.limits();
    let sequences = limits.sequences.min(2);
    let mut done = 0;
    for width in TRIAL_WIDTHS {
        let last = done + width;
        if width * sequences > limits.batch_tokens || last > limits.context_tokens {
            break;
        }
        let mut batch = Batch::default();
        for seq in 0..sequences {
            for position in done..last {
                batch.push(Token(position % 2), position, SeqId(seq), position + 1 == last);
            }
        }
        engine.decode(&batch)?;
        let logits = engine.logits(batch.len() - 1);
        if logits.is_empty() || logits.iter().any(|logit| !logit.is_finite()) {
            return Err(EngineError::Failed("logits that are no numbers".to_owned()));
        }
        done = last;
    }
    // Where the state of a model cannot be copied, prefixes are computed again.
    drop(engine.save(SeqId(0), 0..done));
    (0..sequences).for_each(|seq| engine.truncate(SeqId(seq), 0));
    Ok(())
}

/// As [`exercise`]: inputs alone and together, short and long.
///
/// # Errors
/// As there.
pub(crate) fn exercise_embedder(embedder: &mut impl Embedder) -> Result<(), EngineError> {
    embedder.warm_up()?;
    let most = embedder.limits().input_tokens;
    for (inputs, tokens) in [(1, 2), (1, 4), (2, 4), (3, 30), (1, 100), (1, 1)] {
        if inputs * tokens <= most {
            let input: Arc<[Token]> = (0..tokens).map(|token| Token(token % 2)).collect();
            let vectors = embedder.compute(&vec![input; inputs as usize])?;
            if vectors.iter().any(Result::is_err) {
                return Err(EngineError::Failed("a vector that holds no numbers".to_owned()));
            }
        }
    }
    Ok(())
}

/// Where a model goes whose device fails, or has no room for all its workers: the host's memory.
#[derive(Clone)]
pub(crate) struct Standby {
    /// The model's number among all.
    pub(crate) number: usize,
    pub(crate) promised: Arc<Mutex<Promised>>,
}

impl fmt::Debug for Standby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Standby").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Standby {
    /// The model with sizes that this machine has room for, and settings for the CPU. The other models have not yet touched all that
    /// they were promised, so that what is free now tells little.
    ///
    /// # Errors
    /// They leave no room for it.
    pub(crate) fn on_host(&self, before: &Weights, why: &str) -> Result<Weights, ServerError> {
        let mut loaded = before.loaded.clone();
        if loaded.lost_flash {
            // It was the device that failed at it.
            loaded.config.flash_attention = FlashKey::Auto;
        }
        loaded.offload = None;
        // What it had is given back with its process.
        let needs = loaded.needs(&Devices::default());
        let mut promised = self.promised.lock().unwrap_or_else(PoisonError::into_inner);
        let mut budget = promised.divide(self.number, 0, &needs);
        let on_host = budget.models.remove(0);
        let sizes = match loaded.kind() {
            // What waits in its queue was let in by its limits, which the host's memory was asked for, too.
            ModelKind::Generate => on_host,
            ModelKind::Embed | ModelKind::Predict => {
                Sizes { offloaded: Offloaded::default(), weights: on_host.weights, ..before.sizes.clone() }
            }
        };
        if sizes.bytes() > budget.planned {
            return Err(models::no_room(&loaded.config, sizes.bytes(), budget.planned));
        }
        promised.promise(self.number, sizes.bytes());
        drop(promised);
        let model = loaded.config.id.as_str();
        tracing::warn!(model, why, "workers of the model compute on the CPU until the server is started again");
        let (sequences, context_tokens, input_tokens) = (sizes.sequences, sizes.sequence_tokens(), sizes.input_tokens);
        tracing::info!(model, sequences, context_tokens, input_tokens, cuts = ?sizes.cuts, "sizes on the CPU");
        Ok(Weights { loaded, sizes })
    }
}
