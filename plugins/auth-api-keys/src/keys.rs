//! Checks the configured keys, and looks a presented key up by its digest.
use std::collections::{BTreeMap, BTreeSet};

use camshaft_plugin::Priority;
use camshaft_plugin::auth::{Limits, Principal};

use crate::settings::{KeySettings, PriorityClass};

/// Maximum number of keys: more belong in a directory service.
const MAX_KEYS: usize = 1024;
/// Of tenants and namespaces; the host takes no longer ones.
const MAX_LABEL_CHARACTERS: usize = 128;
/// The tenant of callers without a key. On loopback addresses they count as operators.
pub(crate) const ANONYMOUS: &str = "anonymous";

/// Whose a key is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Owner {
    pub(crate) principal: Principal,
    pub(crate) limits: Limits,
}

/// The owners of keys, by the SHA-256 of each. Who wants to learn a key from the time of a look-up would have to choose the
/// digest of a guess.
pub(crate) type Keys = BTreeMap<[u8; 32], Owner>;

/// Checks the keys of the settings. The error describes the first bad one.
pub(crate) fn checked(settings: Vec<KeySettings>) -> Result<Keys, String> {
    if settings.len() > MAX_KEYS {
        return Err(format!("settings.keys has {} entries, at most {MAX_KEYS} are allowed", settings.len()));
    }
    let mut keys = Keys::new();
    let mut names = BTreeSet::new();
    for (index, entry) in settings.into_iter().enumerate() {
        let (digest, owner) = checked_key(index, entry)?;
        let name = owner.principal.name.clone();
        if !names.insert(name.clone()) {
            return Err(format!("settings.keys[{index}].name {name:?} is used twice"));
        }
        if let Some(other) = keys.insert(digest, owner) {
            let other = other.principal.name;
            return Err(format!("key {name:?}: sha256 is the same as that of key {other:?}"));
        }
    }
    Ok(keys)
}

/// The owner of a key whose settings were checked before.
pub(crate) fn owner_of(entry: KeySettings) -> Option<Owner> {
    checked_key(0, entry).ok().map(|(_, owner)| owner)
}

fn checked_key(index: usize, entry: KeySettings) -> Result<([u8; 32], Owner), String> {
    let name = entry.name;
    if name.trim().is_empty() {
        return Err(format!("settings.keys[{index}].name is empty"));
    }
    let Some(digest) = digest(&entry.sha256) else {
        return Err(format!(
            "key {name:?}: sha256 must be 64 hexadecimal digits (printf %s \"$KEY\" | sha256sum | cut -d' ' -f1)"
        ));
    };
    if entry.tenant.trim().is_empty() {
        return Err(format!("key {name:?}: tenant is empty"));
    }
    if entry.tenant == ANONYMOUS {
        return Err(format!("key {name:?}: tenant {ANONYMOUS:?} is that of callers without a key"));
    }
    if entry.tenant.chars().count() > MAX_LABEL_CHARACTERS {
        return Err(format!("key {name:?}: tenant has more than {MAX_LABEL_CHARACTERS} characters"));
    }
    if !(entry.weight > 0.0 && entry.weight <= 1000.0) {
        return Err(format!("key {name:?}: weight must be above 0 and at most 1000, not {}", entry.weight));
    }
    if let Some(share) = entry.queue_share.filter(|&share| !(share > 0.0 && share <= 1.0)) {
        return Err(format!("key {name:?}: queue-share must be above 0 and at most 1, not {share}"));
    }
    match entry.cache_namespace.as_ref().map(|namespace| namespace.chars().count()) {
        Some(0) => return Err(format!("key {name:?}: cache-namespace is empty (leave it out for the tenant's own)")),
        Some(count) if count > MAX_LABEL_CHARACTERS => {
            return Err(format!("key {name:?}: cache-namespace has more than {MAX_LABEL_CHARACTERS} characters"));
        }
        _ => {}
    }
    let priority = match entry.priority {
        PriorityClass::High => Priority::HIGH,
        PriorityClass::Normal => Priority::NORMAL,
        PriorityClass::Low => Priority::LOW,
    };
    let limits = Limits {
        requests_per_minute: entry.requests_per_minute,
        tokens_per_minute: entry.tokens_per_minute,
        concurrent_requests: entry.concurrent_requests,
        queue_share: entry.queue_share,
    };
    let principal = Principal {
        priority,
        weight: entry.weight,
        allowed_models: entry.allowed_models,
        cache_namespace: entry.cache_namespace,
        ..Principal::new(name, entry.tenant)
    };
    Ok((digest, Owner { principal, limits }))
}

/// Parses 64 hexadecimal digits.
pub(crate) fn digest(text: &str) -> Option<[u8; 32]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != 32 || !rest.is_empty() {
        return None;
    }
    let mut digest = [0; 32];
    for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
        let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(digest)
}
