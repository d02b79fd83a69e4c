//! A configuration that changes while the server runs: read again, checked whole, and only then put in force.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camshaft_api::{Api, ApiLimits, Backend, Control, PoolMessage, Reloaded};
use camshaft_policy::PolicyHost;
use prometheus::IntCounterVec;
use serde_json::{Map, Value, json};

use crate::config::{Config, Effective, PolicyDirConfig, Sources};
use crate::error::ServerError;
use crate::logging::LogHandle;
use crate::shutdown::Times;

/// How often the file is looked at. Its content counts, so that any way of replacing it is noticed.
const LOOK: Duration = Duration::from_secs(1);

/// What there is to change, and how it came to be what it is.
#[derive(Debug)]
pub(crate) struct Live {
    sources: Sources,
    log: LogHandle,
    policies: Arc<PolicyHost>,
    reloads: IntCounterVec,
    /// Whose turn it is to read again: what is read first is put in force first.
    turn: Mutex<()>,
    /// Never held for long: policies may take seconds to compile, and requests look here.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    config: Config,
    /// Bound once everything is loaded.
    api: Option<Arc<Api>>,
    /// How many share the prefix cache.
    caching_workers: u64,
    /// What is in force, key by key.
    keys: Vec<Effective>,
    last: Reloaded,
}

impl Live {
    pub(crate) fn new(
        config: Config,
        sources: Sources,
        log: LogHandle,
        policies: Arc<PolicyHost>,
        reloads: IntCounterVec,
    ) -> Arc<Self> {
        // It was loaded a moment ago; if it cannot be any more, the first reload says so.
        let keys = sources.effective().unwrap_or_default();
        let state = Mutex::new(State { config, api: None, caching_workers: 0, keys, last: Reloaded::default() });
        Arc::new(Self { sources, log, policies, reloads, turn: Mutex::new(()), state })
    }

    pub(crate) fn bind(&self, api: Arc<Api>, caching_workers: u64) {
        let mut state = self.state();
        (state.api, state.caching_workers) = (Some(api), caching_workers);
    }

    /// How long the parts of a shutdown may take, as it is now.
    pub(crate) fn shutdown(&self) -> Times {
        let state = self.state();
        Times { grace: state.config.grace, drain: state.config.drain }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the configuration again. Invalid: nothing changes, and the reason is said.
    pub(crate) fn reread(&self) -> Reloaded {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = self.sources.load().and_then(|config| {
            crate::logging::filter(&config.log.level)?;
            let keys = self.sources.effective()?;
            // Last of what can fail, since it cannot be taken back.
            let moved = self.move_policies(&config)?;
            Ok((config, keys, moved))
        });
        let mut state = self.state();
        let report = match outcome {
            Ok((config, keys, moved)) => {
                let report = self.put_in_force(&mut state, config, moved);
                if report.error.is_none() {
                    state.keys = in_force(std::mem::take(&mut state.keys), keys, &report.needs_restart);
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

    /// Serves the policies of the directory that is configured now. Whether it is another than before.
    fn move_policies(&self, new: &Config) -> Result<bool, ServerError> {
        let needs_auth = {
            let old = &self.state().config;
            if old.policy == new.policy {
                return Ok(false);
            }
            // As at the start; an address that waits for a restart does not count.
            !old.listen.ip().is_loopback() && !old.allow_anonymous
        };
        let PolicyDirConfig { dir, poll } = new.policy.clone();
        let moved = self.policies.relocate(dir, poll, needs_auth);
        moved.map(|()| true).map_err(|error| ServerError::Config(format!("policy.dir: {}", error.sentence())))
    }

    fn put_in_force(&self, state: &mut State, new: Config, moved: bool) -> Reloaded {
        let old = &state.config;
        let needs_restart = old.needs_restart(&new);
        let mut changed = Vec::new();
        if moved {
            changed.push("policy");
        }
        if old.log.level != new.log.level {
            if let Err(error) = self.log.set_level(&new.log.level) {
                return Reloaded { error: Some(error.to_string()), ..Reloaded::default() };
            }
            changed.push("log.level");
        }
        if limits(old) != limits(&new) {
            changed.push("limits");
        }
        if old.queue.watermarks != new.queue.watermarks {
            changed.push("queue");
        }
        if old.grace != new.grace {
            changed.push("shutdown.grace");
        }
        if old.drain != new.drain {
            changed.push("shutdown.drain");
        }
        let cache = |config: &Config| (config.cache.ram_bytes, config.cache.session_ttl);
        if cache(old) != cache(&new) {
            changed.push("cache");
        }
        if let Some(api) = &state.api {
            api.set_limits(limits(&new));
            let workers = state.caching_workers.max(1);
            let (ram_bytes, session_ttl) = (new.cache.ram_bytes / workers, new.cache.session_ttl);
            for model in &api.models {
                let Backend::Generate(pool) = &model.backend else { continue };
                let tell = |message| {
                    // A pool that is gone, or overloaded for a second, is told at the next change.
                    if pool.try_send(message).is_err() {
                        tracing::warn!(model = model.id, "could not be told of a change");
                    }
                };
                if changed.contains(&"queue") {
                    tell(PoolMessage::Watermarks(new.queue.watermarks));
                }
                if changed.contains(&"cache") {
                    tell(PoolMessage::Cache { ram_bytes, session_ttl });
                }
            }
        }
        // What needs a restart stays what it is, so that it is reported until then.
        let kept = std::mem::replace(&mut state.config, new);
        let config = &mut state.config;
        (config.listen, config.admin_listen, config.allow_anonymous) =
            (kept.listen, kept.admin_listen, kept.allow_anonymous);
        (config.models, config.cache.disk) = (kept.models, kept.cache.disk);
        (config.limits.connections, config.log.format) = (kept.limits.connections, kept.log.format);
        (config.otlp_endpoint, config.tls, config.cors_origins) = (kept.otlp_endpoint, kept.tls, kept.cors_origins);
        (config.limits.slow_reader, config.vllm_aliases) = (kept.limits.slow_reader, kept.vllm_aliases);
        config.limits.frame_interval = kept.limits.frame_interval;
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

/// The new keys, but for those that take a restart, which stay what they were.
fn in_force(old: Vec<Effective>, new: Vec<Effective>, needs_restart: &[&str]) -> Vec<Effective> {
    let waits = |one: &Effective| {
        needs_restart
            .iter()
            .any(|key| one.key.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '-'])))
    };
    let mut keys: Vec<Effective> = new.into_iter().filter(|one| !waits(one)).collect();
    keys.extend(old.into_iter().filter(waits));
    keys.sort_by(|a, b| a.key.cmp(&b.key));
    keys
}

/// What requests are held to.
pub(crate) fn limits(config: &Config) -> ApiLimits {
    ApiLimits {
        body_bytes: config.limits.body_bytes,
        max_tokens: config.limits.max_tokens,
        timeout: config.queue.timeout,
        max_timeout: config.queue.max_timeout,
    }
}

impl Control for Live {
    fn reload(&self) -> Reloaded {
        self.policies.reload();
        self.reread()
    }

    fn config(&self) -> Value {
        let state = self.state();
        let entry = |one: &Effective| {
            let value = serde_json::to_value(&one.value).unwrap_or_default();
            (one.key.clone(), json!({"value": value, "source": one.source}))
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
