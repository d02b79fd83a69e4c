//! Starting the policy host, and saying what it enforces: `serve` and `check` do both alike.
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use camshaft_api::{Access, ROUTES, Route};
use camshaft_core::answering::wait;
use camshaft_core::policy::{AuthOutcome, AuthRequest, Hook, Mode, Policies, PolicyState};
use camshaft_policy::{COMPILE_BOUNDS, CompileProgram, Grants, PolicyConfig, PolicyError, PolicyHost, PolicyWatch};
use prometheus::Registry;

use crate::config::Config;
use crate::environment;
use crate::error::ServerError;
use crate::own_program::own_program;
use crate::supervisor::{Ending, Service, ShutdownStage, Stop, Supervisor, ThreadMetrics};

/// The hidden command that compiles a component.
pub(crate) const COMPILE_COMMAND: &str = "compile-policy";

/// Loads the policies of the configured directory, once.
///
/// # Errors
/// The host cannot be started. A policy that cannot serve is none: the host's status tells.
pub(crate) fn start(config: &Config, registry: &Registry) -> Result<Arc<PolicyHost>, ServerError> {
    PolicyHost::start(PolicyConfig { compiler: compiler(), ..policy_config(config) }, registry)
        .map_err(|error| not_started(error, config))
}

/// Loads the policies of the configured directory, and keeps them current on the supervisor's threads.
///
/// # Errors
/// As [`start`].
pub(crate) fn supervise(
    config: &Config,
    registry: &Registry,
    supervisor: &Arc<Supervisor>,
    threads: &ThreadMetrics,
    compiler: Option<CompileProgram>,
) -> Result<Arc<PolicyHost>, ServerError> {
    let config_of_host = PolicyConfig { compiler, ..policy_config(config) };
    let loaded = PolicyHost::load(config_of_host, registry, supervisor.spawner(ShutdownStage::Policies));
    let (host, watch) = loaded.map_err(|error| not_started(error, config))?;
    if let Some(watch) = watch {
        let service = WatchService { watch };
        supervisor.supervise(PolicyWatch::THREAD, threads.gauges(PolicyWatch::THREAD), service, ())?;
    }
    Ok(host)
}

fn policy_config(config: &Config) -> PolicyConfig {
    PolicyConfig {
        dir: Some(config.live.policy.dir.clone()),
        // Who serves everybody has said it already.
        allow_empty: config.live.policy.allow_empty || config.fixed.allow_anonymous,
        poll: config.live.policy.poll.0,
        cache_dir: cache_dir(),
        compiler: None,
        allow_anonymous: config.fixed.allow_anonymous,
        grants: grants(config),
    }
}

/// What policies may have.
pub(crate) fn grants(config: &Config) -> Grants {
    // What is wrong was refused with the configuration.
    config.live.policy.grants().unwrap_or_else(|_| Grants::nothing())
}

fn not_started(source: PolicyError, config: &Config) -> ServerError {
    if matches!(source, PolicyError::NoPolicies { .. } | PolicyError::Read { .. }) {
        let dir = config.live.policy.dir.display();
        return ServerError::value(&config.origins, "policy.dir", &dir, source.sentence());
    }
    ServerError::Policies { source }
}

/// The directory that is watched, whatever the one is that the process was started in.
pub(crate) fn absolute_dir(config: &Config) -> PathBuf {
    let dir = &config.live.policy.dir;
    std::path::absolute(dir).unwrap_or_else(|_| dir.clone())
}

/// Watches the policy directory. After a panic everything in it is examined anew; what serves goes on serving meanwhile.
struct WatchService {
    watch: PolicyWatch,
}

impl Service for WatchService {
    type Incarnation = ();
    type Handle = ();
    const STAGE: ShutdownStage = ShutdownStage::Policies;

    fn make(&mut self) -> Result<((), ()), ServerError> {
        self.watch.recover();
        Ok(((), ()))
    }

    fn run(&mut self, (): &mut (), stop: &Stop) -> Ending {
        self.watch.run(stop.receiver());
        Ending::Done
    }
}

/// Whether there must be an auth policy: others than this machine reach the public listener, and nobody said that they may
/// all be served.
pub(crate) fn needs_auth(listen: SocketAddr, allow_anonymous: bool) -> bool {
    !listen.ip().is_loopback() && !allow_anonymous
}

/// Refuses to serve strangers without an auth policy.
///
/// # Errors
/// The address is not loopback, no auth policy is in force, and nobody said that this is meant.
pub(crate) fn guard_strangers(config: &Config, listen: SocketAddr, host: &PolicyHost) -> Result<(), ServerError> {
    if !needs_auth(listen, config.fixed.allow_anonymous) || host.current().has_auth() {
        return Ok(());
    }
    let auth = config.live.policy.dir.join("auth");
    let why = format!(
        "not a loopback address, and no auth policy is in force: add one to {} or pass --allow-anonymous",
        auth.display()
    );
    Err(ServerError::value(&config.origins, "listen", &config.fixed.listen, why))
}

/// What compiles components: this program, in a process of its own. Only for the program that has the command.
pub(crate) fn compiler() -> Option<CompileProgram> {
    let (program, environment) = (own_program().ok()?, environment::missing());
    Some(CompileProgram { program, arguments: vec![COMPILE_COMMAND.into()], environment, bounds: COMPILE_BOUNDS })
}

/// Where compiled components are kept between runs.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    cache_dir_of(|name| std::env::var_os(name))
}

/// A relative path is as none: the directory from which a server is started says nothing.
fn cache_dir_of(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let absolute = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    base.map(|base| base.join("camshaft"))
}

/// Where policies come from, a line for each kind of route with who may call it, and for each hook with what decides. The
/// auth policies themselves are asked whether a request without credentials passes.
///
/// `admin`: the address that the admin listener has, where it is bound already.
pub(crate) fn enforced(config: &Config, admin: Option<SocketAddr>, host: &PolicyHost) -> Vec<String> {
    let configured = &config.fixed.admin.listen;
    let operators = match admin {
        Some(address) => format!("operators at {address}"),
        None if configured.is_empty() => "nobody: there is no admin listener".to_owned(),
        None => format!("operators at {configured}"),
    };
    let strangers = if reaches_strangers(config) { "" } else { " (who cannot reach this address)" };
    let mut lines = vec![
        format!("policies are read from {}", absolute_dir(config).display()),
        format!("open to everybody: {}", routes(|access| access == Access::Open)),
        format!("open to {operators}: {}", routes(|access| access == Access::Operators)),
    ];
    lines.extend(Hook::ALL.map(|hook| decides(host, hook)));
    lines.push(format!("without credentials, from this machine: {}", verdict(host, "127.0.0.1", true)));
    lines.push(format!("without credentials, from elsewhere{strangers}: {}", verdict(host, "192.0.2.1", false)));
    lines
}

/// What decides at a hook.
fn decides(host: &PolicyHost, hook: Hook) -> String {
    match hook {
        Hook::Auth => format!("guarded by auth {}: {}", names(host, hook, "natively"), routes(is_guarded)),
        Hook::Validator => format!("requests checked by validators: {}", names(host, hook, "none")),
        Hook::Scheduler => format!("queue ordered by schedulers: {}", names(host, hook, "native")),
        Hook::Sampler => format!("tokens drawn by samplers: {}", names(host, hook, "native")),
        Hook::Filter => format!("text checked by filters: {}", names(host, hook, "none")),
    }
}

fn reaches_strangers(config: &Config) -> bool {
    config.fixed.listen.resolve().is_ok_and(|address| !address.ip().is_loopback())
}

fn is_guarded(access: Access) -> bool {
    matches!(access, Access::Guarded | Access::Monitoring)
}

/// Those that are the same to `[match]` of an auth policy stand together. It takes the first one, or what stands behind `as`.
fn routes(wanted: impl Fn(Access) -> bool) -> String {
    let wanted: Vec<&Route> = ROUTES.iter().filter(|route| wanted(route.access)).collect();
    let same = wanted.chunk_by(|a, b| (a.method, a.canonical()) == (b.method, b.canonical()));
    let shown = |routes: &[&Route]| {
        let first = routes.first()?;
        let paths: Vec<String> = routes.iter().map(|route| route.shown()).collect();
        let canonical = first.canonical();
        let named = if first.path == canonical { String::new() } else { format!(" as {canonical}") };
        Some(format!("{} {}{named}", first.method, paths.join(" or ")))
    };
    same.filter_map(shown).collect::<Vec<_>>().join(", ")
}

fn names(host: &PolicyHost, hook: Hook, nobody: &str) -> String {
    let statuses = host.status();
    let of_hook = statuses.iter().filter(|one| one.hook == hook && one.mode != Mode::Off);
    let name = |one: &camshaft_core::policy::PolicyStatus| match one.state {
        PolicyState::Active => one.name.clone(),
        state => format!("{} ({})", one.name, state.as_str()),
    };
    let names: Vec<String> = of_hook.map(name).collect();
    if names.is_empty() { nobody.to_owned() } else { names.join(", ") }
}

/// What becomes of a chat request without credentials.
fn verdict(host: &PolicyHost, address: &str, loopback: bool) -> String {
    let request = AuthRequest {
        method: "POST".to_owned(),
        path: "/v1/chat/completions".to_owned(),
        remote_address: address.to_owned(),
        loopback,
        ..AuthRequest::default()
    };
    match wait(host.current().authenticate(&Arc::new(request))).outcome {
        AuthOutcome::Allow(principal) => format!("admitted as tenant {}", principal.tenant),
        AuthOutcome::Refuse(refusal) => format!("refused with {}: {}", refusal.status, refusal.message),
        AuthOutcome::Fault(fault) => {
            format!("refused, since the auth policy {} faults: {}", fault.plugin, fault.detail)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::config::Overrides;
    use crate::metrics;

    /// Panics instead of watching, once.
    struct Saboteur {
        service: WatchService,
        panicked: AtomicBool,
    }

    impl Service for Saboteur {
        type Incarnation = ();
        type Handle = ();
        const STAGE: ShutdownStage = ShutdownStage::Policies;

        fn make(&mut self) -> Result<((), ()), ServerError> {
            self.service.make()
        }

        fn run(&mut self, (): &mut (), stop: &Stop) -> Ending {
            assert!(self.panicked.swap(true, Ordering::Relaxed), "as the test asked");
            self.service.run(&mut (), stop)
        }
    }

    #[test]
    fn regression_an_empty_or_relative_cache_variable_falls_through_to_the_next() {
        let dir = |xdg: Option<&str>, home: Option<&str>| {
            let of = |name: &str| match name {
                "XDG_CACHE_HOME" => xdg.map(OsString::from),
                "HOME" => home.map(OsString::from),
                _ => None,
            };
            cache_dir_of(of).map(|dir| dir.display().to_string())
        };
        assert_eq!(dir(Some("/x"), Some("/h")).as_deref(), Some("/x/camshaft"));
        for xdg in [None, Some(""), Some("relative")] {
            assert_eq!(dir(xdg, Some("/h")).as_deref(), Some("/h/.cache/camshaft"), "{xdg:?}");
            for home in [None, Some(""), Some("h")] {
                assert_eq!(dir(xdg, home), None, "{xdg:?} {home:?}");
            }
        }
    }

    #[test]
    fn regression_a_reload_that_nobody_answers_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let overrides = Overrides {
            policy_dir: Some(dir.path().to_owned()),
            set: vec!["policy.allow-empty=true".to_owned()],
            ..Overrides::default()
        };
        let config = Config::load(None, std::iter::empty(), &overrides).unwrap();
        let (registry, supervisor) = (Registry::new(), Arc::new(Supervisor::new()));
        let spawner = supervisor.spawner(ShutdownStage::Policies);
        let (host, watch) = PolicyHost::load(policy_config(&config), &registry, spawner).unwrap();
        drop(watch);
        assert!(matches!(host.reload(), Err(PolicyError::Unanswered)));
    }

    #[test]
    fn regression_a_policy_watcher_that_panics_is_restarted_and_still_reloads() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("auth")).unwrap();
        let overrides = Overrides {
            policy_dir: Some(dir.path().to_owned()),
            set: vec!["policy.allow-empty=true".to_owned()],
            ..Overrides::default()
        };
        let config = Config::load(None, std::iter::empty(), &overrides).unwrap();
        let (registry, supervisor) = (Registry::new(), Arc::new(Supervisor::new()));
        let threads = metrics::threads(&registry).unwrap();
        supervisor.count_in(threads.clone());
        let spawner = supervisor.spawner(ShutdownStage::Policies);
        let (host, watch) = PolicyHost::load(policy_config(&config), &registry, spawner).unwrap();
        let service = WatchService { watch: watch.unwrap() };
        let service = Saboteur { service, panicked: AtomicBool::new(false) };
        let gauges = threads.gauges(PolicyWatch::THREAD);
        supervisor.supervise(PolicyWatch::THREAD, gauges.clone(), service, ()).unwrap();
        // A request waits until the watcher is back.
        std::fs::write(dir.path().join("auth/10-x.wasm"), "no component").unwrap();
        host.reload().unwrap();
        let statuses = host.status();
        assert!(statuses.len() == 1 && statuses[0].state == PolicyState::Rejected, "{statuses:?}");
        assert_eq!((gauges.restarts.get(), gauges.up.get()), (1, 1));
        assert!(supervisor.end(Duration::from_secs(60)));
        assert_eq!(gauges.up.get(), 0);
        host.stop();
    }
}
