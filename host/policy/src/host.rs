//! The policy host: the runtime, what serves, and the threads that keep it so.
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use camshaft_core::breaker::BreakerState;
use camshaft_core::canary::Tally;
use camshaft_core::filter::{FilterHook, FilteringRequest, TextFilter};
use camshaft_core::ids::PolicyDigest;
use camshaft_core::policy::{
    Fault, Hook, ModeError, NoSampler, Policies, PolicyChange, PolicyCheck, PolicyEffect, PolicyHistory, PolicyOrder,
    PolicySet, PolicyStatus, SamplerHook, SamplingRequest, SchedulerHook, TokenSampler,
};
use crossbeam_channel::{Sender, bounded, never};

use crate::dry_run::Checks;
use crate::engine::Ticker;
use crate::error::PolicyError;
use crate::grants::Grants;
use crate::hooks::{filter, sampler};
use crate::load::{Claim, Demands, Loader};
use crate::metrics::PolicyMetrics;
use crate::registry::Registry;
use crate::replica::{Noted, Replication};
use crate::runtime::Runtime;
use crate::sandbox::CompileProgram;
use crate::scheduling::{ModelScheduler, Replacements};
use crate::view::View;
use crate::watch::{self, PolicyWatch, Request};
use camshaft_core::threads::Spawner;

/// Reload requests that may wait.
const REQUESTS: usize = 4;

/// How policies are found and run.
#[derive(Debug, Clone)]
pub struct PolicyConfig {
    /// The policy directory; `None`: the native defaults serve.
    pub dir: Option<PathBuf>,
    /// Whether a directory that is missing or has no policies may be begun with. Once there are some, their files must not
    /// just vanish, whatever this says.
    pub allow_empty: bool,
    /// How often the directory is scanned where the system tells of no changes.
    pub poll: Duration,
    /// Where compiled code is kept: the host's alone (made with mode 0700). `None`: it is not kept.
    pub cache_dir: Option<PathBuf>,
    /// What compiles components, in processes with bounds; `None`: this process does.
    pub compiler: Option<CompileProgram>,
    /// What policies may have of what can be withheld.
    pub grants: Grants,
    /// Whether callers that no auth policy identifies are let in from anywhere, not only from loopback addresses.
    pub allow_anonymous: bool,
}

/// Loads policies, keeps them current, and answers the five hooks with them.
#[derive(Debug)]
pub struct PolicyHost {
    registry: Arc<Registry>,
    replacements: Arc<Replacements>,
    history: Arc<Mutex<PolicyHistory>>,
    /// `None`: there is no directory.
    checks: Option<Checks>,
    /// The same.
    runtime: Option<Arc<Runtime>>,
    threads: Mutex<Option<PolicyThreads>>,
}

#[derive(Debug)]
struct PolicyThreads {
    requests: Sender<Request>,
    /// `None`: the owner of the process runs it.
    watcher: Option<JoinHandle<()>>,
    /// Last: deadlines must pass as long as the watcher calls guests.
    _ticker: Ticker,
}

impl PolicyHost {
    /// Loads the policies that are there and begins to watch for changes. Metrics go into `registry`.
    ///
    /// # Errors
    /// The runtime, a thread or a metric cannot be had, or a directory cannot be read or has no policies. A policy that
    /// cannot be loaded is none: it is in [`Policies::status`], and an auth or validator policy then fails every request
    /// that needs it.
    pub fn start(config: PolicyConfig, registry: &prometheus::Registry) -> Result<Arc<Self>, PolicyError> {
        let (host, watch) = Self::load(config, registry, Spawner::detached())?;
        if let Some(mut watch) = watch {
            // Requests end it: see `stop`.
            let run = move || watch.run(&never());
            let watcher = std::thread::Builder::new().name(PolicyWatch::THREAD.to_owned()).spawn(run);
            let watcher = watcher.map_err(|source| PolicyError::Thread { name: PolicyWatch::THREAD, source })?;
            if let Some(threads) = &mut *host.threads.lock().unwrap_or_else(PoisonError::into_inner) {
                threads.watcher = Some(watcher);
            }
        }
        Ok(host)
    }

    /// As [`PolicyHost::start`], for a process that owns its threads: changes are noticed while something runs the
    /// [`PolicyWatch`] (none without a directory), and `spawner` starts the threads that compile.
    ///
    /// # Errors
    /// As [`PolicyHost::start`].
    pub fn load(
        config: PolicyConfig,
        registry: &prometheus::Registry,
        spawner: Spawner,
    ) -> Result<(Arc<Self>, Option<PolicyWatch>), PolicyError> {
        let serving = Arc::new(Registry::new(config.allow_anonymous));
        let Some(dir) = config.dir else {
            PolicyMetrics::register(registry)?;
            let (replacements, history, checks, threads) = Default::default();
            let host = Self { registry: serving, replacements, history, checks, runtime: None, threads };
            return Ok((Arc::new(host), None));
        };
        let runtime = Arc::new(Runtime::new(config.cache_dir.as_deref(), config.compiler)?);
        let ticker = Ticker::start(runtime.engines(), &runtime.clock)?;
        serving.tell(runtime.feeds.clone());
        let checks = Some(Checks::new(runtime.clone()));
        let mut loader = Loader::new(dir, runtime.clone(), serving.clone(), registry, spawner)?.granting(config.grants);
        loader.start()?;
        if !config.allow_empty {
            loader.refuse_empty()?;
        }
        let (requests, received) = bounded(REQUESTS);
        let threads = PolicyThreads { requests, watcher: None, _ticker: ticker };
        let (replacements, history, threads) = (Arc::default(), loader.history(), Mutex::new(Some(threads)));
        let host = Self { registry: serving, replacements, history, checks, runtime: Some(runtime), threads };
        Ok((Arc::new(host), Some(PolicyWatch::new(loader, received, config.poll))))
    }

    /// Scans the policy directory now and returns when what is there serves or was rejected. Waits about a second
    /// for files that are being written.
    ///
    /// # Errors
    /// Too many others wait, or there was no answer (it may still happen).
    pub fn reload(&self) -> Result<(), PolicyError> {
        let Some(requests) = self.requests() else { return Ok(()) };
        watch::ask(&requests, Request::Reload).flatten()
    }

    /// Serves what another directory holds from now on, under these grants, all of it or nothing. Of the same directory, what
    /// is revoked is gone when this returns, and no demand is made.
    ///
    /// # Errors
    /// The directory has no policies, lacks what is demanded, cannot be read, or holds a policy that cannot serve; a newer
    /// call came before its policies were compiled; or there was no answer. Nothing changes then, later neither.
    pub fn relocate(&self, dir: PathBuf, poll: Duration, demands: Demands, grants: Grants) -> Result<(), PolicyError> {
        let requests = self.requests().ok_or(PolicyError::Unanswered)?;
        let claim = Claim::default();
        let wanted = claim.clone();
        match watch::ask(&requests, |done| Request::Relocate { dir, poll, demands, grants, claim: wanted, done }) {
            // It is being done, and cannot fail any more.
            Err(_) if !claim.take() => Ok(()),
            answered => answered?,
        }
    }

    /// The scheduler hook of one model's pool. A policy that faults in one pool may serve in others.
    pub fn scheduler(&self, model: &str) -> Arc<dyn SchedulerHook> {
        Arc::new(ModelScheduler::new(model, self.registry.clone(), self.replacements.clone()))
    }

    /// For another process that is to run samplers and filters; `None`: there never are any.
    ///
    /// # Errors
    /// Compiled code is not kept where that process could find it.
    pub fn replicate(&self) -> Result<Option<Replication>, PolicyError> {
        let Some(runtime) = &self.runtime else { return Ok(None) };
        if runtime.code_dir().is_none() {
            return Err(PolicyError::NoCodeDirectory);
        }
        Ok(Some(Replication::new(self.registry.clone(), runtime.clone())))
    }

    /// Counts what happened in such a process, by the number of its [`Replication`].
    pub fn note(&self, noted: Noted, process: u64) {
        if let Some(runtime) = &self.runtime {
            self.registry.take_notes(noted, process, &runtime.feeds);
        }
    }

    /// Generations of policies in memory: the one that serves, and those with which requests that still run began.
    pub fn generations(&self) -> usize {
        self.registry.generations()
    }

    fn requests(&self) -> Option<Sender<Request>> {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.as_ref().map(|threads| threads.requests.clone())
    }

    /// Ends the watcher and the deadlines. What is loaded goes on serving, but nothing stops a guest that spins: call it
    /// when serving is over.
    pub fn stop(&self) {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(PolicyThreads { requests, watcher, _ticker }) = threads else { return };
        let Some(watcher) = watcher else { return };
        // The thread is gone if nobody receives.
        let _ = requests.send(Request::Stop);
        if watcher.join().is_err() {
            tracing::error!("the policy watcher panicked");
        }
    }
}

impl Drop for PolicyHost {
    fn drop(&mut self) {
        self.stop();
    }
}

impl PolicyHost {
    /// Adds how the policies do just now, which changes without a change of their files.
    fn refresh(&self, statuses: &mut [PolicyStatus]) {
        let current = self.registry.current();
        for status in statuses.iter_mut() {
            if let Some(canary) = &mut status.canary {
                let mut candidates = current.candidates(status.hook).iter();
                let candidate = candidates.rfind(|candidate| candidate.name.as_str() == status.name);
                if let Some(Tally { calls, faults }) = candidate.map(|candidate| candidate.health.tally()) {
                    (canary.calls, canary.faults) = (calls, faults);
                }
            }
            let Some(health) = &mut status.health else { continue };
            let mut loaded = current.ready(status.hook).filter(|loaded| loaded.name.as_str() == status.name);
            if let Some(loaded) = loaded.next() {
                *health = loaded.report(health.last_good.take());
                if health.breaker == BreakerState::Open && status.effect == PolicyEffect::Decides {
                    status.effect = loaded.on_fault().effect(status.hook);
                }
            }
        }
        self.replacements.show(statuses, &current);
    }
}

impl Policies for PolicyHost {
    fn current(&self) -> Arc<dyn PolicySet> {
        Arc::new(View::stable(self.registry.current()))
    }

    fn status(&self) -> Vec<PolicyStatus> {
        let mut statuses = self.registry.statuses().to_vec();
        self.refresh(&mut statuses);
        statuses
    }

    fn history(&self) -> Vec<PolicyChange> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).changes()
    }

    fn change(&self, order: PolicyOrder) -> Result<PolicyStatus, ModeError> {
        let no_policy = || ModeError::NoPolicy { hook: order.hook, name: order.name.clone() };
        let requests = self.requests().ok_or_else(no_policy)?;
        let asked = watch::ask(&requests, |done| Request::order(order, &self.registry.statuses(), done));
        let mut status = asked.map_err(|_| ModeError::Unanswered)??;
        self.refresh(std::slice::from_mut(&mut status));
        Ok(status)
    }

    fn check(&self, component: Vec<u8>, settings: Option<&str>) -> Result<PolicyCheck, ModeError> {
        let checks = self.checks.as_ref().ok_or(ModeError::NoHost)?;
        checks.check(&component, settings)
    }
}

impl SamplerHook for PolicyHost {
    fn open(&self, chain: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        sampler::open(self.registry.find(Hook::Sampler, chain), request)
    }
}

impl FilterHook for PolicyHost {
    fn open(&self, chain: PolicyDigest, request: &FilteringRequest) -> Result<Vec<Box<dyn TextFilter>>, Fault> {
        filter::open(&self.registry.find(Hook::Filter, chain), request)
    }
}

/// Loads a directory without serving, and tells how each of its policies stands. Compiled code is kept in `cache_dir`.
///
/// # Errors
/// The runtime cannot be had, or a directory cannot be read.
pub fn check_dir(dir: &Path, cache_dir: Option<&Path>) -> Result<Vec<PolicyStatus>, PolicyError> {
    let metrics = prometheus::Registry::new();
    let registry = Arc::new(Registry::new(false));
    let runtime = Arc::new(Runtime::new(cache_dir, None)?);
    let _ticker = Ticker::start(runtime.engines(), &runtime.clock)?;
    let mut loader = Loader::new(dir.to_path_buf(), runtime, registry.clone(), &metrics, Spawner::detached())?;
    loader.start()?;
    Ok(registry.statuses().to_vec())
}
