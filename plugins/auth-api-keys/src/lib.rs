//! Auth policy: named API keys, of which only the SHA-256 digests are configured.
//!
//! A client sends the key as `authorization: Bearer <key>` or as `x-api-key: <key>`. The policy hashes it and looks the
//! digest up, so that the time of an answer says nothing about the keys. It refuses a wrong key with 401 `invalid_api_key`.
//! If `anonymous-loopback` is set, it allows a request without any credential from a loopback peer as tenant `anonymous`.
//! Otherwise the next auth policy decides, and after the last one the host refuses with 401.
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
//! | `tenant` | the tenant that the key belongs to, at most 128 characters; not `anonymous` |
//! | `priority` | `"high"`, `"normal"` (default) or `"low"` |
//! | `weight` | share of the service relative to other tenants, above 0 and at most 1000. Default 1 |
//! | `allowed-models` | list of model ids. Default: all |
//! | `requests-per-minute`, `tokens-per-minute`, `concurrent-requests` | quotas of the tenant. Default: none |
//! | `queue-share` | share of the queue that the tenant's waiting choices may take, at least one request with up to 8: above 0 and at most 1. Default: all |
//! | `cache-namespace` | namespace of the prefix cache. Default: the tenant's own |
#![forbid(unsafe_code)]

mod credential;
mod keys;
mod settings;
mod text;

use camshaft_plugin::Setup;
use camshaft_plugin::auth::{Policy, Principal, Refusal, Request, Verdict};
use camshaft_plugin::state;

use credential::Credential;
use keys::{Keys, Owner};
pub use settings::{KeySettings, PriorityClass, Settings};
use sha2::{Digest, Sha256};

/// Bytes of settings up to which parsing all of them costs no more than a look-up in their text.
const PARSED_BYTES: usize = 256;

/// Texts whose indices are kept at once: at 1024 keys they fill most of the plugin's state.
const SLOTS: u64 = 64;

/// The policy: the keys of the settings, checked.
#[derive(Debug)]
pub struct ApiKeys {
    keys: KeySource,
    anonymous_loopback: bool,
}

#[derive(Debug)]
enum KeySource {
    Parsed(Keys),
    /// The settings themselves, which another instance has checked, and its index of them. There is a key.
    Text {
        settings: String,
        index: Vec<u8>,
    },
}

impl KeySource {
    fn is_empty(&self) -> bool {
        matches!(self, Self::Parsed(keys) if keys.is_empty())
    }

    /// The owner of a key.
    fn find(&self, presented: &str) -> Option<Owner> {
        let digest: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
        match self {
            Self::Parsed(keys) => keys.get(&digest).cloned(),
            Self::Text { settings, index } => text::find(settings, index, &digest),
        }
    }
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
        Ok(Self { keys: KeySource::Parsed(keys), anonymous_loopback: settings.anonymous_loopback })
    }

    fn from_text(settings: String) -> Result<Self, String> {
        if settings.len() <= PARSED_BYTES {
            return camshaft_plugin::parse(&settings).and_then(Self::new);
        }
        let fingerprint = text::fingerprint(&settings);
        // Settings of several generations may be in use at once; what another left here costs time, not more.
        let slot = format!("checked/{}", fingerprint % SLOTS);
        let of = fingerprint.to_le_bytes();
        if let Ok(Some(entry)) = state::get(&slot)
            && let Some(rest) = entry.value.strip_prefix(&of)
            && let Some((flag, index)) = rest.split_first()
        {
            let keys = KeySource::Text { settings, index: index.to_vec() };
            return Ok(Self { keys, anonymous_loopback: *flag != 0 });
        }
        let policy = camshaft_plugin::parse(&settings).and_then(Self::new)?;
        if let KeySource::Parsed(keys) = &policy.keys
            && !keys.is_empty()
            && let Some(index) = text::index(&settings, keys.len())
        {
            let value = [of.as_slice(), &[u8::from(policy.anonymous_loopback)], &index].concat();
            // Without it every request parses all settings.
            let _ = state::set(&slot, &value, None);
        }
        Ok(policy)
    }

    fn set_up(&mut self, setup: &Setup) -> Result<(), String> {
        // Nothing is kept of a request.
        setup.reuse();
        Ok(())
    }

    fn authenticate(&mut self, request: &Request<'_>) -> Result<Verdict, Refusal> {
        let local = self.anonymous_loopback && request.loopback;
        match credential::of(request) {
            Credential::Key(_) | Credential::Malformed(_) if local && self.keys.is_empty() => anonymous(),
            Credential::Key(key) => match self.keys.find(&key) {
                Some(Owner { principal, limits }) => {
                    // They were checked with the settings.
                    let set = request.set_limits(&limits);
                    set.map(|()| Verdict::Allow(principal)).map_err(|why| Refusal::new(403, "limits_not_set", why))
                }
                None => Err(Refusal::new(401, "invalid_api_key", "the API key is not valid")),
            },
            Credential::Malformed(message) => Err(Refusal::new(401, "invalid_api_key", message)),
            Credential::Absent if local => anonymous(),
            Credential::Absent => Ok(Verdict::Next),
        }
    }
}

fn anonymous() -> Result<Verdict, Refusal> {
    Ok(Verdict::Allow(Principal::new(keys::ANONYMOUS, keys::ANONYMOUS)))
}

camshaft_plugin::export_auth!(ApiKeys);

#[cfg(test)]
mod tests;
