//! What an operation does to a model: brings it into memory, replaces it, or takes it out.
use std::time::Duration;

use camshaft_api::Absence;
use crossbeam_channel::RecvTimeoutError;

use super::ModelLife;
use super::order::Order;
use super::state::Hold;
use crate::config::{ModelConfig, SwapKey};

/// How often one who waits looks again.
const LOOK: Duration = Duration::from_millis(100);

impl ModelLife {
    /// Brings a model into memory that is configured.
    pub(super) fn load_now(&self, order: &Order) -> Result<(), String> {
        let id = &order.model;
        let config = self.state().resident(id).map_err(|error| error.to_string())?.config.clone();
        let brought = self.bring(order, &config)?;
        self.publish(order, config, brought)
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
        let again = self.bring(order, &before).and_then(|brought| self.publish(order, before, brought));
        if let Err(error) = &again {
            tracing::error!(model = id, error, "the model before could not be loaded again");
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
        // What the file says of it meanwhile is read when the operation ends.
        self.state().resident(id).map_err(|error| error.to_string())?.is_gone = true;
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
}
