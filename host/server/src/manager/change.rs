//! What an operation does, on a thread of its own: brings a model into memory, replaces it, or takes it out.
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use camshaft_api::{Absence, Change, ModelRefusal, Operation};
use camshaft_core::sizes::Cut;
use crossbeam_channel::RecvTimeoutError;

use super::Manager;
use super::state::{Hold, Origin, State};
use crate::config::{Format, LoadKey, ModelConfig, ModelSource, SwapKey};
use crate::devices::Devices;
use crate::error::ServerError;
use crate::machine;
use crate::placing;
use crate::progress::ProgressSink;
use crate::registry::Obtained;
use crate::sizing::{Room, mib};
use crate::start::Started;
use crate::weights::{Engines, Loaded, Weights};

/// How often one who waits looks again.
const LOOK: Duration = Duration::from_millis(100);

const PANICKED: &str = "it panicked; the log says more";

/// An operation that runs.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) operation: String,
    /// The id of the model that it changes.
    pub(super) model: String,
    manager: Arc<Manager>,
}

/// An operation that has begun, as it is told, and as it is carried out.
pub(super) type Entered = (Operation, Order);

/// A model that has come into memory and that nobody can ask for yet.
pub(super) struct Brought {
    number: usize,
    weights: Weights,
    started: Started,
}

impl Order {
    pub(super) fn tell(&self, stage: &str, progress: f64) {
        self.manager.state().operations.tell(&self.operation, stage, progress);
    }

    fn sink(&self) -> ProgressSink {
        let order = self.clone();
        ProgressSink::new(move |stage, per_cent| order.tell(stage, per_cent as f64 / 100.0))
    }
}

impl Manager {
    /// Begins an operation on a model that is not being changed.
    ///
    /// # Errors
    /// It is being changed, or too much is done at once.
    pub(super) fn begin(
        &self,
        change: Change,
        id: &str,
        work: impl FnOnce(&Self, &Order) -> Result<(), String> + Send + 'static,
    ) -> Result<Operation, ModelRefusal> {
        let entered = {
            let mut state = self.state();
            state.operations.check_room()?;
            self.enter(&mut state, change, id)?
        };
        self.run(entered, work)
    }

    /// Begins what the file wants of a model, as `state` has it. Nobody waits for it, so it is begun however much is done at once.
    pub(super) fn begin_told(
        &self,
        mut state: MutexGuard<'_, State>,
        change: Change,
        id: &str,
        work: impl FnOnce(&Self, &Order) -> Result<(), String> + Send + 'static,
    ) {
        let entered = self.enter(&mut state, change, id);
        drop(state);
        if let Err(refusal) = entered.and_then(|entered| self.run(entered, work)) {
            tracing::error!(model = id, %refusal, "the model is not changed");
        }
    }

    /// Has a thread carry out an operation that has begun.
    ///
    /// # Errors
    /// The server ends, or has no thread for it.
    pub(super) fn run(
        &self,
        (operation, order): Entered,
        work: impl FnOnce(&Self, &Order) -> Result<(), String> + Send + 'static,
    ) -> Result<Operation, ModelRefusal> {
        let ending = order.clone();
        let body = move || {
            let done = catch_unwind(AssertUnwindSafe(|| work(&order.manager, &order)));
            let done = done.unwrap_or_else(|_| Err(PANICKED.to_owned()));
            order.manager.end(&order, &done);
        };
        if let Err(error) = self.setup.spawner.spawn("model-change", Box::new(body)) {
            self.end(&ending, &Err(format!("no thread can be started: {error}")));
            return Err(ModelRefusal::Ending);
        }
        Ok(operation)
    }

    /// Carries out an operation on a model that is not being changed, on the thread that asks for it.
    ///
    /// # Errors
    /// As [`Manager::begin`]; those of `work`.
    pub(super) fn carry_out<T, E: From<ModelRefusal> + Display>(
        &self,
        change: Change,
        id: &str,
        work: impl FnOnce(&Order) -> Result<T, E>,
    ) -> Result<T, E> {
        let (_, order) = {
            let mut state = self.state();
            state.operations.check_room()?;
            self.enter(&mut state, change, id)?
        };
        let done = catch_unwind(AssertUnwindSafe(|| work(&order)));
        let said = match &done {
            Ok(done) => done.as_ref().map(drop).map_err(ToString::to_string),
            Err(_) => Err(PANICKED.to_owned()),
        };
        self.end(&order, &said);
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Notes that a model is being changed from now on. Whoever decides on the change by what the model is keeps `state` from there
    /// to here.
    ///
    /// # Errors
    /// It is being changed already.
    pub(super) fn enter(&self, state: &mut State, change: Change, id: &str) -> Result<Entered, ModelRefusal> {
        let manager = self.me.upgrade().ok_or(ModelRefusal::Ending)?;
        state.at_rest(id)?;
        let operation = state.operations.begin(change, id);
        state.resident(id)?.operation = Some(operation.id.clone());
        tracing::info!(model = id, operation = operation.id, ?change, "the model is being changed");
        let order = Order { operation: operation.id.clone(), model: id.to_owned(), manager };
        Ok((operation, order))
    }

    fn end(&self, order: &Order, done: &Result<(), String>) {
        let Order { operation, model, .. } = order;
        match done {
            Ok(()) => tracing::info!(model, operation, "the model was changed"),
            Err(why) => tracing::error!(model, operation, why, "the model could not be changed"),
        }
        let next = {
            let mut state = self.state();
            state.operations.end(operation, done.clone().err());
            let Some(resident) = state.residents.get_mut(model) else { return };
            resident.operation = None;
            if let Err(why) = done {
                resident.fail(why);
            }
            // Who has left hears nothing.
            resident.waiting.drain(..).for_each(|waits| drop(waits.send(done.clone())));
            resident.next.take()
        };
        self.share_cache();
        match next {
            Some(Some(config)) => self.want(&config),
            Some(None) => self.want_gone(model),
            None => {}
        }
    }

    /// Brings a model into memory that is configured.
    pub(super) fn load_now(&self, order: &Order) -> Result<(), String> {
        let id = &order.model;
        let (config, origin) = {
            let mut state = self.state();
            let resident = state.resident(id).map_err(|error| error.to_string())?;
            (resident.config.clone(), resident.origin)
        };
        let brought = self.bring(order, &config).and_then(|brought| self.publish(order, config.clone(), brought));
        let Err(why) = brought else { return Ok(()) };
        let Some(api) = self.api() else { return Err(why) };
        let never_served = {
            let mut state = self.state();
            let is_new = origin == Origin::Admin && config.load == LoadKey::Start && !config.may_sleep();
            is_new && state.residents.remove(id).is_some()
        };
        if never_served {
            api.withdraw(id);
        } else {
            // The next request tries again, after a while.
            let absence = if config.may_sleep() { Absence::Asleep } else { Absence::Failed(why.clone()) };
            api.publish_absent(config.naming(), config.expected_kind(), absence);
        }
        Err(why)
    }

    /// Puts a model in the place of the one that is in memory. Until it can serve, and if it cannot, the one before does.
    pub(super) fn swap_to(&self, order: &Order, config: ModelConfig) -> Result<(), String> {
        let id = &order.model;
        let before = {
            let mut state = self.state();
            let resident = state.resident(id).map_err(|error| error.to_string())?;
            if !resident.is_loaded() {
                resident.config = config;
                drop(state);
                return self.load_now(order);
            }
            resident.config.clone()
        };
        if config.swap == SwapKey::Beside {
            let brought = self.bring(order, &config)?;
            return self.publish(order, config, brought);
        }
        // Requests wait until the new one is there.
        let Some(api) = self.api() else { return Err("the server ends".to_owned()) };
        drop(api.publish_absent(before.naming(), before.expected_kind(), Absence::Asleep));
        self.free(order);
        let brought = self.bring(order, &config).and_then(|brought| self.publish(order, config, brought));
        let Err(why) = brought else { return Ok(()) };
        order.tell("loading the one before again", 0.0);
        let again = self.bring(order, &before).and_then(|brought| self.publish(order, before.clone(), brought));
        if let Err(error) = &again {
            tracing::error!(model = id, error, "the model before could not be loaded again");
            api.publish_absent(before.naming(), before.expected_kind(), Absence::Failed(why.clone()));
        }
        Err(why)
    }

    /// Serves a model no more, and forgets it when its last request has ended.
    pub(super) fn unload_now(&self, order: &Order) -> Result<(), String> {
        let id = &order.model;
        if let Some(api) = self.api() {
            drop(api.withdraw(id));
        }
        let workers = self.free(order);
        self.setup.starter.metrics.forget_workers(id, workers);
        self.state().residents.remove(id);
        self.share_cache();
        Ok(())
    }

    /// Takes a model out of memory until a request asks for it.
    pub(super) fn sleep_now(&self, order: &Order) -> Result<(), String> {
        let config = self.state().resident(&order.model).map_err(|error| error.to_string())?.config.clone();
        if let Some(api) = self.api() {
            drop(api.publish_absent(config.naming(), config.expected_kind(), Absence::Asleep));
        }
        let workers = self.free(order);
        self.setup.starter.metrics.forget_workers(&order.model, workers);
        // Somebody has asked for it meanwhile.
        if !self.state().resident(&order.model).is_ok_and(|resident| resident.waiting.is_empty()) {
            return self.load_now(order);
        }
        Ok(())
    }

    /// Waits until nothing of a model is in memory that nobody can ask for any more. Returns how many workers it had.
    fn free(&self, order: &Order) -> u32 {
        let (holds, workers) = {
            let mut state = self.state();
            let Ok(resident) = state.resident(&order.model) else { return 0 };
            let workers = resident.held.as_ref().map_or(0, |hold| hold.workers);
            let holds: Vec<Hold> = resident.held.take().into_iter().chain(resident.draining.drain(..)).collect();
            resident.since = crate::start::now();
            (holds, workers)
        };
        order.tell("draining: its last requests run", 0.0);
        for hold in holds {
            while hold.ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {}
            self.promised().release(hold.number);
        }
        workers
    }

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
    fn publish(&self, order: &Order, config: ModelConfig, brought: Brought) -> Result<(), String> {
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

    pub(super) fn promised(&self) -> std::sync::MutexGuard<'_, camshaft_core::promised::Promised> {
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
