//! A configuration that changes while the server runs: read again, checked whole, and only then put in force.
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camshaft_api::{AdminAccess, Api, ApiLimits, Control, PolicyScan, Reloaded};
use camshaft_core::sizes::Machine;
use camshaft_policy::{Demands, PolicyError, PolicyHost};
use prometheus::{IntCounterVec, register_int_counter_vec_with_registry};
use serde_json::{Map, Value, json};

use crate::config::{self, Config, ConfigError, ConfigSnapshot, Effective, Live, Sources};
use crate::error::ServerError;
use crate::life::ModelLife;
use crate::logging::LogHandle;
use crate::metrics::unregistered;
use crate::policies;
use crate::shutdown::Times;
use crate::tls::Certificate;
use crate::token;

/// How often the file is looked at. Its content counts, so that any way of replacing it is noticed.
const LOOK: Duration = Duration::from_secs(1);

/// What a reloader is made of.
#[derive(Debug)]
pub(crate) struct Setup {
    /// Where the public listener is bound.
    pub(crate) listen: SocketAddr,
    pub(crate) sources: Sources,
    pub(crate) log: LogHandle,
    pub(crate) policies: Arc<PolicyHost>,
    /// `None`: plain HTTP.
    pub(crate) certificate: Option<Arc<Certificate>>,
    /// Of the admin listener.
    pub(crate) access: Arc<AdminAccess>,
    pub(crate) reloads: IntCounterVec,
}

/// What there is to change, and how it came to be what it is.
#[derive(Debug)]
pub(crate) struct Reloader {
    setup: Setup,
    /// Whose turn it is to read again: what is read first is put in force first.
    turn: Mutex<()>,
    /// Never held for long: policies may take seconds to compile, and requests look here.
    state: Mutex<ReloadState>,
}

#[derive(Debug)]
struct ReloadState {
    config: Config,
    /// Who hears of a change, once everything is loaded.
    bound: Option<(Arc<Api>, Arc<ModelLife>)>,
    /// What is in force, key by key.
    keys: Vec<Effective>,
    /// The text of the file that is in force.
    file: Option<String>,
    last: Reloaded,
}

impl Reloader {
    /// `snapshot`: what is in force.
    pub(crate) fn new(snapshot: ConfigSnapshot, setup: Setup) -> Arc<Self> {
        let ConfigSnapshot { config, keys, file } = snapshot;
        let state = ReloadState { config, bound: None, keys, file, last: Reloaded::default() };
        Arc::new(Self { setup, turn: Mutex::default(), state: Mutex::new(state) })
    }

    /// From now on these hear of changes.
    pub(crate) fn bind(&self, api: Arc<Api>, models: Arc<ModelLife>) {
        self.state().bound = Some((api, models));
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
        let outcome = self.setup.sources.snapshot().map_err(ServerError::from).and_then(|snapshot| {
            let in_force = self.state().file.clone();
            self.setup.sources.keeps(in_force.as_deref(), &snapshot)?;
            self.set_log_level(&snapshot.config)?;
            // Last of what can fail, since it is not taken back.
            self.move_policies(&snapshot.config).inspect_err(|_| self.restore_log_level(&snapshot.config))?;
            Ok(snapshot)
        });
        let mut state = self.state();
        let report = match outcome {
            Ok(ConfigSnapshot { config, keys, file }) => {
                state.file = file;
                state.keys = in_force(std::mem::take(&mut state.keys), keys);
                put_in_force(&mut state, config)
            }
            Err(error) => Reloaded { error: Some(error.to_string()), ..Reloaded::default() },
        };
        let [ok, rejected] = RESULTS;
        let result = if report.error.is_none() { ok } else { rejected };
        self.setup.reloads.with_label_values(&[result]).inc();
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

    /// Reads the token of the admin listener again, from the file that it was started with.
    fn reread_token(&self) -> Result<(), ServerError> {
        let (file, origins) = {
            let config = &self.state().config;
            (config.fixed.admin.token_file().cloned(), config.origins.clone())
        };
        if let Some(file) = file {
            self.setup.access.set_token(token::read(&file, &origins)?);
        }
        Ok(())
    }

    fn set_log_level(&self, new: &Config) -> Result<(), ServerError> {
        let changes = self.state().config.live.log != new.live.log;
        if changes { self.setup.log.set_level(new) } else { Ok(()) }
    }

    /// What was set for a configuration that is rejected goes with it.
    fn restore_log_level(&self, rejected: &Config) {
        let in_force = self.state().config.clone();
        if in_force.live.log != rejected.live.log
            && let Err(error) = self.setup.log.set_level(&in_force)
        {
            tracing::error!(%error, "the log level of a rejected configuration stays");
        }
    }

    /// Serves the policies of the directory that is configured now, with what they may have: both or neither.
    fn move_policies(&self, new: &Config) -> Result<(), ServerError> {
        let auth = {
            let old = &self.state().config;
            if old.live.policy == new.live.policy {
                return Ok(());
            }
            // As at the start; an address that waits for a restart does not count.
            policies::needs_auth(self.setup.listen, old.fixed.allow_anonymous)
        };
        let policy = &new.live.policy;
        let demands = Demands { auth, same_guards: !policy.allow_empty };
        let moved = self.setup.policies.relocate(policy.dir.clone(), policy.poll.0, demands, policies::grants(new));
        moved.map_err(|error| {
            let dir = policy.dir.display();
            ServerError::value(&new.origins, "policy.dir", &dir, error.sentence())
        })?;
        tracing::info!("policies are read from {}", policies::absolute_dir(new).display());
        Ok(())
    }

    /// Rereads the file whenever its content changes, or it can no longer be read. Never ends.
    pub(crate) async fn watch(self: Arc<Self>) {
        let Some(path) = self.setup.sources.file().map(Path::to_owned) else { return };
        // Not what is there now: it may have been edited while the server loaded.
        let mut seen = self.state().file.clone().map(Ok);
        loop {
            let now = look(&path).await;
            // A file that is gone for a moment is being replaced.
            if now.is_some() && now != seen {
                // Half-written files come to rest before they are believed.
                tokio::time::sleep(LOOK / 4).await;
                if look(&path).await == now {
                    seen = now;
                    let live = self.clone();
                    // Policies of another directory are compiled meanwhile. What goes wrong is said by `reread` itself.
                    let _ = tokio::task::spawn_blocking(move || live.reread()).await;
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// Replaces the live half. The fixed half stays what it is, so that what differs is reported until a restart.
fn put_in_force(state: &mut ReloadState, new: Config) -> Reloaded {
    let mut needs_restart = config::changed(&state.config.fixed, &new.fixed);
    if state.config.live.numa() != new.live.numa() {
        needs_restart.push("model.numa".to_owned());
    }
    let changed = config::changed(&state.config.live, &new.live);
    if let Some((api, models)) = &state.bound {
        models.follow(&state.config.live.model, &new.live.model);
        api.set_limits(limits(&new.live, models.machine()));
        models.tune(&new.live, &changed);
    }
    (state.config.live, state.config.origins) = (new.live, new.origins);
    Reloaded { changed, needs_restart, ..Reloaded::default() }
}

/// The text of the file, or why it cannot be read; `None`: it is gone.
async fn look(path: &Path) -> Option<Result<String, String>> {
    let path = path.to_owned();
    match tokio::task::spawn_blocking(move || config::read_file(&path)).await.ok()? {
        Err(ConfigError::NoFile { .. }) => None,
        read => Some(read.map_err(|error| error.to_string())),
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
pub(crate) fn limits(live: &Live, machine: Machine) -> ApiLimits {
    ApiLimits {
        body_bytes: live.limits.body.0 as usize,
        bodies_bytes: live.limits.bodies_bytes(machine),
        max_tokens: live.limits.max_tokens,
        timeout: live.queue.timeout.0,
        max_timeout: live.queue.max_timeout.0,
        max_duration: live.limits.max_duration.map(|most| most.0),
    }
}

impl Control for Reloader {
    fn reload(&self) -> Reloaded {
        let scanned = self.setup.policies.reload();
        let mut report = self.reread();
        if let Err(error) = scanned {
            report.policies =
                if matches!(error, PolicyError::Busy) { PolicyScan::Busy } else { PolicyScan::Unanswered };
            let error = error.sentence();
            tracing::error!(error, "the policy directory was not scanned");
            add(&mut report.error, format!("the policy directory was not scanned: {error}"));
        }
        if let Some(Err(error)) = self.setup.certificate.as_ref().map(|certificate| certificate.reread()) {
            tracing::error!(%error, "the new TLS certificate is rejected; the one before stays in force");
            add(&mut report.error, error.to_string());
        }
        if let Err(error) = self.reread_token() {
            tracing::error!(%error, "the new admin token is rejected; the one before stays in force");
            add(&mut report.error, error.to_string());
        }
        self.state().last = report.clone();
        report
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

/// Says one more thing that went wrong.
fn add(said: &mut Option<String>, more: String) {
    *said = Some(said.take().map(|before| format!("{before}; {more}")).unwrap_or(more));
}

/// What comes of reading it again.
const RESULTS: [&str; 2] = ["ok", "rejected"];

/// Counts rereads.
pub(crate) fn reloads(registry: &prometheus::Registry) -> Result<IntCounterVec, ServerError> {
    let (name, help) = ("camshaft_config_reloads_total", "Times the configuration was read again");
    let counter = register_int_counter_vec_with_registry!(name, help, &["result"], registry).map_err(unregistered)?;
    // Series that start at zero, so that the first increase is visible.
    RESULTS.iter().for_each(|result| drop(counter.with_label_values(&[result])));
    Ok(counter)
}

#[cfg(test)]
#[path = "reload_tests.rs"]
mod tests;
