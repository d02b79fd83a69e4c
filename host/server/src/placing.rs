//! Where the layers of models lie: on devices, as many as fit and work, and the others in the host's memory.
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use camshaft_core::engine::ModelKind;
use camshaft_core::promised::Promised;
use camshaft_core::sizes::{Offloaded, Sizes};
use crossbeam_channel::bounded;

use crate::config::{FlashKey, KvTypeKey};
use crate::devices::Devices;
use crate::models;
use crate::own_program::has_roles;
use crate::progress::ProgressSink;
use crate::sizing::{self, Room, Sized};
use crate::weights::{Loaded, Weights};
use crate::worker_process::{EngineProcess, ProcessSetup, Standby};

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
            let setup = ProcessSetup { alive, ..ProcessSetup::trial(weights.job()) };
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

/// Where a model goes whose device fails, or has no room for all its workers: the host's memory. It has sizes then that this machine
/// has room for, and settings for the CPU. The other models have not yet touched all that they were promised, so that what is free now
/// tells little. `number`: the model's among all.
pub(crate) fn standby(model: &Weights, number: usize, promised: &Arc<Mutex<Promised>>) -> Standby {
    let (model, promised) = (model.clone(), promised.clone());
    Arc::new(move |why| {
        let mut loaded = model.loaded.clone();
        if loaded.lost_flash {
            // It was the device that failed at it.
            loaded.config.flash_attention = FlashKey::Auto;
        }
        loaded.offload = None;
        // What it had is given back with its process.
        let needs = loaded.needs(&Devices::default());
        let mut promised = promised.lock().unwrap_or_else(PoisonError::into_inner);
        let mut budget = promised.divide(number, 0, &needs);
        let on_host = budget.models.remove(0);
        let sizes = match loaded.kind() {
            // What waits in its queue was let in by its limits, which the host's memory was asked for, too.
            ModelKind::Generate => on_host,
            ModelKind::Embed | ModelKind::Predict => {
                Sizes { offloaded: Offloaded::default(), weights: on_host.weights, ..model.sizes.clone() }
            }
        };
        if sizes.bytes() > budget.planned {
            return Err(models::no_room(&loaded.config, sizes.bytes(), budget.planned));
        }
        promised.promise(number, sizes.bytes());
        drop(promised);
        let model = loaded.config.id.as_str();
        tracing::warn!(model, why, "workers of the model compute on the CPU until the server is started again");
        let (sequences, context_tokens, input_tokens) = (sizes.sequences, sizes.sequence_tokens(), sizes.input_tokens);
        tracing::info!(model, sequences, context_tokens, input_tokens, cuts = ?sizes.cuts, "sizes on the CPU");
        Ok(Weights { loaded, sizes }.job())
    })
}
