//! `[match]`: the requests that a policy is asked about.
use std::fmt;

use camshaft_core::policy::Target;
use serde::{Deserialize, Serialize};

/// Exact text, or everything that begins with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pattern {
    text: String,
    is_prefix: bool,
}

impl Pattern {
    /// A `*` at the end stands for any rest. `None`: it is empty, or has a `*` elsewhere.
    pub(crate) fn parse(pattern: &str) -> Option<Self> {
        let (text, is_prefix) = match pattern.strip_suffix('*') {
            Some(text) => (text, true),
            None => (pattern, false),
        };
        let ok = !pattern.is_empty() && !text.contains('*');
        ok.then(|| Self { text: text.to_owned(), is_prefix })
    }

    pub(crate) fn admits(&self, text: &str) -> bool {
        if self.is_prefix { text.starts_with(&self.text) } else { text == self.text }
    }

    /// Without the `*`.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn is_prefix(&self) -> bool {
        self.is_prefix
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, if self.is_prefix { "*" } else { "" })
    }
}

/// Which requests a policy is asked about: those that match a pattern of each list. An empty list matches all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Matching {
    pub(crate) tenants: Vec<Pattern>,
    pub(crate) models: Vec<Pattern>,
    pub(crate) endpoints: Vec<Pattern>,
}

impl Matching {
    /// Whether it is asked about every request.
    pub(crate) fn is_all(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn admits(&self, target: Target<'_>) -> bool {
        self.admits_endpoint(target.endpoint.as_str())
            && self.admits_model(target.model)
            && any(&self.tenants, target.tenant.as_str())
    }

    /// Of auth policies, the path of a route; of others, the name of an endpoint.
    pub(crate) fn admits_endpoint(&self, endpoint: &str) -> bool {
        any(&self.endpoints, endpoint)
    }

    pub(crate) fn admits_model(&self, model: &str) -> bool {
        any(&self.models, model)
    }
}

fn any(patterns: &[Pattern], text: &str) -> bool {
    patterns.is_empty() || patterns.iter().any(|pattern| pattern.admits(text))
}

#[cfg(test)]
mod tests {
    use camshaft_core::ids::TenantId;
    use camshaft_core::policy::Endpoint;

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<Pattern> {
        texts.iter().map(|text| Pattern::parse(text).unwrap()).collect()
    }

    #[test]
    fn a_pattern_is_exact_but_for_a_star_at_its_end() {
        for (pattern, text, admits) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a", "A", false),
            ("a*", "a", true),
            ("a*", "ab", true),
            ("a*", "b", false),
            ("*", "", true),
            ("/v1/*", "/v1/models", true),
            ("/v1/*", "/v1", false),
            ("a.c", "abc", false),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().admits(text), admits, "{pattern} {text}");
        }
        for wrong in ["", "*a", "a*b", "**"] {
            assert_eq!(Pattern::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn every_list_must_match() {
        let matching = Matching {
            tenants: patterns(&["acme", "team-*"]),
            models: patterns(&["demo"]),
            endpoints: patterns(&["chat"]),
        };
        for (tenant, model, endpoint, admits) in [
            ("acme", "demo", Endpoint::Chat, true),
            ("team-a", "demo", Endpoint::Chat, true),
            ("other", "demo", Endpoint::Chat, false),
            ("acme", "demo-2", Endpoint::Chat, false),
            ("acme", "demo", Endpoint::Completion, false),
        ] {
            let tenant = TenantId::from(tenant);
            let target = Target { tenant: &tenant, model, endpoint };
            assert_eq!(matching.admits(target), admits, "{target:?}");
            assert!(Matching::default().admits(target) && Matching::default().is_all());
        }
        assert!(!matching.is_all());
    }
}
