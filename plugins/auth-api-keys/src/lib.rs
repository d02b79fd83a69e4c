//! Auth policy: named API keys, of which only the SHA-256 digests are configured.
//!
//! A client sends the key as `authorization: Bearer <key>` or as `x-api-key: <key>`. The policy hashes it and compares
//! it with every configured digest in constant time, so that the time of an answer says nothing about the keys. It
//! refuses a wrong key with 401 `invalid_api_key`. If `anonymous-loopback` is set, it allows a request without any
//! credential from a loopback peer as tenant `anonymous`. Otherwise the next auth policy decides, and after the last
//! one the host refuses with 401.
//!
//! As long as no key is configured, `anonymous-loopback` allows requests from loopback peers with any credential,
//! because many clients insist on sending one. A warning in the log says so, also when the last key is removed.
//!
//! A forwarded request (with a header `forwarded`, `x-forwarded-for`, `x-real-ip` or `via`) does not count as one from
//! a loopback peer. A proxy that adds none of these looks like a local caller.
//!
//! | setting | |
//! |---|---|
//! | `anonymous-loopback` | `true`: requests without a credential from loopback peers are allowed (with any credential while no key is configured). Default `false` |
//! | `[[settings.keys]]` | one table for each key, at most 1024: |
//! | `name` | which key this is, for logs; unique |
//! | `sha256` | SHA-256 of the key in hexadecimal: `printf %s "$KEY" \| sha256sum \| cut -d' ' -f1`; unique |
//! | `tenant` | the tenant that the key belongs to, at most 128 characters |
//! | `priority` | `"high"`, `"normal"` (default) or `"low"` |
//! | `weight` | share of the service relative to other tenants, above 0 and at most 1000. Default 1 |
//! | `allowed-models` | list of model ids. Default: all |
//! | `requests-per-minute`, `tokens-per-minute`, `concurrent-requests` | quotas of the tenant. Default: none |
//! | `queue-share` | share of the queue that the tenant's waiting requests may take, above 0 and at most 1. Default: all |
//! | `cache-namespace` | namespace of the prefix cache. Default: the tenant's own |
#![forbid(unsafe_code)]

mod credential;
mod keys;
mod settings;

use camshaft_plugin::auth::{Policy, Principal, Refusal, Request, Verdict};

use credential::Credential;
use keys::Key;
pub use settings::{KeySettings, PriorityClass, Settings};

/// The policy: the keys of the settings, checked.
#[derive(Debug)]
pub struct ApiKeys {
    keys: Vec<Key>,
    anonymous_loopback: bool,
}

impl Policy for ApiKeys {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        let keys = keys::checked(settings.keys)?;
        if keys.is_empty() {
            // The host writes this line once, when it loads the policy, and drops the lines of further instances.
            camshaft_plugin::log::warn(match settings.anonymous_loopback {
                true => {
                    "no API key is configured: callers on loopback addresses pass with any key or none; \
                     so does everybody behind a proxy there that does not say whom it asks for"
                }
                false => "no API key is configured: this policy lets nobody pass",
            });
        }
        Ok(Self { keys, anonymous_loopback: settings.anonymous_loopback })
    }

    fn authenticate(&mut self, request: &Request) -> Result<Verdict, Refusal> {
        let local = self.anonymous_loopback && request.loopback;
        match credential::of(request) {
            Credential::Key(_) | Credential::Malformed(_) if local && self.keys.is_empty() => anonymous(),
            Credential::Key(key) => match keys::find(&self.keys, key) {
                Some(principal) => Ok(Verdict::Allow(principal.clone())),
                None => Err(Refusal::new(401, "invalid_api_key", "the API key is not valid")),
            },
            Credential::Malformed(message) => Err(Refusal::new(401, "invalid_api_key", message)),
            Credential::Absent if local => anonymous(),
            Credential::Absent => Ok(Verdict::Next),
        }
    }
}

fn anonymous() -> Result<Verdict, Refusal> {
    Ok(Verdict::Allow(Principal::new("anonymous", "anonymous")))
}

camshaft_plugin::export_auth!(ApiKeys);

#[cfg(test)]
mod tests;
