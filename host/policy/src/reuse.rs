//! Verdicts of one load of an auth policy that may be used again, for as long as the policy said.
//!
//! A verdict is found by a keyed hash of everything that the policy could see of the call, except headers that it did not name.
//! The headers that carry credentials always count, so that a policy that forgets to name them hands no caller another's verdict.
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::policy::{AuthOutcome, AuthRequest, Authentication, Principal};
use ring::hmac;
use ring::rand::SystemRandom;

/// Longest time for which a verdict may be used again.
pub(crate) const REUSE_MAX: Duration = Duration::from_secs(600);
/// Headers that a policy may name for one verdict, and characters of a name.
pub(crate) const REUSE_HEADERS: usize = 16;
pub(crate) const REUSE_NAME_CHARS: usize = 64;
/// Different lists of headers of one policy. Each costs a hash per request.
const SELECTIONS: usize = 4;
/// Verdicts that allow, and those that refuse. Callers without credentials fill only the second part.
const ALLOWED: Bound = Bound { entries: 4096, bytes: 4 << 20 };
const REFUSED: Bound = Bound { entries: 1024, bytes: 1 << 20 };
/// Bytes of one verdict.
const VERDICT_BYTES: usize = 64 << 10;
/// What an entry takes besides its texts.
const ENTRY_BYTES: usize = 512;
/// Headers that always count.
const CREDENTIALS: [&str; 3] = ["authorization", "cookie", "x-api-key"];

type Key = [u8; 32];

/// How long a policy lets its verdict be used again, and for which calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reuse {
    time: Duration,
    /// In order, each once.
    headers: Arc<[String]>,
}

impl Reuse {
    /// # Errors
    /// The time or a name is out of bounds.
    pub(crate) fn new(ms: u64, headers: Vec<String>) -> Result<Self, String> {
        let time = Duration::from_millis(ms);
        if time > REUSE_MAX {
            return Err(format!("a verdict to use again for {ms} ms, over {}", REUSE_MAX.as_millis()));
        }
        if headers.len() > REUSE_HEADERS {
            return Err(format!("a verdict to use again by {} headers, over {REUSE_HEADERS}", headers.len()));
        }
        let is_allowed = |byte: u8| matches!(byte, b'!'..=b'~') && !byte.is_ascii_uppercase();
        let is_name = |name: &String| (1..=REUSE_NAME_CHARS).contains(&name.len()) && name.bytes().all(is_allowed);
        if let Some(name) = headers.iter().find(|name| !is_name(name)) {
            let shown: String = name.chars().take(128).collect();
            return Err(format!(
                "a verdict to use again by the header {shown:?}, which is not 1 to {REUSE_NAME_CHARS} lower-case characters"
            ));
        }
        let mut headers: Vec<String> = headers.into_iter().chain(CREDENTIALS.into_iter().map(str::to_owned)).collect();
        headers.sort_unstable();
        headers.dedup();
        Ok(Self { time, headers: headers.into() })
    }
}

/// See the module.
pub(crate) struct Verdicts {
    key: Option<hmac::Key>,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    selections: Vec<Arc<[String]>>,
    allowed: Table,
    refused: Table,
}

#[derive(Debug, Clone, Copy)]
struct Bound {
    entries: usize,
    bytes: usize,
}

/// Verdicts, the oldest of which make room.
#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Key, Entry>,
    /// Each entry once.
    order: VecDeque<Key>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    verdict: Authentication,
    ends: Instant,
    bytes: usize,
}

impl fmt::Debug for Verdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdicts").finish_non_exhaustive()
    }
}

impl Default for Verdicts {
    fn default() -> Self {
        // Without random numbers nothing is used again.
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok();
        Self { key, kept: Mutex::default() }
    }
}

impl Verdicts {
    /// The verdict on an equal call, if it may be used again now.
    pub(crate) fn find(&self, request: &AuthRequest, now: Instant) -> Option<Authentication> {
        let key = self.key.as_ref()?;
        let selections = self.kept().selections.clone();
        selections.iter().find_map(|headers| {
            let hash = hash(key, request, headers);
            let kept = self.kept();
            [&kept.allowed, &kept.refused].into_iter().find_map(|table| table.get(&hash, now))
        })
    }

    /// Keeps a verdict that its policy lets be used again, if what it was made with still `holds`. Whoever changes that calls
    /// [`Verdicts::clear`] then.
    pub(crate) fn keep(
        &self,
        request: &AuthRequest,
        (reuse, verdict): (&Reuse, &Authentication),
        now: Instant,
        holds: impl FnOnce() -> bool,
    ) {
        let (Some(key), Some(ends)) = (self.key.as_ref(), now.checked_add(reuse.time)) else { return };
        let bytes = ENTRY_BYTES + size(verdict);
        let bound = match verdict.outcome {
            AuthOutcome::Allow(_) => ALLOWED,
            AuthOutcome::Refuse(_) => REFUSED,
            AuthOutcome::Fault(_) => return,
        };
        if reuse.time.is_zero() || bytes > VERDICT_BYTES {
            return;
        }
        let hash = hash(key, request, &reuse.headers);
        let mut kept = self.kept();
        // Under the lock: a change after this clears what is kept here.
        if !holds() {
            return;
        }
        if !kept.selections.contains(&reuse.headers) {
            if kept.selections.len() >= SELECTIONS {
                return;
            }
            kept.selections.push(reuse.headers.clone());
        }
        let kept = &mut *kept;
        // The newest answer to a call is the only one.
        let (table, other) = match verdict.outcome {
            AuthOutcome::Allow(_) => (&mut kept.allowed, &mut kept.refused),
            _ => (&mut kept.refused, &mut kept.allowed),
        };
        other.end(&hash, now);
        table.insert(hash, Entry { verdict: verdict.clone(), ends, bytes }, bound);
    }

    /// Forgets all of them: what serves has changed.
    pub(crate) fn clear(&self) {
        *self.kept() = Kept::default();
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn get(&self, key: &Key, now: Instant) -> Option<Authentication> {
        self.entries.get(key).filter(|entry| now < entry.ends).map(|entry| entry.verdict.clone())
    }

    /// It keeps its place in the order until it makes room.
    fn end(&mut self, key: &Key, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.ends = entry.ends.min(now);
        }
    }

    fn insert(&mut self, key: Key, entry: Entry, bound: Bound) {
        self.bytes += entry.bytes;
        match self.entries.insert(key, entry) {
            Some(old) => self.bytes -= old.bytes,
            None => self.order.push_back(key),
        }
        while self.entries.len() > bound.entries || self.bytes > bound.bytes {
            let Some(oldest) = self.order.pop_front() else { return };
            self.bytes -= self.entries.remove(&oldest).map_or(0, |entry| entry.bytes);
        }
    }
}

/// The call as a verdict with these headers depends on it. Each part goes in with its length, so that no two calls are alike by
/// where one part ends.
fn hash(key: &hmac::Key, request: &AuthRequest, headers: &[String]) -> Key {
    // Without `..`: a fact that is added does not compile until it is part of the key, or left out here.
    let AuthRequest {
        method,
        path,
        route,
        query,
        headers: sent,
        remote_address,
        loopback,
        peer_certificates,
        id: _,
        // A verdict that asked for it is not kept.
        body_sha256: _,
    } = request;
    let mut context = hmac::Context::with_key(key);
    let count = |context: &mut hmac::Context, count: usize| context.update(&(count as u64).to_le_bytes());
    let part = |context: &mut hmac::Context, part: &[u8]| {
        count(context, part.len());
        context.update(part);
    };
    for text in [method, path, route, query, remote_address] {
        part(&mut context, text.as_bytes());
    }
    context.update(&[u8::from(*loopback)]);
    count(&mut context, peer_certificates.len());
    peer_certificates.iter().for_each(|certificate| part(&mut context, certificate));
    count(&mut context, headers.len());
    for name in headers {
        part(&mut context, name.as_bytes());
        let values = || sent.iter().filter(|(header, _)| header == name);
        count(&mut context, values().count());
        values().for_each(|(_, value)| part(&mut context, value));
    }
    let tag = context.sign();
    let mut hash = [0; 32];
    hash.copy_from_slice(tag.as_ref());
    hash
}

/// Bytes of its texts.
fn size(verdict: &Authentication) -> usize {
    let headers: usize = verdict.reply.headers().iter().map(|(name, value)| name.len() + value.len()).sum();
    headers
        + match &verdict.outcome {
            AuthOutcome::Allow(Principal { name, tenant, allowed_models, cache_namespace, attributes, .. }) => {
                let models = allowed_models.iter().flatten().map(|model| size_of::<String>() + model.len());
                let texts = name.len() + tenant.as_str().len() + cache_namespace.len();
                texts + models.sum::<usize>() + attributes.bytes()
            }
            AuthOutcome::Refuse(refusal) => {
                refusal.code.len() + refusal.message.len() + refusal.param.as_ref().map_or(0, String::len)
            }
            AuthOutcome::Fault(_) => 0,
        }
}

#[cfg(test)]
#[path = "reuse_tests.rs"]
mod tests;
