//! `[match]` of a settings file.
use camshaft_core::policy::{Endpoint, Hook, guarded};
use toml::{Table, Value};

use super::mistake::{SidecarMistake, bad, unknown};
use crate::error::SettingsError;
use crate::matching::{Matching, Pattern};
use crate::spec::spec;

/// Patterns of one key, and characters of one.
const PATTERNS_MAX: usize = 64;
const PATTERN_CHARS: usize = 256;

const LIST: &str = "expected a list of 1 to 64 names of 1 to 256 characters, each with a * at its end at most";
const PATHS: &str = r#"expected paths of routes, such as "/v1/models" or "/v1/*""#;
const NAMES: &str = r#"expected "chat", "completion", "embedding" or "prediction""#;
const GENERATING: &str = r#"expected "chat" or "completion""#;

/// # Errors
/// Names the wrong key and what it takes.
pub(super) fn read(hook: Hook, table: Table) -> Result<Matching, SidecarMistake> {
    let known = spec(hook).matches;
    let mut matching = Matching::default();
    for (key, value) in table {
        if !known.contains(&key.as_str()) {
            return Err(unknown(&key, "match.", known));
        }
        let at = format!("match.{key}");
        let patterns = patterns(&value).ok_or_else(|| bad(&at, &value, LIST))?;
        match key.as_str() {
            "tenants" => matching.tenants = patterns,
            "models" => matching.models = patterns,
            _ if hook == Hook::Auth => {
                let is_path = |pattern: &Pattern| {
                    pattern.text().starts_with('/') || pattern.is_prefix() && pattern.text().is_empty()
                };
                if !patterns.iter().all(is_path) {
                    return Err(bad(&at, &value, PATHS));
                }
                // It would guard nothing, and nobody would notice.
                let is_route = |pattern: &&Pattern| guarded::ROUTES.iter().any(|route| pattern.admits(route));
                if let Some(pattern) = patterns.iter().find(|pattern| !is_route(pattern)) {
                    let problem = SettingsError::NoRoute { pattern: pattern.to_string() };
                    return Err(SidecarMistake { key: at, problem });
                }
                matching.endpoints = patterns;
            }
            _ => {
                let endpoints = spec(hook).endpoints;
                let is_one = |pattern: &Pattern| endpoints.iter().any(|endpoint| pattern.admits(endpoint.as_str()));
                if !patterns.iter().all(is_one) {
                    let is_any = endpoints.contains(&Endpoint::Embedding);
                    return Err(bad(&at, &value, if is_any { NAMES } else { GENERATING }));
                }
                matching.endpoints = patterns;
            }
        }
    }
    Ok(matching)
}

fn patterns(value: &Value) -> Option<Vec<Pattern>> {
    let list = value.as_array().filter(|list| (1..=PATTERNS_MAX).contains(&list.len()))?;
    let pattern = |value: &Value| {
        let text = value.as_str().filter(|text| text.chars().count() <= PATTERN_CHARS)?;
        Pattern::parse(text)
    };
    list.iter().map(pattern).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Sidecar;
    use super::*;

    fn read(hook: Hook, line: &str) -> Result<Matching, String> {
        let sidecar = Sidecar::read(hook, "10-x.toml", format!("[match]\n{line}\n").as_bytes());
        sidecar.map(|sidecar| sidecar.matching).map_err(|error| error.to_string())
    }

    fn list(count: usize, chars: usize) -> String {
        format!("tenants = [{}]", vec![format!("\"{}\"", "é".repeat(chars)); count].join(", "))
    }

    #[test]
    fn takes_as_many_patterns_as_the_bound_and_none_more() {
        assert_eq!(read(Hook::Validator, &list(64, 256)).unwrap().tenants.len(), 64);
        for (count, chars) in [(65, 1), (1, 257), (0, 0), (1, 0)] {
            let refused = read(Hook::Validator, &list(count, chars)).unwrap_err();
            assert!(
                refused.starts_with("10-x.toml, line 2: match.tenants") && refused.contains("1 to 64"),
                "{refused}"
            );
        }
        assert!(read(Hook::Validator, "").unwrap().is_all());
    }

    #[test]
    fn each_hook_knows_what_is_known_when_its_policies_are_asked() {
        for (hook, keys) in [
            (Hook::Auth, &["endpoints"][..]),
            (Hook::Validator, &["tenants", "models", "endpoints"]),
            (Hook::Scheduler, &["models"]),
            (Hook::Sampler, &["tenants", "models", "endpoints"]),
            (Hook::Filter, &["tenants", "models", "endpoints"]),
        ] {
            for key in ["tenants", "models", "endpoints"] {
                let name = if hook == Hook::Auth { "/v1/models" } else { "chat" };
                let read = read(hook, &format!("{key} = [\"{name}\"]"));
                assert_eq!(read.is_ok(), keys.contains(&key), "{hook} {key}: {read:?}");
            }
        }
    }

    #[test]
    fn what_could_never_match_is_refused() {
        for (hook, line, word) in [
            (Hook::Validator, "endpoints = [\"chats\"]", "\"completion\", \"embedding\" or \"prediction\""),
            (Hook::Validator, "endpoints = [\"/v1/chat/completions\"]", "\"chat\", \"completion\""),
            (Hook::Auth, "endpoints = [\"chat\"]", "paths of routes"),
            // No tokens are drawn for embeddings.
            (Hook::Sampler, "endpoints = [\"chat\", \"embedding\"]", "\"chat\" or \"completion\""),
            (Hook::Filter, "endpoints = [\"e*\"]", "\"chat\" or \"completion\""),
            (Hook::Filter, "endpoints = [\"prediction\"]", "\"chat\" or \"completion\""),
            (Hook::Sampler, "model = [\"x\"]", "did you mean `match.models`?"),
            (Hook::Sampler, "models = \"x\"", "a list of 1 to 64"),
            (Hook::Sampler, "models = [1]", "a list of 1 to 64"),
            (Hook::Sampler, "models = [\"a*b\"]", "a * at its end"),
        ] {
            let refused = read(hook, line).unwrap_err();
            assert!(refused.contains(word), "{line}: {refused}");
        }
        assert!(read(Hook::Auth, "endpoints = [\"*\"]").is_ok() && read(Hook::Filter, "endpoints = [\"c*\"]").is_ok());
        assert!(read(Hook::Validator, "endpoints = [\"e*\"]").is_ok());
        let refused = Sidecar::read(Hook::Auth, "10-x.toml", b"match = 1").unwrap_err().to_string();
        assert!(refused.contains("expected a table"), "{refused}");
    }

    #[test]
    fn regression_an_auth_policy_cannot_match_what_no_route_is_called() {
        for wrong in [
            "/v1/model",
            "/chat",
            "/embeddings",
            "/v1/models/demo",
            "/V1/*",
            "/v1/chat/completions/",
            "/healthz",
            "/admin/*",
        ] {
            let refused = read(Hook::Auth, &format!("endpoints = [\"/v1/*\", \"{wrong}\"]")).unwrap_err();
            let named = format!(
                "10-x.toml, line 2: match.endpoints: {wrong} is no route that auth guards: these are /metrics, "
            );
            assert!(refused.starts_with(&named) && refused.contains("/v1/embeddings, "), "{refused}");
        }
        for route in guarded::ROUTES {
            assert!(read(Hook::Auth, &format!("endpoints = [\"{route}\"]")).is_err() == route.contains('*'), "{route}");
        }
        assert!(read(Hook::Auth, "endpoints = [\"/v1/models/*\", \"/v1/c*\", \"*\"]").is_ok());
    }
}
