//! The keys that tokens may be signed with: those of a JWK set (RFC 7517), and a secret.
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

use crate::settings::Algorithm;

/// Keys of one set.
const KEYS_MAX: usize = 256;

/// What verifies a signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Key {
    Secret(Vec<u8>),
    Rsa { n: Vec<u8>, e: Vec<u8> },
    P256 { x: Vec<u8>, y: Vec<u8> },
    Ed25519(Vec<u8>),
}

impl Key {
    /// The one algorithm that it is for: a public key must never serve as a secret.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self {
            Key::Secret(_) => Algorithm::HS256,
            Key::Rsa { .. } => Algorithm::RS256,
            Key::P256 { .. } => Algorithm::ES256,
            Key::Ed25519(_) => Algorithm::EdDSA,
        }
    }
}

/// A key and the name that tokens call it by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedKey {
    pub(crate) kid: Option<String>,
    pub(crate) key: Key,
}

#[derive(Deserialize)]
struct Set {
    /// Each for itself: one that is odd must not cost the others.
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

/// The keys of a set that verify what this policy verifies. Others are passed over, as RFC 7517 asks; secrets (`oct`) too, which have
/// no place in a document.
///
/// # Errors
/// It is no JWK set, or has too many keys.
pub(crate) fn of_set(json: &[u8]) -> Result<Vec<NamedKey>, String> {
    let Set { keys } = serde_json::from_slice(json).map_err(|error| format!("is no JWK set: {error}"))?;
    if keys.len() > KEYS_MAX {
        return Err(format!("has {} keys, at most {KEYS_MAX} are allowed", keys.len()));
    }
    Ok(keys.into_iter().filter_map(|key| usable(serde_json::from_value(key).ok()?)).collect())
}

fn usable(jwk: Jwk) -> Option<NamedKey> {
    let verifies = jwk.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"));
    if jwk.usage.as_ref().is_some_and(|usage| usage != "sig") || !verifies {
        return None;
    }
    let key = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("RSA", _) => Key::Rsa { n: decoded(&jwk.n?)?, e: decoded(&jwk.e?)? },
        ("EC", Some("P-256")) => Key::P256 { x: decoded(&jwk.x?)?, y: decoded(&jwk.y?)? },
        ("OKP", Some("Ed25519")) => Key::Ed25519(decoded(&jwk.x?)?),
        _ => return None,
    };
    // RFC 9864 calls EdDSA with this curve so.
    let is_named = |alg: &String| {
        Algorithm::named(alg) == Some(key.algorithm()) || matches!((&key, alg.as_str()), (Key::Ed25519(_), "Ed25519"))
    };
    let fits = jwk.alg.as_ref().is_none_or(is_named);
    fits.then_some(NamedKey { kid: jwk.kid, key })
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

/// The key that a token is to be verified with: of its algorithm and name; without a name, the only one of its algorithm.
pub(crate) fn choose<'a>(
    keys: impl Iterator<Item = &'a NamedKey>,
    algorithm: Algorithm,
    kid: Option<&str>,
) -> Option<&'a Key> {
    let mut fitting = keys.filter(|named| {
        named.key.algorithm() == algorithm
            && (kid.is_none() || algorithm == Algorithm::HS256 || named.kid.as_deref() == kid)
    });
    let first = fitting.next()?;
    // Which of several it is would be a guess, unless a set has the same key twice.
    fitting.all(|other| other.key == first.key).then_some(&first.key)
}
