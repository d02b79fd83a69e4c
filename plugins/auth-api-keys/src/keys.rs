//! Checks the configured keys, and compares a presented key with all of them.
use std::collections::{BTreeMap, BTreeSet};

use camshaft_plugin::Priority;
use camshaft_plugin::auth::{Principal, Quotas};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::settings::{KeySettings, PriorityClass};

/// Maximum number of keys. Every request parses the settings and compares with all keys; more belong in a directory
/// service.
const MAX_KEYS: usize = 1024;
const MAX_TENANT_CHARACTERS: usize = 128;

#[derive(Debug)]
pub(crate) struct Key {
    digest: [u8; 32],
    principal: Principal,
}

/// Checks the keys of the settings. The error describes the first bad one.
pub(crate) fn checked(settings: Vec<KeySettings>) -> Result<Vec<Key>, String> {
    if settings.len() > MAX_KEYS {
        return Err(format!("settings.keys has {} entries, at most {MAX_KEYS} are allowed", settings.len()));
    }
    let mut keys = Vec::with_capacity(settings.len());
    let mut names = BTreeSet::new();
    let mut digests = BTreeMap::new();
    for (index, entry) in settings.into_iter().enumerate() {
        let key = checked_key(index, entry)?;
        let name = &key.principal.name;
        if !names.insert(name.clone()) {
            return Err(format!("settings.keys[{index}].name {name:?} is used twice"));
        }
        if let Some(other) = digests.insert(key.digest, name.clone()) {
            return Err(format!("key {name:?}: sha256 is the same as that of key {other:?}"));
        }
        keys.push(key);
    }
    Ok(keys)
}

fn checked_key(index: usize, entry: KeySettings) -> Result<Key, String> {
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
    if entry.tenant.chars().count() > MAX_TENANT_CHARACTERS {
        return Err(format!("key {name:?}: tenant has more than {MAX_TENANT_CHARACTERS} characters"));
    }
    if !(entry.weight > 0.0 && entry.weight <= 1000.0) {
        return Err(format!("key {name:?}: weight must be above 0 and at most 1000, not {}", entry.weight));
    }
    if let Some(share) = entry.queue_share.filter(|&share| !(share > 0.0 && share <= 1.0)) {
        return Err(format!("key {name:?}: queue-share must be above 0 and at most 1, not {share}"));
    }
    let priority = match entry.priority {
        PriorityClass::High => Priority::High,
        PriorityClass::Normal => Priority::Normal,
        PriorityClass::Low => Priority::Low,
    };
    let quotas = Quotas {
        requests_per_minute: entry.requests_per_minute,
        tokens_per_minute: entry.tokens_per_minute,
        concurrent_requests: entry.concurrent_requests,
        queue_share: entry.queue_share,
    };
    let principal = Principal {
        priority,
        weight: entry.weight,
        quotas,
        allowed_models: entry.allowed_models,
        cache_namespace: entry.cache_namespace,
        ..Principal::new(name, entry.tenant)
    };
    Ok(Key { digest, principal })
}

/// Parses 64 hexadecimal digits.
fn digest(text: &str) -> Option<[u8; 32]> {
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

/// The owner of a key. Compares with every configured digest, even after a match, so that the time reveals nothing.
pub(crate) fn find<'a>(keys: &'a [Key], presented: &str) -> Option<&'a Principal> {
    let presented: [u8; 32] = Sha256::digest(presented.as_bytes()).into();
    let mut found = u32::MAX;
    for (index, key) in (0u32..).zip(keys) {
        found.conditional_assign(&index, key.digest.ct_eq(&presented));
    }
    keys.get(usize::try_from(found).ok()?).map(|key| &key.principal)
}
