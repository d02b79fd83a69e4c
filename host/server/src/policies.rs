//! Starting the policy host, and saying what it enforces: `serve` and `check` do both alike.
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use camshaft_api::{Access, ROUTES};
use camshaft_core::policy::{AuthOutcome, AuthRequest, Hook, Mode, Policies, PolicyState};
use camshaft_policy::{PolicyConfig, PolicyError, PolicyHost};
use prometheus::Registry;

use crate::config::{Config, Origins};
use crate::error::{Problem, ServerError};

/// Loads the policies of the configured directory.
///
/// # Errors
/// The host cannot be started. A policy that cannot serve is none: the host's status tells.
pub(crate) fn start(config: &Config, registry: &Registry) -> Result<Arc<PolicyHost>, ServerError> {
    let host = PolicyHost::start(
        PolicyConfig {
            dir: Some(config.live.policy.dir.clone()),
            poll: config.live.policy.poll.0,
            cache_dir: cache_dir(),
            allow_anonymous: config.fixed.allow_anonymous,
        },
        registry,
    );
    host.map_err(|source| {
        let unread = matches!(source, PolicyError::Read { .. });
        let origin = if unread { config.origins.at("policy.dir") } else { Origins::default().at("policy.dir") };
        ServerError::Policies { source, origin: Box::new(origin) }
    })
}

/// Refuses to serve strangers without an auth policy.
///
/// # Errors
/// The address is not loopback, no auth policy is in force, and nobody said that this is meant.
pub(crate) fn guard_strangers(config: &Config, listen: SocketAddr, host: &PolicyHost) -> Result<(), ServerError> {
    if listen.ip().is_loopback() || host.current().has_auth() || config.fixed.allow_anonymous {
        return Ok(());
    }
    let problem = Problem::OpenToStrangers { auth: config.live.policy.dir.join("auth") };
    Err(ServerError::value(&config.origins, "listen", &config.fixed.listen, problem))
}

/// Where compiled components are kept between runs.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")));
    base.filter(|base| base.is_absolute()).map(|base| base.join("camshaft"))
}

/// A line for each kind of route with who may call it, and for each hook with what decides. The auth policies themselves
/// are asked whether a request without credentials passes.
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
    vec![
        format!("open to everybody: {}", routes(|access| access == Access::Open)),
        format!("open to {operators}: {}", routes(|access| access == Access::Operators)),
        format!("guarded by auth {}: {}", names(host, Hook::Auth, "natively"), routes(is_guarded)),
        format!("requests checked by validators: {}", names(host, Hook::Validator, "none")),
        format!("tokens drawn by samplers: {}", names(host, Hook::Sampler, "native")),
        format!("queue ordered by schedulers: {}", names(host, Hook::Scheduler, "native")),
        format!("without credentials, from this machine: {}", verdict(host, "127.0.0.1", true)),
        format!("without credentials, from elsewhere{strangers}: {}", verdict(host, "192.0.2.1", false)),
    ]
}

fn reaches_strangers(config: &Config) -> bool {
    config.fixed.listen.resolve().is_ok_and(|address| !address.ip().is_loopback())
}

fn is_guarded(access: Access) -> bool {
    matches!(access, Access::Guarded | Access::Monitoring)
}

fn routes(wanted: impl Fn(Access) -> bool) -> String {
    let wanted = ROUTES.iter().filter(|route| wanted(route.access));
    wanted.map(|route| format!("{} {}", route.method, route.path)).collect::<Vec<_>>().join(", ")
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
        headers: Vec::new(),
        remote_address: address.to_owned(),
        loopback,
    };
    match host.current().authenticate(&request) {
        AuthOutcome::Allow(principal) => format!("admitted as tenant {}", principal.tenant),
        AuthOutcome::Refuse(refusal) => format!("refused with {}: {}", refusal.status, refusal.message),
        AuthOutcome::Fault(fault) => {
            format!("refused, since the auth policy {} faults: {}", fault.plugin, fault.detail)
        }
    }
}
