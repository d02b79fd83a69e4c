//! From a token's claims to the caller.
use camshaft_plugin::Priority;
use camshaft_plugin::auth::{Limits, Principal};
use serde_json::Value;

use crate::settings::{PriorityClass, Settings, TENANT_CHARACTERS};
use crate::token::{Reason, holds};

/// Of names, models and a model's name; the host takes no more.
const NAME_CHARACTERS: usize = 256;
const MODELS: usize = 1024;
const MODEL_CHARACTERS: usize = 256;

/// A claim by its name or JSON pointer.
fn claim<'a>(claims: &'a Value, name: &str) -> Option<&'a Value> {
    let found = if name.starts_with('/') { claims.pointer(name) } else { claims.get(name) };
    found.filter(|value| !value.is_null())
}

/// A claim that must be text, if it is there.
fn text(claims: &Value, name: &str, characters: usize) -> Result<Option<String>, Reason> {
    let Some(value) = claim(claims, name) else { return Ok(None) };
    let text = value.as_str().filter(|text| (1..=characters).contains(&text.chars().count()));
    text.map(|text| Some(text.to_owned())).ok_or(Reason::InvalidClaim)
}

/// The caller that the claims of a valid token name.
///
/// # Errors
/// A claim is missing, or says what cannot be.
pub(crate) fn of(claims: &Value, settings: &Settings) -> Result<(Principal, Limits), Reason> {
    let names = &settings.claims;
    let admin = settings
        .admin
        .as_ref()
        .filter(|admin| claim(claims, &admin.claim).is_some_and(|value| holds(value, &admin.value)));
    let tenant = match (admin, text(claims, &names.tenant, TENANT_CHARACTERS)?) {
        (Some(admin), _) => admin.tenant.clone(),
        (None, Some(tenant)) if settings.may_be_claimed(&tenant) => tenant,
        (None, Some(_)) => return Err(Reason::InvalidClaim),
        (None, None) => settings.tenant.clone().ok_or(Reason::MissingClaim)?,
    };
    let name = text(claims, &names.name, NAME_CHARACTERS)?.ok_or(Reason::MissingClaim)?;
    let models = names.models.as_ref().and_then(|name| claim(claims, name)).map(models).transpose()?;
    let limit = |name: &Option<String>, usual: Option<u32>| match name.as_ref().and_then(|name| claim(claims, name)) {
        None => Ok(usual),
        Some(value) => {
            let value = value.as_u64().and_then(|value| u32::try_from(value).ok());
            value.map(Some).ok_or(Reason::InvalidClaim)
        }
    };
    let limits = Limits {
        requests_per_minute: limit(&names.requests_per_minute, settings.limits.requests_per_minute)?,
        tokens_per_minute: limit(&names.tokens_per_minute, settings.limits.tokens_per_minute)?,
        concurrent_requests: limit(&names.concurrent_requests, settings.limits.concurrent_requests)?,
        queue_share: None,
    };
    let principal =
        Principal { priority: priority(claims, settings), allowed_models: models, ..Principal::new(name, tenant) };
    Ok((principal, limits))
}

/// What the token may use; a list that cannot be read would otherwise mean all.
fn models(value: &Value) -> Result<Vec<String>, Reason> {
    let list = value.as_array().filter(|list| list.len() <= MODELS).ok_or(Reason::InvalidClaim)?;
    let name = |model: &Value| {
        let name = model.as_str().filter(|name| name.chars().count() <= MODEL_CHARACTERS);
        name.map(str::to_owned).ok_or(Reason::InvalidClaim)
    };
    list.iter().map(name).collect()
}

fn priority(claims: &Value, settings: &Settings) -> u8 {
    let said = settings.claims.priority.as_ref().and_then(|name| claim(claims, name)).and_then(Value::as_str);
    match said.and_then(|said| settings.priorities.get(said)).unwrap_or(&settings.priority) {
        PriorityClass::High => Priority::HIGH,
        PriorityClass::Normal => Priority::NORMAL,
        PriorityClass::Low => Priority::LOW,
    }
}
