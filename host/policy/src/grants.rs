//! What the main configuration lets policies have: whoever may put a plugin into the directory grants it nothing.
use std::collections::BTreeMap;
use std::sync::Arc;

use camshaft_core::policy::Hook;
use serde::{Deserialize, Serialize};

use crate::matching::Pattern;

/// Entries, patterns of one key, and bytes of a pattern.
pub const GRANTS_MAX: usize = 256;
const PATTERNS_MAX: usize = 64;
const PATTERN_BYTES: usize = 2048;

/// What one policy may have, as it is configured. A pattern is exact, but for a `*` at its end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GrantEntry {
    /// `hook/name`, without the number of the file.
    pub policy: String,
    /// Headers that an auth policy reads as they came, in lower case. Of the others it reads `<redacted>`.
    pub headers: Vec<String>,
    /// Absolute paths, and URLs, of documents.
    pub documents: Vec<String>,
    /// Absolute paths of files, and variables with a `$` before them.
    pub secrets: Vec<String>,
    /// Whether it has a store.
    pub state: bool,
    /// Whether a validator reads the body, and a sampler or filter its fields.
    pub body: bool,
}

/// Why an entry is no grant: its key, and what that takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrongGrant {
    pub index: usize,
    pub key: &'static str,
    pub why: String,
}

/// What a policy may have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Grant {
    headers: Vec<Pattern>,
    documents: Vec<Pattern>,
    secrets: Vec<Pattern>,
    pub(crate) state: bool,
    pub(crate) body: bool,
}

impl Grant {
    /// Everything that its hook gives.
    pub(crate) fn all() -> Self {
        let all = || Pattern::parse("*").into_iter().collect();
        Self { headers: all(), documents: all(), secrets: all(), state: true, body: true }
    }

    fn nothing() -> Self {
        Self { headers: Vec::new(), documents: Vec::new(), secrets: Vec::new(), state: false, body: false }
    }

    /// Whether its settings may name a document at this path or URL.
    pub(crate) fn has_document(&self, from: &str) -> bool {
        covers(&self.documents, from)
    }

    /// Whether its settings may name a secret in this file, or `$VARIABLE`.
    pub(crate) fn has_secret(&self, from: &str) -> bool {
        covers(&self.secrets, from)
    }

    /// Whether it reads this header as it came.
    pub(crate) fn shows_header(&self, name: &str) -> bool {
        self.headers.iter().any(|pattern| pattern.admits(name))
    }
}

/// Whether a place is granted. What climbs out of a directory is not in it, however that is spelled.
fn covers(patterns: &[Pattern], place: &str) -> bool {
    let folded = place.to_ascii_lowercase();
    let climbs = folded.contains("..") || folded.contains("%2e") || folded.contains('\\');
    patterns.iter().any(|pattern| {
        let is_anything = pattern.is_prefix() && pattern.text().is_empty();
        pattern.admits(place) && (is_anything || !pattern.is_prefix() || !climbs)
    })
}

/// What each policy may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grants {
    by_policy: BTreeMap<(Hook, String), Arc<Grant>>,
    others: Arc<Grant>,
}

impl Default for Grants {
    /// Every policy has what its hook gives.
    fn default() -> Self {
        Self { by_policy: BTreeMap::new(), others: Arc::new(Grant::all()) }
    }
}

impl Grants {
    /// Nothing of what can be withheld, for anyone.
    pub fn nothing() -> Self {
        Self { by_policy: BTreeMap::new(), others: Arc::new(Grant::nothing()) }
    }

    /// `all`: policies without an entry have what their hooks give; else nothing of what can be withheld.
    ///
    /// # Errors
    /// The first wrong entry.
    pub fn new(all: bool, entries: &[GrantEntry]) -> Result<Self, WrongGrant> {
        let mut by_policy = BTreeMap::new();
        if entries.len() > GRANTS_MAX {
            let why = format!("is one of {}, more than the {GRANTS_MAX} allowed", entries.len());
            return Err(WrongGrant { index: GRANTS_MAX, key: "policy", why });
        }
        for (index, entry) in entries.iter().enumerate() {
            let wrong = |key, why: String| WrongGrant { index, key, why };
            let place = place(&entry.policy).ok_or_else(|| {
                wrong(
                    "policy",
                    format!("must be a hook and a name, such as \"auth/jwt\", got {:?}", shown(&entry.policy)),
                )
            })?;
            let headers = patterns(&entry.headers, |header| {
                header.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase())
            });
            let headers = headers.map_err(|why| wrong("headers", format!("must be names in lower case, {why}")))?;
            let documents = patterns(&entry.documents, |from| from.starts_with('/') || is_url(from) || from == "*");
            let expected = "must be absolute paths and URLs with a / after the host";
            let documents = documents.map_err(|why| wrong("documents", format!("{expected}, {why}")))?;
            let secrets = patterns(&entry.secrets, |from| from.starts_with(['/', '$']) || from == "*");
            let secrets =
                secrets.map_err(|why| wrong("secrets", format!("must be absolute paths and $VARIABLES, {why}")))?;
            let grant = Grant { headers, documents, secrets, state: entry.state, body: entry.body };
            if by_policy.insert(place, Arc::new(grant)).is_some() {
                return Err(wrong("policy", format!("has two entries: {:?}", shown(&entry.policy))));
            }
        }
        Ok(Self { by_policy, others: Arc::new(if all { Grant::all() } else { Grant::nothing() }) })
    }

    /// The policies that have an entry, by hook and name.
    pub(crate) fn policies(&self) -> impl Iterator<Item = (Hook, &str)> {
        self.by_policy.keys().map(|(hook, name)| (*hook, name.as_str()))
    }

    pub(crate) fn of(&self, hook: Hook, name: &str) -> Arc<Grant> {
        self.by_policy.get(&(hook, name.to_owned())).unwrap_or(&self.others).clone()
    }
}

fn place(policy: &str) -> Option<(Hook, String)> {
    let (hook, name) = policy.split_once('/')?;
    let hook = Hook::ALL.into_iter().find(|known| known.as_str() == hook)?;
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ok = (1..=255).contains(&name.len()) && name.bytes().all(plain);
    ok.then(|| (hook, name.to_owned()))
}

/// Without a `/` after the host, a pattern for one host would be one for others that begin alike.
fn is_url(pattern: &str) -> bool {
    let rest = ["https://", "http://"].into_iter().find_map(|scheme| pattern.strip_prefix(scheme));
    rest.and_then(|rest| rest.split_once('/')).is_some_and(|(host, _)| !host.is_empty() && !host.contains(['@', '*']))
}

fn patterns(texts: &[String], fits: impl Fn(&str) -> bool) -> Result<Vec<Pattern>, String> {
    if texts.len() > PATTERNS_MAX {
        return Err(format!("at most {PATTERNS_MAX} of them, got {}", texts.len()));
    }
    let pattern = |text: &String| {
        let fits = text.len() <= PATTERN_BYTES && fits(text);
        fits.then(|| Pattern::parse(text))
            .flatten()
            .ok_or_else(|| format!("with a * at the end at most, got {:?}", shown(text)))
    };
    texts.iter().map(pattern).collect()
}

fn shown(text: &str) -> String {
    text.chars().take(128).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(policy: &str) -> GrantEntry {
        GrantEntry { policy: policy.to_owned(), ..GrantEntry::default() }
    }

    #[test]
    fn refuses_what_is_no_grant_and_names_key_and_bound() {
        let many = |count: usize| vec!["a".to_owned(); count];
        let one = |text: &str| vec![text.to_owned()];
        let with = |entry: GrantEntry| Grants::new(true, &[entry]);
        assert!(with(GrantEntry { headers: many(64), ..entry("auth/x") }).is_ok());
        assert!(with(GrantEntry { documents: one(&format!("/{}", "a".repeat(2047))), ..entry("auth/x") }).is_ok());
        for (wrong, key) in [
            (entry("auth"), "policy"),
            (entry("auth/"), "policy"),
            (entry("auth/10_x"), "policy"),
            (entry("auths/x"), "policy"),
            (GrantEntry { headers: many(65), ..entry("auth/x") }, "headers"),
            (GrantEntry { headers: one("Cookie"), ..entry("auth/x") }, "headers"),
            (GrantEntry { headers: one("a*b"), ..entry("auth/x") }, "headers"),
            (GrantEntry { documents: one("etc/x"), ..entry("auth/x") }, "documents"),
            (GrantEntry { documents: one("https://idp.example*"), ..entry("auth/x") }, "documents"),
            (GrantEntry { documents: one("https://*/x"), ..entry("auth/x") }, "documents"),
            (GrantEntry { documents: one(&format!("/{}", "a".repeat(2048))), ..entry("auth/x") }, "documents"),
            (GrantEntry { secrets: one("PATH"), ..entry("auth/x") }, "secrets"),
        ] {
            let shown = format!("{wrong:?}");
            assert_eq!(with(wrong).unwrap_err().key, key, "{}", &shown[..shown.len().min(200)]);
        }
        let entries: Vec<GrantEntry> = (0..=GRANTS_MAX).map(|number| entry(&format!("auth/x{number}"))).collect();
        assert!(Grants::new(true, &entries[1..]).is_ok());
        assert!(Grants::new(true, &entries).unwrap_err().why.contains("256"));
        assert_eq!(Grants::new(true, &[entry("auth/x"), entry("auth/x")]).unwrap_err().index, 1);
    }
}
