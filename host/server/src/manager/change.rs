//! What an operation does to a model: brings it into memory, replaces it, or takes it out.
use std::time::Duration;

use camshaft_api::Absence;
use crossbeam_channel::RecvTimeoutError;

use super::Manager;
use super::order::Order;
use super::state::{Hold, Origin};
use crate::config::{ModelConfig, SwapKey};

/// How often one who waits looks again.
const LOOK: Duration = Duration::from_millis(100);

impl Manager {
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
}
