//! Looks after models while nobody orders anything: what has been drained is counted as free, what nobody uses goes to sleep,
//! and what a model that comes needs is taken from those that nobody uses.
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_api::Change;

use super::ModelLife;
use super::order::Order;
use crate::error::ServerError;
use crate::supervisor::{ShutdownStage, Stop};

/// How often it looks.
const LOOK: Duration = Duration::from_millis(250);
/// A model that has come into memory stays there at least so long, so that models that are asked for in turn do not spend their
/// time on loading.
const RESIDENCE: Duration = Duration::from_secs(10);
/// How often one looks that waits for others to be used no more.
const WAIT: Duration = Duration::from_millis(100);

impl ModelLife {
    /// Starts the thread that looks after models.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn keep(self: &Arc<Self>) -> Result<(), ServerError> {
        let life = self.clone();
        let look = move |stop: &Stop| {
            while !stop.wait(LOOK) {
                life.look(Instant::now());
            }
        };
        self.setup.starter.supervisor.spawn(ShutdownStage::Dispatch, "model-keeper", look)
    }

    pub(super) fn look(&self, now: Instant) {
        let Some(api) = self.api() else { return };
        let (mut ended, mut idle) = (Vec::new(), Vec::new());
        for (id, resident) in &mut self.state().residents {
            resident.draining.retain(|hold| {
                let has_ended = hold.has_ended();
                if has_ended {
                    ended.push(hold.number);
                }
                !has_ended
            });
            resident.note_use(api.usage(id), now);
            if resident.is_idle_for(resident.config.keep_alive.map(|time| time.0), now) {
                idle.push(id.clone());
            }
        }
        let has_ended = !ended.is_empty();
        ended.into_iter().for_each(|number| self.promised().release(number));
        if has_ended {
            self.share_cache();
        }
        for id in idle {
            // One that is being changed is not idle.
            let _ = self.begin(Change::Sleep, &id, Self::sleep_now);
        }
    }

    /// Divides the prefix cache among the workers that there are.
    pub(super) fn share_cache(&self) {
        let workers = self.state().caching_workers();
        let mut share = self.setup.share.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if share.workers == workers {
            return;
        }
        share.workers = workers;
        self.setup.tuning.send_if_modified(|tuning| {
            let before = tuning.ram_bytes;
            tuning.ram_bytes = tuning.cache_bytes / workers.max(1);
            tuning.ram_bytes != before
        });
    }

    /// Takes a model out of memory that nobody uses, the one first that was unused for longest. One that is used, or has just
    /// come, may be unused later: as long as somebody waits for the model of `order`, this waits, too. False: there is nothing to
    /// hope for.
    pub(super) fn make_room(&self, order: &Order) -> bool {
        let now = Instant::now();
        let Some(api) = self.api() else { return false };
        let sleep = {
            let mut state = self.state();
            for (id, resident) in &mut state.residents {
                resident.note_use(api.usage(id), now);
            }
            let others = || state.residents.iter().filter(|(id, resident)| **id != order.model && resident.may_leave());
            if others().next().is_none() {
                return false;
            }
            let idle = others().filter(|(_, resident)| {
                resident.is_idle_for(Some(Duration::ZERO), now)
                    && now.saturating_duration_since(resident.came) >= RESIDENCE
            });
            let victim = idle.min_by_key(|(_, resident)| resident.used).map(|(id, _)| id.clone());
            // However much is done at once: as many as may load would wait for each other otherwise.
            victim.map(|victim| self.admit(&mut state, Change::Sleep, &victim))
        };
        if let Some(sleep) = sleep {
            let Ok(sleep) = sleep.and_then(|sleep| self.run(sleep, Self::sleep_now)) else { return false };
            order.tell(&format!("waits for memory: {} goes to sleep", sleep.model), 0.0);
            while self.state().operations.get(&sleep.id).is_some_and(|sleep| !sleep.is_over()) {
                std::thread::sleep(WAIT);
            }
            return true;
        }
        order.tell("waits for memory: other models are in use", 0.0);
        std::thread::sleep(WAIT);
        !order.is_stopped() && self.state().resident(&order.model).is_ok_and(|resident| resident.waiting.is_waited())
    }
}
