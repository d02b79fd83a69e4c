//! Where the layers of models lie: on devices, as many as fit and work, and the others in the host's memory.
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use camshaft_core::embed::Embedder;
use camshaft_core::engine::{Batch, Engine, EngineError, ModelKind};
use camshaft_core::ids::{SeqId, Token};
use camshaft_core::jobs::BatchModel;
use camshaft_core::promised::Promised;
use camshaft_core::sizes::{KvLayout, Offloaded, Sizes};
use camshaft_engine::{
    EngineOptions, KvType, LlamaEmbedder, LlamaEngine, LoadOptions, LoadedModel, Offload, Placement,
};
use camshaft_policy::{Ended, bound_time_of_this_process};
use serde::{Deserialize, Serialize};

use crate::config::{FlashKey, KindKey, KvTypeKey, ModelConfig, Origins};
use crate::demo;
use crate::devices::Devices;
use crate::error::{ModelProblem, ServerError};
use crate::own_program::own_program;
use crate::progress::{LoadBar, ProgressSink};
use crate::sizing::{self, Room, Sized};
use crate::weights::{Loaded, Weights, WeightsSource};
use crate::{models, probe};

/// What each thread of a trial may take: drivers compile for a device when it is used first.
const TRIAL_CPU: Duration = Duration::from_secs(600);
const TRIAL_WALL: Duration = Duration::from_secs(900);
/// Tokens of each sequence in the batches of a trial: drivers have kernels of their own for narrow ones.
const TRIAL_WIDTHS: [u32; 7] = [1, 2, 4, 1, 8, 100, 1];
/// What a trial runs, before its arguments.
pub(crate) const TRY_COMMAND: &str = "try-devices";

/// What is tried in a process of its own, because a driver may end the process that uses it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Trial {
    path: PathBuf,
    lora: Option<PathBuf>,
    kind: KindKey,
    layers: u32,
    devices: Vec<String>,
    split: Vec<f32>,
    sequences: u32,
    kv_tokens: u32,
    input_tokens: u32,
    is_pooled: bool,
    batch_tokens: u32,
    threads: u32,
    kv_type: KvTypeKey,
    flash_attention: FlashKey,
    kv_on_gpu: bool,
}

/// What cannot be placed as it was planned.
enum Misfit {
    /// The model does not work on devices with so many layers.
    Devices {
        layers: u32,
        why: String,
    },
    Fatal(Box<ServerError>),
}

/// Sizes the models and loads those that were only looked at: onto devices what works there, the rest into the host's memory.
/// `digest`: digests of the weights are wanted.
///
/// # Errors
/// A model cannot be loaded into the host's memory.
pub(crate) fn place(
    room: &Room,
    devices: &Devices,
    mut loaded: Vec<Loaded>,
    digest: bool,
    sink: &ProgressSink,
) -> Result<Sized, ServerError> {
    loop {
        let mut sized = sizing::size(room, devices, loaded.clone());
        let placed =
            sized.weights.iter_mut().zip(&mut loaded).enumerate().try_for_each(|(index, (weights, loaded))| {
                let placed = place_one(weights, loaded, devices, digest, sink);
                *loaded = weights.loaded.clone();
                placed.map_err(|misfit| (index, misfit))
            });
        match placed {
            Ok(()) => return Ok(sized),
            Err((_, Misfit::Fatal(error))) => return Err(*error),
            Err((index, Misfit::Devices { layers, why })) => {
                let model = &mut loaded[index];
                let instead = ask_less(model, layers);
                tracing::warn!(model = model.config.id, layers, instead, why, "a device does not compute the model so");
            }
        }
    }
}

/// Loads a model to where its layers are to be. `before`: the same model as it was, which gives its memory back first.
fn place_one(
    weights: &mut Weights,
    before: &mut Loaded,
    devices: &Devices,
    digest: bool,
    sink: &ProgressSink,
) -> Result<(), Misfit> {
    let layers = weights.sizes.offloaded.layers;
    let offload = devices.offload(weights.config(), layers);
    let trial = Trial::of(weights, &offload);
    let Loaded { config, source, is_apart, .. } = &mut weights.loaded;
    let WeightsSource::Llama { model, .. } = source else { return Ok(()) };
    if *is_apart || model.is_loaded() && model.device_layers() == layers {
        return Ok(());
    }
    let fatal = |error| Misfit::Fatal(Box::new(error));
    let place = |placement| models::load_again(config, digest, placement, sink);
    if model.is_loaded() {
        *model = models::load_again(config, false, Placement::Nowhere, sink).map_err(fatal)?;
        before.source.clone_from(source);
    }
    let WeightsSource::Llama { model, .. } = source else { return Ok(()) };
    *model = if layers == 0 {
        place(Placement::Host).map_err(fatal)?
    } else {
        let failed = |why| Misfit::Devices { layers, why };
        try_in_process(&trial, &LoadBar::new(&config.id, sink)).map_err(failed)?;
        let placed = place(Placement::Devices(offload));
        placed.map_err(|error| if error.is_of_devices() { failed(error.to_string()) } else { fatal(error) })?
    };
    Ok(())
}

impl Trial {
    fn of(weights: &Weights, offload: &Offload) -> Self {
        let (config, options) = (weights.config(), weights.engine_options());
        let kv_type = match options.kv_type {
            KvType::F16 => KvTypeKey::F16,
            KvType::Q8_0 => KvTypeKey::Q8_0,
            KvType::Q4_0 => KvTypeKey::Q4_0,
        };
        Self {
            path: config.file_name(),
            lora: config.lora.clone(),
            kind: if weights.is_generating() { KindKey::Generate } else { KindKey::Embed },
            layers: offload.layers,
            devices: offload.devices.clone(),
            split: offload.split.clone(),
            sequences: options.sequences,
            kv_tokens: options.kv_tokens,
            input_tokens: weights.sizes.input_tokens,
            is_pooled: options.kv_layout == KvLayout::Pooled,
            batch_tokens: options.batch_tokens,
            threads: options.threads,
            kv_type,
            flash_attention: config.flash_attention,
            kv_on_gpu: config.kv_on_gpu,
        }
    }

    /// What all its threads together may take.
    fn cpu(&self) -> Duration {
        TRIAL_CPU.saturating_mul(self.threads.max(1))
    }
}

/// Changes what is asked for, after so many layers on devices did not work, and says what is tried instead.
fn ask_less(loaded: &mut Loaded, layers: u32) -> String {
    let config = &mut loaded.config;
    // Some drivers fail at it. Nothing else reads KV entries of fewer bits.
    let is_plain = config.kv_type.set().is_none_or(|kv_type| kv_type == KvTypeKey::F16);
    if is_plain && config.flash_attention == FlashKey::Auto {
        (config.flash_attention, loaded.lost_flash) = (FlashKey::Off, true);
        return "without flash attention".to_owned();
    }
    let fewer = layers / 2;
    loaded.most_layers = Some(fewer);
    if fewer > 0 {
        return format!("with {fewer} layers on devices");
    }
    if loaded.lost_flash {
        config.flash_attention = FlashKey::Auto;
    }
    "on the CPU".to_owned()
}

/// Why it does not work, if it does not.
fn try_in_process(trial: &Trial, bar: &LoadBar) -> Result<(), String> {
    let what = serde_json::to_string(trial).map_err(|error| error.to_string())?;
    let program = own_program().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command.arg(TRY_COMMAND).arg(what).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| error.to_string())?;
    let (ended, words) = probe::await_end(child, TRIAL_WALL, bar, Builder::new);
    match ended.map_err(|error| error.to_string())? {
        Ended::ByItself(status) if status.success() => Ok(()),
        Ended::ByItself(status) => Err(match probe::judge(&trial.path, status, &words, trial.cpu()) {
            ModelProblem::Refused { why, .. } => why,
            ModelProblem::Crash { signal, reason, .. } => {
                format!(
                    "the process that tried it crashed (signal {signal}): {}",
                    reason.as_deref().unwrap_or("no reason given")
                )
            }
            problem => problem.to_string(),
        }),
        Ended::Late => Err(format!("trying it took more than {} s", TRIAL_WALL.as_secs())),
        Ended::Stopped => Err(ModelProblem::Stopped.to_string()),
    }
}

/// What the other process does: loads the model onto the devices, makes what a worker would run, and computes a token.
///
/// # Errors
/// It does not work.
pub(crate) fn try_here(trial: &str) -> Result<(), ServerError> {
    let bad = |error| ServerError::internal("read what is to be tried", error);
    let trial: Trial = serde_json::from_str(trial).map_err(bad)?;
    // The system counts what all threads take together.
    let bounded = bound_time_of_this_process(trial.cpu());
    bounded.map_err(|error| ServerError::internal("bound the trial of a device", error))?;
    computes(&trial).map_err(|problem| {
        ServerError::model(&trial.path.to_string_lossy(), &Origins::default(), "gpu-layers", problem)
    })
}

fn computes(trial: &Trial) -> Result<(), ModelProblem> {
    let Trial { path, layers, devices, split, sequences, kv_tokens, input_tokens, batch_tokens, threads, .. } = trial;
    let offload = Offload { layers: *layers, devices: devices.clone(), split: split.clone() };
    let adapter = trial.lora.clone().map(|path| camshaft_engine::AdapterOptions { path, scale: 1.0 });
    let (kind, placement) = (trial.kind.wanted(), Placement::Devices(offload));
    let options = LoadOptions { kind, adapter, placement, ..LoadOptions::default() };
    let model = match path.as_path() == Path::new(demo::NAME) {
        true => demo::load(&options)?,
        false => LoadedModel::from_file(path, &options)?,
    };
    if model.info().kind == ModelKind::Embed {
        let flash = trial.flash_attention.wanted();
        return exercise_embedder(LlamaEmbedder::new(&model, *batch_tokens, *input_tokens, *threads, flash)?);
    }
    let options = EngineOptions {
        sequences: *sequences,
        kv_tokens: *kv_tokens,
        kv_layout: if trial.is_pooled { KvLayout::Pooled } else { KvLayout::PerSequence },
        batch_tokens: *batch_tokens,
        threads: *threads,
        kv_type: trial.kv_type.kv_type(),
        flash_attention: trial.flash_attention.wanted(),
        kv_on_device: trial.kv_on_gpu,
    };
    exercise(LlamaEngine::new(&model, &options)?)
}

/// Computes what serving computes: a token, batches of several widths, several sequences at once, and a copy of what it knows of one.
fn exercise(mut engine: LlamaEngine) -> Result<(), ModelProblem> {
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
            return Err(EngineError::Failed("logits that are no numbers".to_owned()).into());
        }
        done = last;
    }
    // Where the state of a model cannot be copied, prefixes are computed again.
    drop(engine.save(SeqId(0), 0..done));
    Ok(())
}

/// As [`exercise`]: inputs alone and together, short and long.
fn exercise_embedder(mut embedder: LlamaEmbedder) -> Result<(), ModelProblem> {
    embedder.warm_up()?;
    let most = embedder.limits().input_tokens;
    for (inputs, tokens) in [(1, 2), (1, 4), (2, 4), (3, 30), (1, 100), (1, 1)] {
        if inputs * tokens <= most {
            let input: Arc<[Token]> = (0..tokens).map(|token| Token(token % 2)).collect();
            let vectors = embedder.compute(&vec![input; inputs as usize])?;
            if vectors.iter().any(Result::is_err) {
                return Err(EngineError::Failed("a vector that holds no numbers".to_owned()).into());
            }
        }
    }
    Ok(())
}

/// A model in the host's memory, with sizes for it.
type OnHost = (Arc<LoadedModel>, Sizes, ModelConfig);

/// A model in the host's memory, for when a device fails on which it is, or has no room for all its workers. They share it.
#[derive(Debug, Clone)]
pub(crate) struct Standby {
    loaded: Loaded,
    /// Its number among all models.
    number: usize,
    promised: Arc<Mutex<Promised>>,
    host: Arc<Mutex<Option<OnHost>>>,
}

impl Standby {
    /// For the model of this number. `promised` is of all models.
    pub(crate) fn new(loaded: &Loaded, number: usize, promised: &Arc<Mutex<Promised>>) -> Self {
        Self { loaded: loaded.clone(), number, promised: promised.clone(), host: Arc::default() }
    }

    /// Makes what computes now: with `model` and its sizes, or, once its device failed or has no room, with another one,
    /// sizes that this machine has room for, and settings for the CPU.
    ///
    /// # Errors
    /// It cannot be made, or not be loaded into the host's memory.
    pub(crate) fn make<T>(
        &self,
        model: &Arc<LoadedModel>,
        sizes: &Sizes,
        make: impl Fn(&ModelConfig, &Arc<LoadedModel>, &Sizes) -> Result<T, ServerError>,
    ) -> Result<T, ServerError> {
        let why = if model.is_lost() {
            "a device failed".to_owned()
        } else {
            match make(&self.loaded.config, model, sizes) {
                // The trial made what one worker needs; devices have not always room for more, or others came meanwhile.
                Err(error) if model.is_on_devices() && error.lacks_context() => error.to_string(),
                made => return made,
            }
        };
        let (model, sizes, config) = self.on_host(model, sizes, &why)?;
        make(&config, &model, &sizes)
    }

    fn on_host(&self, lost: &LoadedModel, before: &Sizes, why: &str) -> Result<OnHost, ServerError> {
        let mut host = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(standby) = &*host {
            return Ok(standby.clone());
        }
        let mut loaded = self.loaded.clone();
        if loaded.lost_flash {
            // It was the device that failed at it.
            loaded.config.flash_attention = FlashKey::Auto;
        }
        // A copy: nothing watches whether somebody cuts this file.
        loaded.config.mmap = false;
        let config = &loaded.config;
        let (sizes, had) = self.promise(&loaded, before)?;
        tracing::warn!(
            model = config.id,
            why,
            "workers of the model compute on the CPU until the server is started again"
        );
        let model = models::load_again(config, lost.identity().is_some(), Placement::Host, &ProgressSink::default());
        let model =
            model.and_then(|model| if model.is_same_as(lost) { Ok(model) } else { Err(models::replaced(config)) });
        let model = model.inspect_err(|_| {
            // Others may have what this one does not take now.
            self.promised().promise(self.number, had);
        })?;
        let (sequences, context_tokens, input_tokens) = (sizes.sequences, sizes.sequence_tokens(), sizes.input_tokens);
        let cuts = &sizes.cuts;
        tracing::info!(model = config.id, sequences, context_tokens, input_tokens, ?cuts, "sizes on the CPU");
        Ok(host.insert((model, sizes, loaded.config)).clone())
    }

    fn promised(&self) -> MutexGuard<'_, Promised> {
        self.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sizes in what the other models leave, which have not yet touched all that they were promised, so that what is free now
    /// tells little; and what the model was promised before.
    ///
    /// # Errors
    /// They leave no room for it.
    fn promise(&self, loaded: &Loaded, before: &Sizes) -> Result<(Sizes, u64), ServerError> {
        // Nobody can free what a lost device has to do with, and another worker may still use it. Mapped weights are no loss, and
        // batches lay on the device.
        let needs = loaded.needs(&Devices::default());
        // The draft model is there once.
        let weights = before.weights.saturating_sub(needs.draft.weights);
        let kept = if self.loaded.config.mmap { before.kv } else { before.kv.saturating_add(weights) };
        let mut promised = self.promised();
        let mut budget = promised.divide(self.number, kept, &needs);
        let on_host = budget.models.remove(0);
        let sizes = match loaded.kind() {
            // What waits in its queue was let in by its limits, which the host's memory was asked for, too.
            ModelKind::Generate => on_host,
            ModelKind::Embed | ModelKind::Predict => {
                Sizes { offloaded: Offloaded::default(), weights: on_host.weights, ..before.clone() }
            }
        };
        if sizes.bytes() > budget.planned {
            return Err(models::no_room(&loaded.config, sizes.bytes(), budget.planned));
        }
        let had = promised.promise(self.number, kept.saturating_add(sizes.bytes()));
        Ok((sizes, had))
    }
}
