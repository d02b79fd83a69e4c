//! Brings a model into memory: has its file, finds room for it, starts its threads, and has requests find it.
use std::sync::{MutexGuard, PoisonError};

use camshaft_core::promised::Promised;
use camshaft_core::sizes::Cut;

use super::Manager;
use super::order::Order;
use crate::config::{Format, ModelConfig, ModelSource};
use crate::devices::Devices;
use crate::error::ServerError;
use crate::machine;
use crate::placing;
use crate::registry::Obtained;
use crate::sizing::{Room, mib};
use crate::start::Started;
use crate::weights::{Engines, Loaded, Weights};

/// A model that has come into memory and that nobody can ask for yet.
pub(super) struct Brought {
    number: usize,
    weights: Weights,
    started: Started,
}

impl Manager {
    /// Loads a model, finds room for it and starts its threads.
    ///
    /// # Errors
    /// Why it cannot serve. Nothing of it stays in memory.
    pub(super) fn bring(&self, order: &Order, config: &ModelConfig) -> Result<Brought, String> {
        let turn = || self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let (sink, engines) = (order.sink(), self.setup.engines);
        // Others may be loaded while this one is pulled.
        let Obtained { config, held } = engines.obtain(&self.setup.cache, config, &sink).map_err(said)?;
        let config = &config;
        order.tell("waits for its turn", 0.0);
        let mut having = Some(turn());
        let number = {
            let mut promised = self.promised();
            let number = promised.next_number();
            promised.promise(number, 0);
            number
        };
        // Trying one may take minutes, as its layers say, and nothing of it is sized by what the others leave.
        let apart = Format::of(&config.file_name()) == Format::Tensors;
        if apart {
            having = None;
        }
        let brought = (|| {
            let devices = match engines {
                Engines::Llama => Devices::look().map_err(said)?,
                Engines::Fake => Devices::default(),
            };
            self.check_file(number, config)?;
            let loaded = engines.load(config, self.setup.digest, &devices, &sink).map_err(said)?;
            let loaded = Loaded { held, ..loaded };
            having = having.take().or_else(|| Some(turn()));
            let weights = loop {
                let room = Room::beside(self.setup.machine, self.promised().beside(number));
                let sized = placing::place(&room, &devices, vec![loaded.clone()], self.setup.digest, &sink);
                let mut sized = sized.map_err(said)?;
                let short = sized.budget.cuts.iter().find_map(|cut| match *cut {
                    Cut::Memory { wanted, available } => Some((wanted, available)),
                    _ => None,
                });
                // What others took since the start is not there, either.
                let needs = sized.weights.iter().map(|weights| weights.sizes.bytes()).sum::<u64>();
                let free = machine::look().memory;
                let short = short.or((needs > free).then_some((needs, free)));
                match (short, sized.weights.pop()) {
                    (None, Some(weights)) => {
                        sized.weights.push(weights.clone());
                        sized.tell();
                        break weights;
                    }
                    (None, None) => return Err("it has no sizes".to_owned()),
                    (Some((wanted, available)), _) => {
                        // Others may load while this one waits.
                        having = None;
                        if !self.make_room(order) {
                            return Err(format!("needs {}, {} free", mib(wanted), mib(available)));
                        }
                        having = Some(turn());
                    }
                }
            };
            self.promised().promise(number, weights.sizes.bytes());
            if apart {
                having = None;
            }
            order.tell("its threads start", 0.0);
            let started = self.setup.starter.start(number, &weights).map_err(said)?;
            Ok(Brought { number, weights, started })
        })();
        drop(having);
        brought.inspect_err(|_| self.promised().release(number))
    }

    /// A file that is larger than what is left need not be read.
    fn check_file(&self, number: usize, config: &ModelConfig) -> Result<(), String> {
        let ModelSource::File(path) = config.source() else { return Ok(()) };
        let bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
        let left = self.setup.machine.memory.saturating_sub(self.promised().beside(number));
        if bytes <= left || config.may_sleep() {
            return Ok(());
        }
        Err(format!("needs {} for its weights alone, {} free", mib(bytes), mib(left)))
    }

    /// Has a model serve from now on, in the place of what had its id.
    pub(super) fn publish(&self, order: &Order, config: ModelConfig, brought: Brought) -> Result<(), String> {
        let Brought { number, weights, started } = brought;
        let Some(api) = self.api() else { return Err("the server ends".to_owned()) };
        let (health, files) = (started.model.health.clone(), weights.loaded.mapped_files());
        let (id, Started { model, ended, bounds }) = (&order.model, started);
        let replaced = api.publish(model.clone()).map_err(|error| {
            // Nobody has asked it for anything.
            self.promised().release(number);
            error.to_string()
        })?;
        self.setup.files.add(id, &health, &files);
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
