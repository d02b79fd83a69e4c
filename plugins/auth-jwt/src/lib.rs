//! Auth policy: callers identify themselves with a JSON Web Token (RFC 7519).
//!
//! A token is taken from `authorization: Bearer`. The host verifies its signature: `RS256`, `ES256` and `EdDSA` with the key of a
//! JWK set (RFC 7517) that the token names, or `HS256` with a secret. A token must say when it expires. A credential that does not
//! look like a token, or none at all, is left to the next auth policy. Any token that is not valid is refused with 401, and the code
//! says why.
//!
//! ```toml
//! [documents.jwks]
//! url = "https://idp.example/.well-known/jwks.json"
//! refresh = "5m"
//!
//! [settings]
//! jwks = "jwks"
//! issuers = ["https://idp.example"]
//! audiences = ["camshaft"]
//! ```
//!
//! | setting | meaning |
//! |---|---|
//! | `jwks` | name of the document (`[documents.NAME]`) with the JWK set |
//! | `secret` | name of the secret (`[secrets]`) of `HS256`, at least 32 bytes |
//! | `algorithms` | list of `"HS256"`, `"RS256"`, `"ES256"`, `"EdDSA"`. Default: all that there are keys for |
//! | `issuers`, `audiences` | lists, not empty, one of which `iss` and `aud` must name. Default: any |
//! | `leeway` | seconds by which clocks may differ, at most 600. Default 60 |
//! | `tenant` | tenant of callers whose token names none. Default: refused |
//! | `claims.tenant`, `claims.name` | claims of these, by name or JSON pointer. Default `"tenant"`, `"sub"` |
//! | `claims.priority`, `priorities`, `priority` | claim, table from its values to `"high"`, `"normal"`, `"low"`, and the class of all others. Default `"normal"` |
//! | `claims.models` | claim with the list of models that the caller may use. Default: all |
//! | `claims.requests-per-minute`, `…tokens-per-minute`, `…concurrent-requests` | claims with quotas of the tenant |
//! | `limits.requests-per-minute`, … | the same for tokens without these claims. Default: none |
//! | `admin.claim`, `.value`, `.tenant` | whose claim has the value (or a list with it) belongs to the tenant, and nobody else does: for `metrics.operators` |
#![forbid(unsafe_code)]

mod caller;
mod keys;
mod settings;
mod token;

use camshaft_plugin::auth::{Limits, Policy, Principal, Refusal, Request, Verdict};
use camshaft_plugin::{Setup, clock, crypto, documents};

use keys::{Key, NamedKey};
pub use settings::{Admin, Algorithm, ClaimNames, LimitSettings, PriorityClass, Settings};
use token::Reason;

/// A shorter secret can be guessed from one token.
const SECRET_MIN_BYTES: usize = 32;

/// The policy.
#[derive(Debug)]
pub struct Jwt {
    settings: Settings,
    /// Of the document.
    keys: Vec<NamedKey>,
    /// Of which version they are.
    version: Option<u64>,
    secret: Option<NamedKey>,
}

/// Asks the host.
fn verify(key: &Key, signed: &[u8], signature: &[u8]) -> Result<bool, String> {
    match key {
        Key::Secret(secret) => Ok(crypto::equal(&crypto::hmac_sha256(secret, signed)?, signature)),
        Key::Rsa { n, e } => crypto::verify_rsa("RS256", n, e, signed, signature),
        Key::P256 { x, y } => crypto::verify_ecdsa("ES256", x, y, signed, signature),
        Key::Ed25519(key) => crypto::verify_ed25519(key, signed, signature),
    }
}

impl Policy for Jwt {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        settings.check()?;
        let mut policy = Self { settings, keys: Vec::new(), version: None, secret: None };
        policy.read_keys()?;
        Ok(policy)
    }

    fn set_up(&mut self, setup: &Setup) -> Result<(), String> {
        // Nothing is kept of a request, and the keys need not be parsed for each.
        setup.reuse();
        if let Some(name) = &self.settings.secret {
            let secret = setup.secret(name).ok_or_else(|| format!("there is no secret {name:?} in [secrets]"))?;
            self.secret = Some(secret_key(secret)?);
        }
        Ok(())
    }

    fn authenticate(&mut self, request: &Request<'_>) -> Result<Verdict, Refusal> {
        // Where the document has become something else, the keys that were there last go on.
        let _ = self.read_keys();
        match self.decide(request, clock::unix_ms() as f64 / 1000.0, verify) {
            Ok(None) => Ok(Verdict::Next),
            Ok(Some((principal, limits))) => {
                // They are whole numbers of 32 bits.
                let set = request.set_limits(&limits);
                set.map(|()| Verdict::Allow(principal)).map_err(|why| Refusal::new(403, "limits_not_set", why))
            }
            Err(reason) => Err(Refusal::new(401, reason.code(), reason.message())),
        }
    }
}

impl Jwt {
    /// Reads the keys of the document if they are not those of its version.
    fn read_keys(&mut self) -> Result<(), String> {
        let Some(name) = &self.settings.jwks else { return Ok(()) };
        let version = documents::version(name);
        if version.is_some() && version == self.version {
            return Ok(());
        }
        let read = documents::read(name);
        let (version, bytes) = read.ok_or_else(|| format!("there is no document {name:?}: add [documents.{name}]"))?;
        // Once for each version, whatever comes of it.
        self.version = Some(version);
        self.keys = keys::of_set(&bytes).map_err(|why| format!("the document {name:?} {why}"))?;
        Ok(())
    }

    /// The caller, or none where the request has no token. `now` in seconds since the Unix epoch.
    fn decide(
        &self,
        request: &Request<'_>,
        now: f64,
        verify: token::Verify,
    ) -> Result<Option<(Principal, Limits)>, Reason> {
        let values = request.values("authorization");
        let [value] = values.as_slice() else {
            // Another hop may have accepted another one.
            return if values.is_empty() { Ok(None) } else { Err(Reason::Malformed) };
        };
        let Ok(value) = std::str::from_utf8(value) else { return Err(Reason::Malformed) };
        let Some((scheme, credential)) = value.trim().split_once(' ') else { return Ok(None) };
        let credential = credential.trim_start();
        if !scheme.eq_ignore_ascii_case("bearer") || !token::is_token(credential) {
            return Ok(None);
        }
        let keys = self.keys.iter().chain(&self.secret);
        let claims = token::verified(credential, keys, &self.settings, verify)?;
        token::check(&claims, &self.settings, now)?;
        caller::of(&claims, &self.settings).map(Some)
    }
}

fn secret_key(secret: Vec<u8>) -> Result<NamedKey, String> {
    if secret.len() < SECRET_MIN_BYTES {
        return Err(format!("the secret has {} bytes, at least {SECRET_MIN_BYTES} are needed", secret.len()));
    }
    Ok(NamedKey { kid: None, key: Key::Secret(secret) })
}

camshaft_plugin::export_auth!(Jwt);

#[cfg(test)]
mod tests;
