//! Brings a model into memory: has its file, finds room for it, starts its threads, and has requests find it.
use std::sync::{MutexGuard, PoisonError};

use camshaft_core::promised::Promised;
use camshaft_core::sizes::Cut;

use super::ModelLife;
use super::order::Order;
use crate::config::{Format, ModelConfig, ModelSource};
use crate::devices::Devices;
use crate::error::ServerError;
use crate::progress::ProgressSink;
use crate::registry::Obtained;
use crate::sizing::{Room, mib};
use crate::start::Started;
use crate::weights::{Engines, Loaded, Weights};
use crate::{machine, placing, tensors};

/// Why a model is not in memory that was unloaded before it was there.
const STOPPED: &str = "stopped: the model was unloaded before it was in memory";

/// A model that has come into memory and that nobody can ask for yet.
pub(super) struct Brought {
    number: usize,
    weights: Weights,
    started: Started,
}

/// Memory that is promised to a model that comes. It is given back where the model does not come.
struct Claim<'a> {
    life: &'a ModelLife,
    /// Its number among all models.
    number: usize,
    is_kept: bool,
}

/// Why a model is not in memory yet.
enum Misfit {
    Short {
        wanted: u64,
        available: u64,
    },
    /// It never will be.
    Fatal(String),
}

impl<'a> Claim<'a> {
    fn new(life: &'a ModelLife) -> Self {
        Self { life, number: life.promised().next_number(), is_kept: false }
    }

    fn promise(&self, bytes: u64) {
        self.life.promised().promise(self.number, bytes);
    }

    fn keep(mut self) -> usize {
        self.is_kept = true;
        self.number
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.life.promised().release(self.number);
        }
    }
}

impl ModelLife {
    /// Loads a model, finds room for it and starts its threads.
    ///
    /// # Errors
    /// Why it cannot serve. Nothing of it stays in memory.
    pub(super) fn bring(&self, order: &Order, config: &ModelConfig) -> Result<Brought, String> {
        // What it was at when it was stopped says nothing.
        self.bring_here(order, config).map_err(|why| if order.is_stopped() { STOPPED.to_owned() } else { why })
    }

    fn bring_here(&self, order: &Order, config: &ModelConfig) -> Result<Brought, String> {
        let (sink, engines) = (order.sink(), self.setup.engines);
        // Others may be loaded while this one is pulled.
        let Obtained { config, held } = engines.obtain(&self.setup.cache, config, &sink).map_err(said)?;
        let (config, claim) = (&config, Claim::new(self));
        // Trying a tensor model may take minutes, as its layers say, and nothing of it is sized by what the others leave.
        let apart = Format::of(&config.file_name()) == Format::Tensors;
        let mut begun = None;
        if apart {
            self.claim_files(order, claim.number, config)?;
        } else {
            begun = Some(self.turn(order)?);
            self.check_file(claim.number, config)?;
        }
        let devices = match engines {
            Engines::Llama => Devices::look().map_err(said)?,
            Engines::Fake => Devices::default(),
        };
        let loaded = engines.load(config, &self.setup.starter.log, &sink).map_err(said)?;
        let loaded = Loaded { held, ..loaded };
        let (weights, turn) = loop {
            let turn = match begun.take() {
                Some(turn) => turn,
                None => self.turn(order)?,
            };
            match self.fit(claim.number, &devices, &loaded, &sink) {
                Ok(weights) => break (weights, turn),
                Err(Misfit::Fatal(why)) => return Err(why),
                Err(Misfit::Short { wanted, available }) => {
                    // Others may load while this one waits, and none of two that wait waits for the other.
                    drop(turn);
                    claim.promise(0);
                    if !self.make_room(order) {
                        return Err(format!("needs {}, {} free", mib(wanted), mib(available)));
                    }
                }
            }
        };
        claim.promise(weights.sizes.bytes());
        if order.is_stopped() {
            return Err(STOPPED.to_owned());
        }
        let turn = (!apart).then_some(turn);
        order.tell("loading", 0.0);
        let started = self.setup.starter.start(claim.number, &weights, sink).map_err(said)?;
        drop(turn);
        Ok(Brought { number: claim.keep(), weights, started })
    }

    /// # Errors
    /// The load was stopped meanwhile.
    fn turn(&self, order: &Order) -> Result<MutexGuard<'_, ()>, String> {
        order.tell("waits for its turn", 0.0);
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if order.is_stopped() { Err(STOPPED.to_owned()) } else { Ok(turn) }
    }

    /// Promises a tensor model the bytes of its files before they are read, because others may come meanwhile.
    ///
    /// # Errors
    /// There are fewer left, and no other model will leave.
    fn claim_files(&self, order: &Order, number: usize, config: &ModelConfig) -> Result<(), String> {
        let ModelSource::File(path) = config.source() else { return Ok(()) };
        let bytes = tensors::files_bytes(&path);
        loop {
            let Err(left) = self.promised().resize(number, bytes) else { return Ok(()) };
            if !self.make_room(order) {
                return Err(too_large(bytes, left));
            }
        }
    }

    /// A file that is larger than what is left need not be read.
    fn check_file(&self, number: usize, config: &ModelConfig) -> Result<(), String> {
        let ModelSource::File(path) = config.source() else { return Ok(()) };
        let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
        let left = self.setup.machine.memory.saturating_sub(self.promised().beside(number));
        if bytes <= left || config.may_sleep() { Ok(()) } else { Err(too_large(bytes, left)) }
    }

    /// Sizes a model by what the others leave.
    ///
    /// # Errors
    /// There is too little memory.
    fn fit(&self, number: usize, devices: &Devices, loaded: &Loaded, sink: &ProgressSink) -> Result<Weights, Misfit> {
        let room = Room::beside(self.setup.machine, self.promised().beside(number));
        let sized = placing::place(&room, devices, vec![loaded.clone()], sink);
        if let Some((wanted, available)) = sized.budget.cuts.iter().find_map(|cut| match *cut {
            Cut::Memory { wanted, available } => Some((wanted, available)),
            _ => None,
        }) {
            return Err(Misfit::Short { wanted, available });
        }
        // What others took since the start is not there, either.
        let wanted = sized.weights.iter().map(|weights| weights.sizes.bytes()).sum::<u64>();
        let available = machine::look().memory;
        if wanted > available {
            return Err(Misfit::Short { wanted, available });
        }
        sized.tell();
        let weights = sized.weights.into_iter().next();
        weights.ok_or_else(|| Misfit::Fatal("it has no sizes".to_owned()))
    }

    /// Has a model serve from now on, in the place of what had its id.
    pub(super) fn publish(&self, order: &Order, config: ModelConfig, brought: Brought) -> Result<(), String> {
        let Brought { number, weights, started } = brought;
        let Some(api) = self.api() else { return Err("the server ends".to_owned()) };
        let (id, Started { model, ended, bounds }) = (&order.model, started);
        let replaced = api.publish(model.clone());
        {
            let mut state = self.state();
            if let Ok(resident) = state.resident(id) {
                resident.config = config;
                resident.hold(number, &weights, &Started { model, ended, bounds });
            }
        }
        // What it was given serves until its last request has ended.
        drop(replaced);
        self.share_cache();
        Ok(())
    }

    pub(super) fn promised(&self) -> MutexGuard<'_, Promised> {
        self.setup.starter.promised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_large(bytes: u64, left: u64) -> String {
    format!("needs {} for its weights alone, {} free", mib(bytes), mib(left))
}

/// An error with what is behind it, as far as it does not say so itself.
#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
fn said(error: ServerError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(behind) = source {
        let more = behind.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        source = behind.source();
    }
    text
}
