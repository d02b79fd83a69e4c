//! A signed token (RFC 7519): its parts, its signature, the time in which it holds.
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

use crate::keys::{self, Key, NamedKey};
use crate::settings::{Algorithm, Settings};

/// Bytes of a token.
pub(crate) const TOKEN_BYTES: usize = 16 << 10;

/// Why a token is refused. Nothing that a token claims is looked at before its signature is verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Malformed,
    TooLarge,
    Algorithm,
    UnknownKey,
    Signature,
    Expired,
    NotYet,
    Issuer,
    Audience,
    MissingClaim,
    InvalidClaim,
}

impl Reason {
    pub(crate) fn code(self) -> &'static str {
        match self {
            Reason::Malformed => "token_malformed",
            Reason::TooLarge => "token_too_large",
            Reason::Algorithm => "token_algorithm_not_allowed",
            Reason::UnknownKey => "token_key_unknown",
            Reason::Signature => "token_signature_invalid",
            Reason::Expired => "token_expired",
            Reason::NotYet => "token_not_yet_valid",
            Reason::Issuer => "token_issuer_not_allowed",
            Reason::Audience => "token_audience_not_allowed",
            Reason::MissingClaim => "token_claim_missing",
            Reason::InvalidClaim => "token_claim_invalid",
        }
    }

    pub(crate) fn message(self) -> &'static str {
        match self {
            Reason::Malformed => "the token is not a signed JSON Web Token",
            Reason::TooLarge => "the token has more than 16384 bytes",
            Reason::Algorithm => "the token is signed with an algorithm that is not allowed",
            Reason::UnknownKey => "the token names no key that is known",
            Reason::Signature => "the token's signature is not valid",
            Reason::Expired => "the token has expired",
            Reason::NotYet => "the token is not valid yet",
            Reason::Issuer => "the token's issuer is not allowed",
            Reason::Audience => "the token is for another audience",
            Reason::MissingClaim => "the token lacks a claim that is needed",
            Reason::InvalidClaim => "a claim of the token has a value that cannot be used",
        }
    }
}

/// Verifies a signature of the bytes before it.
pub(crate) type Verify = fn(key: &Key, signed: &[u8], signature: &[u8]) -> Result<bool, String>;

#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood (RFC 7515, 4.1.11): there are none.
    crit: Option<Value>,
}

/// Whether it looks like a token, and not like another kind of credential.
pub(crate) fn is_token(credential: &str) -> bool {
    credential.bytes().filter(|&byte| byte == b'.').count() == 2
}

/// The claims of a token whose signature is valid.
///
/// # Errors
/// It is none, or signed in a way or with a key that does not count.
pub(crate) fn verified<'a>(
    token: &str,
    keys: impl Iterator<Item = &'a NamedKey>,
    settings: &Settings,
    verify: Verify,
) -> Result<Value, Reason> {
    if token.len() > TOKEN_BYTES {
        return Err(Reason::TooLarge);
    }
    let (signed, signature) = token.rsplit_once('.').ok_or(Reason::Malformed)?;
    let (header, payload) = signed.split_once('.').ok_or(Reason::Malformed)?;
    let decoded = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| Reason::Malformed);
    let header: Header = serde_json::from_slice(&decoded(header)?).map_err(|_| Reason::Malformed)?;
    let (payload, signature) = (decoded(payload)?, decoded(signature)?);
    if header.crit.is_some() {
        return Err(Reason::Malformed);
    }
    let algorithm = Algorithm::named(&header.alg).filter(|&algorithm| settings.allows(algorithm));
    let algorithm = algorithm.ok_or(Reason::Algorithm)?;
    let key = keys::choose(keys, algorithm, header.kid.as_deref()).ok_or(Reason::UnknownKey)?;
    // A key that cannot be used has signed nothing.
    if verify(key, signed.as_bytes(), &signature) != Ok(true) {
        return Err(Reason::Signature);
    }
    let claims: Value = serde_json::from_slice(&payload).map_err(|_| Reason::Malformed)?;
    if claims.is_object() { Ok(claims) } else { Err(Reason::Malformed) }
}

/// Checks when, by whom and for whom the token was made. `now` in seconds since the Unix epoch.
///
/// # Errors
/// It does not hold now or here.
pub(crate) fn check(claims: &Value, settings: &Settings, now: f64) -> Result<(), Reason> {
    let leeway = f64::from(settings.leeway);
    let time = |name: &str| match claims.get(name) {
        None => Ok(None),
        Some(value) => value.as_f64().filter(|time| time.is_finite()).map(Some).ok_or(Reason::InvalidClaim),
    };
    let expires = time("exp")?.ok_or(Reason::MissingClaim)?;
    if now >= expires + leeway {
        return Err(Reason::Expired);
    }
    if [time("nbf")?, time("iat")?].into_iter().flatten().any(|from| now < from - leeway) {
        return Err(Reason::NotYet);
    }
    if let Some(issuers) = &settings.issuers {
        let issuer = claims.get("iss").ok_or(Reason::MissingClaim)?.as_str().ok_or(Reason::Issuer)?;
        if !issuers.iter().any(|allowed| allowed == issuer) {
            return Err(Reason::Issuer);
        }
    }
    if let Some(audiences) = &settings.audiences {
        let audience = claims.get("aud").ok_or(Reason::MissingClaim)?;
        if !audiences.iter().any(|allowed| holds(audience, allowed)) {
            return Err(Reason::Audience);
        }
    }
    Ok(())
}

/// Whether a claim is this text, or a list with it.
pub(crate) fn holds(claim: &Value, text: &str) -> bool {
    match claim {
        Value::String(value) => value == text,
        Value::Array(values) => values.iter().any(|value| value == text),
        _ => false,
    }
}
