//! A configuration that changes while the server runs: read again, checked whole, and only then put in force.
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camshaft_api::{Api, ApiLimits, Control, Reloaded};
use camshaft_policy::PolicyHost;
use prometheus::IntCounterVec;
use serde_json::{Map, Value, json};
use tokio::sync::watch;

use crate::config::{self, Config, Effective, Live, Sources};
use crate::error::{Problem, ServerError};
use crate::logging::LogHandle;
use crate::policies;
use crate::shutdown::Times;
use crate::tuning::Tuning;

/// How often the file is looked at. Its content counts, so that any way of replacing it is noticed.
const LOOK: Duration = Duration::from_secs(1);

/// What a reloader is made of.
pub(crate) struct Setup {
    /// What is in force.
    pub(crate) config: Config,
    /// Where the public listener is bound.
    pub(crate) listen: SocketAddr,
    pub(crate) sources: Sources,
    pub(crate) log: LogHandle,
    pub(crate) policies: Arc<PolicyHost>,
    pub(crate) reloads: IntCounterVec,
}

/// What there is to change, and how it came to be what it is.
#[derive(Debug)]
pub(crate) struct Reloader {
    sources: Sources,
    log: LogHandle,
    policies: Arc<PolicyHost>,
    reloads: IntCounterVec,
    /// Where the public listener is bound.
    listen: SocketAddr,
    /// Whose turn it is to read again: what is read first is put in force first.
    turn: Mutex<()>,
    /// Never held for long: policies may take seconds to compile, and requests look here.
    state: Mutex<ReloadState>,
}

#[derive(Debug)]
struct ReloadState {
    config: Config,
    /// Bound once everything is loaded.
    bound: Option<Bound>,
    /// What is in force, key by key.
    keys: Vec<Effective>,
    last: Reloaded,
}

/// Who hears of a change.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) api: Arc<Api>,
    pub(crate) tuning: watch::Sender<Tuning>,
    /// How many share the prefix cache.
    pub(crate) caching_workers: u64,
}

impl Reloader {
    pub(crate) fn new(setup: Setup) -> Arc<Self> {
        let Setup { config, listen, sources, log, policies, reloads } = setup;
        // It was loaded a moment ago; if it cannot be any more, the first reload says so.
        let keys = sources.effective().map(|(_, keys)| keys).unwrap_or_default();
        let state = Mutex::new(ReloadState { config, bound: None, keys, last: Reloaded::default() });
        Arc::new(Self { sources, log, policies, reloads, listen, turn: Mutex::new(()), state })
    }

    pub(crate) fn bind(&self, bound: Bound) {
        self.state().bound = Some(bound);
    }

    /// How long the parts of a shutdown may take, as it is now.
    pub(crate) fn shutdown(&self) -> Times {
        let shutdown = self.state().config.live.shutdown.clone();
        Times { grace: shutdown.grace.0, drain: shutdown.drain.0 }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ReloadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the configuration again. Invalid: nothing changes, and the reason is said.
    pub(crate) fn reread(&self) -> Reloaded {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = self.sources.effective().map_err(ServerError::from).and_then(|(config, keys)| {
            // Last of what can fail, since it cannot be taken back.
            self.move_policies(&config)?;
            Ok((config, keys))
        });
        let mut state = self.state();
        let report = match outcome {
            Ok((config, keys)) => {
                let report = self.put_in_force(&mut state, config);
                if report.error.is_none() {
                    state.keys = in_force(std::mem::take(&mut state.keys), keys);
                }
                report
            }
            Err(error) => Reloaded { error: Some(error.to_string()), ..Reloaded::default() },
        };
        let result = if report.error.is_none() { "ok" } else { "rejected" };
        self.reloads.with_label_values(&[result]).inc();
        match &report.error {
            None => {
                let (changed, restart) = (report.changed.join(", "), report.needs_restart.join(", "));
                tracing::info!(changed, needs_restart = restart, "configuration read again");
            }
            Some(error) => tracing::error!(error, "the configuration is rejected; the one before stays in force"),
        }
        state.last = report.clone();
        report
    }

    /// Serves the policies of the directory that is configured now.
    fn move_policies(&self, new: &Config) -> Result<(), ServerError> {
        let needs_auth = {
            let old = &self.state().config;
            if old.live.policy == new.live.policy {
                return Ok(());
            }
            // As at the start; an address that waits for a restart does not count.
            policies::needs_auth(self.listen, old.fixed.allow_anonymous)
        };
        let policy = &new.live.policy;
        let moved = self.policies.relocate(policy.dir.clone(), policy.poll.0, needs_auth);
        moved.map_err(|error| {
            let dir = policy.dir.display();
            ServerError::value(&new.origins, "policy.dir", &dir, Problem::PolicyDirectory(error))
        })
    }

    /// Replaces the live half. The fixed half stays what it is, so that what differs is reported until a restart.
    fn put_in_force(&self, state: &mut ReloadState, new: Config) -> Reloaded {
        let needs_restart = config::changed(&state.config.fixed, &new.fixed);
        let changed = config::changed(&state.config.live, &new.live);
        let old = &state.config.live;
        if old.log != new.live.log
            && let Err(error) = self.log.set_level(&new)
        {
            return Reloaded { error: Some(error.to_string()), ..Reloaded::default() };
        }
        if let Some(Bound { api, tuning, caching_workers }) = &state.bound {
            api.set_limits(limits(&new.live));
            let new = Tuning::of(&new.live, *caching_workers);
            tuning.send_if_modified(|old| std::mem::replace(old, new) != new);
        }
        (state.config.live, state.config.origins) = (new.live, new.origins);
        Reloaded { changed, needs_restart, error: None }
    }

    /// Rereads the file whenever its content changes. Never ends.
    pub(crate) async fn watch(self: Arc<Self>) {
        let Some(path) = self.sources.file().map(std::path::Path::to_owned) else { return };
        let mut seen = tokio::fs::read(&path).await.ok();
        loop {
            tokio::time::sleep(LOOK).await;
            let now = tokio::fs::read(&path).await.ok();
            // A file that is gone for a moment is being replaced.
            if now.is_none() || now == seen {
                continue;
            }
            // Half-written files come to rest before they are believed.
            tokio::time::sleep(LOOK / 4).await;
            if tokio::fs::read(&path).await.ok() == now {
                seen = now;
                let live = self.clone();
                // Policies of another directory are compiled meanwhile. What goes wrong is said by `reread` itself.
                let _ = tokio::task::spawn_blocking(move || live.reread()).await;
            }
        }
    }
}

/// The new keys of the live half, and of the fixed half those that are in force.
fn in_force(old: Vec<Effective>, new: Vec<Effective>) -> Vec<Effective> {
    let mut keys: Vec<Effective> = new.into_iter().filter(|one| one.live).collect();
    keys.extend(old.into_iter().filter(|one| !one.live));
    keys.sort_by(|a, b| a.key.cmp(&b.key));
    keys
}

/// What requests are held to.
pub(crate) fn limits(live: &Live) -> ApiLimits {
    ApiLimits {
        body_bytes: live.limits.body.0 as usize,
        max_tokens: live.limits.max_tokens,
        timeout: live.queue.timeout.0,
        max_timeout: live.queue.max_timeout.0,
    }
}

impl Control for Reloader {
    fn reload(&self) -> Reloaded {
        self.policies.reload();
        self.reread()
    }

    fn config(&self) -> Value {
        let state = self.state();
        let entry = |one: &Effective| {
            let value = serde_json::to_value(&one.value).unwrap_or_default();
            (one.key.clone(), json!({"value": value, "source": one.source.to_string(), "live": one.live}))
        };
        let keys: Map<String, Value> = state.keys.iter().map(entry).collect();
        json!({"keys": keys, "last_reload": state.last})
    }
}

/// Counts rereads.
pub(crate) fn reloads(registry: &prometheus::Registry) -> Result<IntCounterVec, ServerError> {
    let make = || {
        let opts = prometheus::Opts::new("camshaft_config_reloads_total", "Times the configuration was read again");
        let counter = IntCounterVec::new(opts, &["result"])?;
        registry.register(Box::new(counter.clone()))?;
        Ok::<_, prometheus::Error>(counter)
    };
    make().map_err(|error| ServerError::internal("register metrics", error))
}
