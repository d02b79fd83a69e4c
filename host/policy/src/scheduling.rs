//! The scheduler hook of a model's pool, and the record of pools in which the native scheduler replaces a policy.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use camshaft_core::breaker::{BreakerSettings, BreakerState};
use camshaft_core::ids::{Generation, PolicyName};
use camshaft_core::policy::{
    Difference, Fault, Hook, NamedScheduler, Observation, PolicyEffect, PolicyState, PolicyStatus, SchedulerHook,
};

use crate::hooks::scheduler;
use crate::loaded::Loaded;
use crate::metrics::Outcome;
use crate::registry::Registry;
use crate::set::LoadedSet;

/// The models whose scheduler policy has faulted and not decided again since.
#[derive(Debug, Default)]
pub(crate) struct Replacements {
    by_model: Mutex<BTreeMap<String, Replacement>>,
}

#[derive(Debug)]
struct Replacement {
    policy: PolicyName,
    /// The load that faulted. Another one has not.
    load: Generation,
    fault: String,
}

impl Replacements {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Replacement>> {
        self.by_model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds to the status of the schedulers of `set` in which models they are replaced, and why.
    pub(crate) fn show(&self, statuses: &mut [PolicyStatus], set: &LoadedSet) {
        for (model, replaced) in self.lock().iter().filter(|(model, replaced)| replaced.load == load_of(set, model)) {
            let is_it = |status: &&mut PolicyStatus| {
                status.hook == Hook::Scheduler
                    && status.name == replaced.policy.as_str()
                    && matches!(status.state, PolicyState::Active | PolicyState::Replaced | PolicyState::Rejected)
            };
            let Some(status) = statuses.iter_mut().find(is_it) else { continue };
            if let Some(health) = &mut status.health {
                health.breaker = BreakerState::Open;
            }
            if status.state == PolicyState::Active {
                status.state = PolicyState::Replaced;
            }
            if status.effect == PolicyEffect::Decides {
                status.effect = PolicyEffect::None;
            }
            let text = format!("model {model}: replaced by the native scheduler since a fault: {}", replaced.fault);
            status.error = Some(match status.error.take() {
                Some(before) => format!("{before}; {text}"),
                None => text,
            });
        }
    }
}

/// The load that decides in a model's pool where nothing is on trial; 0: the native scheduler.
fn load_of(set: &LoadedSet, model: &str) -> Generation {
    number_of(set.chain(Hook::Scheduler).scheduler(model))
}

/// What tells a load from all others.
fn number_of(policy: Option<&Arc<Loaded>>) -> Generation {
    Generation(policy.map_or(0, |policy| policy.number))
}

/// Opens the schedulers of one model's pool.
pub(crate) struct ModelScheduler {
    model: String,
    registry: Arc<Registry>,
    replacements: Arc<Replacements>,
    /// The load that the pool opened last.
    opened: Mutex<Weak<Loaded>>,
    /// The scheduler that the pool monitors.
    monitored: Mutex<Option<Arc<Loaded>>>,
}

impl fmt::Debug for ModelScheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelScheduler").field("model", &self.model).finish_non_exhaustive()
    }
}

impl ModelScheduler {
    pub(crate) fn new(model: &str, registry: Arc<Registry>, replacements: Arc<Replacements>) -> Self {
        let model = model.to_owned();
        Self { model, registry, replacements, opened: Mutex::default(), monitored: Mutex::default() }
    }

    fn monitored_policy(&self) -> MutexGuard<'_, Option<Arc<Loaded>>> {
        self.monitored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The policy that decides now: a new version in its slots, and else what served before.
    fn in_turn(&self, now: Duration) -> Option<Arc<Loaded>> {
        let set = self.registry.current();
        let picks = set.picks(Hook::Scheduler, |canary, salt| canary.has_turn(salt, &self.model, now));
        set.variant(Hook::Scheduler, picks).scheduler(&self.model).cloned()
    }

    fn is_candidate(&self, policy: &Arc<Loaded>) -> bool {
        self.registry.current().candidates(Hook::Scheduler).iter().any(|candidate| Arc::ptr_eq(candidate, policy))
    }

    /// The load that was opened last, if it is of this policy.
    fn opened(&self, plugin: &PolicyName) -> Option<Arc<Loaded>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        opened.filter(|policy| policy.name == *plugin)
    }
}

impl SchedulerHook for ModelScheduler {
    fn generation(&self, now: Duration) -> Generation {
        number_of(self.in_turn(now).as_ref())
    }

    fn breaker(&self, now: Duration) -> BreakerSettings {
        match self.in_turn(now) {
            // The first fault ends a trial.
            Some(policy) if self.is_candidate(&policy) => BreakerSettings::SINGLE,
            Some(policy) => policy.sidecar.breaker,
            None => BreakerSettings::SINGLE,
        }
    }

    fn open(&self, now: Duration) -> Result<Option<NamedScheduler>, Fault> {
        let Some(policy) = self.in_turn(now) else { return Ok(None) };
        *self.opened.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&policy);
        scheduler::open(&policy, &self.model).map(Some)
    }

    fn refused(&self, fault: &Fault) {
        if let Some(policy) = self.opened(&fault.plugin) {
            policy.metrics.count(Outcome::Fault(fault.kind));
            // As a call it was answered.
            policy.health.judge_fault(true);
        }
        let (model, plugin, detail) = (self.model.as_str(), fault.plugin.as_str(), fault.detail.as_str());
        tracing::warn!(hook = Hook::Scheduler.as_str(), model, plugin, detail, "a scheduler's actions were refused");
    }

    fn replaced(&self, fault: &Fault) {
        let (policy, text) = (fault.plugin.clone(), fault.to_string());
        let (model, plugin) = (self.model.as_str(), policy.as_str());
        tracing::warn!(model, plugin, fault = text, "the native scheduler takes over from a policy that faulted");
        let opened = self.opened(&fault.plugin);
        let load = number_of(opened.as_ref());
        if let Some(policy) = opened {
            policy.note_opened(fault, None, Some(model));
        }
        self.replacements.lock().insert(self.model.clone(), Replacement { policy, load, fault: text });
    }

    fn returned(&self, policy: Option<&PolicyName>) {
        self.replacements.lock().remove(&self.model);
        let (model, plugin) = (self.model.as_str(), policy.map(PolicyName::as_str));
        if let Some(policy) = policy.and_then(|policy| self.opened(policy)) {
            policy.note_return(Some(model));
        }
        match plugin {
            Some(plugin) => tracing::info!(model, plugin, "the scheduler policy decides again"),
            None => tracing::info!(model, "the native scheduler decides: no policy is in force any more"),
        }
    }

    fn monitored(&self) -> Option<Generation> {
        let set = self.registry.current();
        set.chain(Hook::Scheduler).monitored_scheduler(&self.model).map(|policy| Generation(policy.number))
    }

    fn monitored_breaker(&self) -> BreakerSettings {
        let set = self.registry.current();
        set.chain(Hook::Scheduler)
            .monitored_scheduler(&self.model)
            .map_or(BreakerSettings::SINGLE, |policy| policy.sidecar.breaker)
    }

    fn open_monitored(&self) -> Result<Option<NamedScheduler>, Fault> {
        let policy = self.registry.current().chain(Hook::Scheduler).monitored_scheduler(&self.model).cloned();
        *self.monitored_policy() = policy.clone();
        policy.map(|policy| scheduler::open(&policy, &self.model)).transpose()
    }

    fn observed(&self, seen: Observation<'_>) {
        let policy = self.monitored_policy().clone();
        let Some(policy) = policy else { return };
        let (model, plugin) = (self.model.as_str(), policy.name.as_str());
        match seen {
            Observation::Differs(kind) => {
                policy.note_difference(kind, None);
                if kind == Difference::Overflow {
                    tracing::warn!(
                        model,
                        plugin,
                        "too many requests wait for a monitored scheduler: it is asked no more"
                    );
                }
            }
            Observation::Waited(waits) => {
                policy.metrics.waited(model, waits);
                policy.monitored.waited(model, waits);
            }
            Observation::Waiting(waiting) => policy.monitored.waiting(model, waiting),
            Observation::Skipped => {
                policy.metrics.count(Outcome::Skipped);
                policy.monitored.skipped(model);
            }
            Observation::Refused(fault) => {
                policy.metrics.count(Outcome::Fault(fault.kind));
                let detail = fault.detail.as_str();
                tracing::warn!(model, plugin, detail, "a monitored scheduler's actions were refused");
            }
            Observation::Opened { fault, pause } => {
                policy.monitored.opened(model, true);
                policy.note_opened(fault, Some(pause), Some(model));
            }
            Observation::Closed => {
                policy.monitored.opened(model, false);
                policy.note_return(Some(model));
            }
        }
    }
}

impl Drop for ModelScheduler {
    fn drop(&mut self) {
        self.replacements.lock().remove(&self.model);
    }
}
