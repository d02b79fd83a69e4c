//! The life of an operation: how it begins, who carries it out, and what follows its end.
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use camshaft_api::{Absence, Change, ModelRefusal, Operation};

use super::ModelLife;
use super::state::{Origin, Resident, State, Wish};
use crate::progress::ProgressSink;

const PANICKED: &str = "it panicked; the log says more";

/// An operation that runs.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) operation: String,
    /// The id of the model that it changes.
    pub(super) model: String,
    /// It does what the file says.
    by_file: bool,
    /// Becomes true where the model is not wanted any more that it brings into memory.
    stop: Arc<AtomicBool>,
    life: Arc<ModelLife>,
}

/// An operation that has begun, as it is told, and as it is carried out.
pub(super) type Entered = (Operation, Order);

impl Order {
    pub(super) fn tell(&self, stage: &str, progress: f64) {
        self.life.state().operations.tell(&self.operation, stage, progress);
    }

    pub(super) fn sink(&self) -> ProgressSink {
        let order = self.clone();
        let sink = ProgressSink::new(move |stage, per_cent| order.tell(stage, per_cent as f64 / 100.0));
        sink.until(self.stop.clone())
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

impl ModelLife {
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
        let entered = self.enter(&mut self.state(), change, id)?;
        self.run(entered, work)
    }

    /// Begins what the file says of a model, as `state` has it. Nobody waits for it: where too much is done at once, it is begun when
    /// another operation has ended.
    pub(super) fn begin_unattended(
        &self,
        mut state: MutexGuard<'_, State>,
        change: Change,
        wish: Wish,
        work: impl FnOnce(&Self, &Order) -> Result<(), String> + Send + 'static,
    ) {
        let id = wish.id().to_owned();
        let entered = self.enter(&mut state, change, &id);
        if let (Err(ModelRefusal::TooMany { .. }), Ok(resident)) = (&entered, state.resident(&id)) {
            tracing::info!(model = id, "what the file says of the model waits until another operation has ended");
            resident.next = Some(wish);
            return;
        }
        drop(state);
        let begun =
            entered.and_then(|(operation, order)| self.run((operation, Order { by_file: true, ..order }), work));
        if let Err(refusal) = begun {
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
            let done = catch_unwind(AssertUnwindSafe(|| work(&order.life, &order)));
            let done = done.unwrap_or_else(|_| Err(PANICKED.to_owned()));
            order.life.end(&order, &done);
        };
        if let Err(error) = self.setup.spawner.spawn("model-change", Box::new(body)) {
            // Nothing that waits is begun here: it may be what has just been tried, and as much may wait as there are models.
            let wish = self.close(&ending, &Err(format!("no thread can be started: {error}")));
            self.follow_wish(wish);
            return Err(ModelRefusal::Ending);
        }
        Ok(operation)
    }

    /// Carries out an operation on a model that is not being changed, on the thread that asks for it.
    ///
    /// # Errors
    /// As [`ModelLife::begin`]; those of `work`.
    pub(super) fn carry_out<T, E: From<ModelRefusal> + Display>(
        &self,
        change: Change,
        id: &str,
        work: impl FnOnce(&Order) -> Result<T, E>,
    ) -> Result<T, E> {
        let (_, order) = self.enter(&mut self.state(), change, id)?;
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
    /// It is being changed already, or too much is done at once.
    pub(super) fn enter(&self, state: &mut State, change: Change, id: &str) -> Result<Entered, ModelRefusal> {
        state.unchanging(id)?;
        state.operations.check_room()?;
        self.admit(state, change, id)
    }

    /// The same however much is done at once.
    ///
    /// # Errors
    /// The model is being changed already.
    pub(super) fn admit(&self, state: &mut State, change: Change, id: &str) -> Result<Entered, ModelRefusal> {
        let life = self.me.upgrade().ok_or(ModelRefusal::Ending)?;
        state.unchanging(id)?;
        let operation = state.operations.begin(change, id);
        let stop = Arc::<AtomicBool>::default();
        let resident = state.resident(id)?;
        (resident.operation, resident.stop) = (Some(operation.id.clone()), stop.clone());
        tracing::info!(model = id, operation = operation.id, ?change, "the model is being changed");
        let order = Order { operation: operation.id.clone(), model: id.to_owned(), by_file: false, stop, life };
        Ok((operation, order))
    }

    /// What follows an operation, on the thread that carried it out.
    fn end(&self, order: &Order, done: &Result<(), String>) {
        let wish = self.close(order, done);
        self.follow_wish(wish);
        self.share_cache();
        loop {
            let waiting = self.state().take_waiting();
            if waiting.is_none() {
                return;
            }
            self.follow_wish(waiting);
        }
    }

    fn follow_wish(&self, wish: Option<Wish>) {
        match wish {
            Some(Wish::Present(config)) => self.want(&config),
            Some(Wish::Gone(id)) => self.want_gone(&id),
            None => {}
        }
    }

    /// Notes what came of an operation, and tells those who wait. Returns what the file has said of the model meanwhile.
    fn close(&self, order: &Order, done: &Result<(), String>) -> Option<Wish> {
        let Order { operation, model, .. } = order;
        match done {
            Ok(()) => tracing::info!(model, operation, "the model was changed"),
            Err(why) => tracing::error!(model, operation, why, "the model could not be changed"),
        }
        let mut state = self.state();
        state.operations.end(operation, done.clone().err());
        let resident = state.residents.get_mut(model)?;
        resident.operation = None;
        let wish = resident.next.take();
        if let Err(why) = done {
            resident.fail(why, order.by_file);
            if !resident.is_loaded() {
                // There is nothing that would have to be unloaded.
                resident.is_gone |= matches!(wish, Some(Wish::Gone(_)));
                self.say_not_loaded(resident, why);
            }
        }
        resident.waiting.answer(done);
        if resident.is_gone {
            state.residents.remove(model);
        }
        wish
    }

    /// Says of a model that could not be loaded that it is not there. One that an order named and that has never served is gone.
    fn say_not_loaded(&self, resident: &mut Resident, why: &str) {
        let config = &resident.config;
        resident.is_gone |= resident.origin == Origin::Admin && !resident.has_served() && !config.may_sleep();
        let Some(api) = self.api() else { return };
        if resident.is_gone {
            drop(api.withdraw(&config.id));
            return;
        }
        // The next request tries one again that may sleep, after a while.
        let absence = if config.may_sleep() { Absence::Asleep } else { Absence::Failed(why.to_owned()) };
        drop(api.publish_absent(config.naming(), config.expected_kind(), absence));
    }
}
