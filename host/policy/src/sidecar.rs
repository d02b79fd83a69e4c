//! The TOML file beside a policy: how the host runs it, and what the policy itself is given.
use std::time::Duration;

use camshaft_core::policy::{Hook, Mode};
use toml::{Table, Value};

use crate::error::PolicyError;

/// Bytes of a sidecar.
pub(crate) const SIDECAR_MAX_BYTES: u64 = 256 << 10;
/// Linear memory of a guest: the most that may be set, what it is unless set, and the least that makes sense.
pub(crate) const MEMORY_MAX_BYTES: usize = 64 << 20;
const MEMORY_DEFAULT_BYTES: usize = 16 << 20;
const MEMORY_MIN_BYTES: usize = 64 << 10;
const DEADLINE_DEFAULT: Duration = Duration::from_millis(5);
const DEADLINE_MIN: Duration = Duration::from_millis(1);
const DEADLINE_MAX: Duration = Duration::from_secs(10);

/// What happens where a policy faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFault {
    Deny,
    Skip,
    Fallback,
}

impl OnFault {
    pub(crate) fn default_for(hook: Hook) -> Self {
        match hook {
            Hook::Auth | Hook::Validator => OnFault::Deny,
            Hook::Scheduler | Hook::Sampler => OnFault::Fallback,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            OnFault::Deny => "deny",
            OnFault::Skip => "skip",
            OnFault::Fallback => "fallback",
        }
    }
}

/// A checked sidecar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sidecar {
    pub(crate) mode: Mode,
    /// For one call (all calls of one request, where the instance is the request's).
    pub(crate) deadline: Duration,
    pub(crate) memory_bytes: usize,
    pub(crate) on_fault: OnFault,
    /// In lower-case hexadecimal.
    pub(crate) sha256: Option<String>,
    /// One JSON object.
    pub(crate) settings: String,
}

impl Sidecar {
    /// What holds for a policy without a sidecar.
    pub(crate) fn default_for(hook: Hook) -> Self {
        Self {
            mode: Mode::default(),
            deadline: DEADLINE_DEFAULT,
            memory_bytes: MEMORY_DEFAULT_BYTES,
            on_fault: OnFault::default_for(hook),
            sha256: None,
            settings: "{}".to_owned(),
        }
    }

    /// Reads a sidecar.
    pub(crate) fn parse(hook: Hook, text: &str) -> Result<Self, PolicyError> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].lines().count().max(1));
            let line = line.map(|n| format!("line {n}: ")).unwrap_or_default();
            PolicyError::SidecarSyntax(format!("{line}{}", error.message()))
        })?;
        let mut sidecar = Self::default_for(hook);
        for (key, value) in table {
            match (key.as_str(), value) {
                ("policy", Value::Table(policy)) => sidecar.set_all(policy)?,
                ("settings", Value::Table(settings)) => sidecar.settings = json_text(settings)?,
                ("policy" | "settings", value) => return Err(bad(&key, &value, "expected a table")),
                _ => return Err(unknown(&key, "", &["policy", "settings"])),
            }
        }
        sidecar.check(hook)?;
        Ok(sidecar)
    }

    fn set_all(&mut self, policy: Table) -> Result<(), PolicyError> {
        const KEYS: [&str; 5] = ["mode", "deadline", "memory", "on-fault", "sha256"];
        for (key, value) in policy {
            if !KEYS.contains(&key.as_str()) {
                return Err(unknown(&key, "policy.", &KEYS));
            }
            self.set(&key, value.as_str().unwrap_or_default())
                .map_err(|expected| bad(&format!("policy.{key}"), &value, expected))?;
        }
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "mode" => {
                self.mode = Mode::parse(value).ok_or(r#"expected "enforce", "monitor" or "off""#)?;
            }
            "on-fault" => {
                self.on_fault = match value {
                    "deny" => OnFault::Deny,
                    "skip" => OnFault::Skip,
                    "fallback" => OnFault::Fallback,
                    _ => return Err(r#"expected "deny", "skip" or "fallback""#),
                }
            }
            "deadline" => {
                let deadline = duration(value).filter(|d| (DEADLINE_MIN..=DEADLINE_MAX).contains(d));
                self.deadline = deadline.ok_or(r#"expected a time from "1ms" to "10s""#)?;
            }
            "memory" => {
                let memory = bytes(value).filter(|b| (MEMORY_MIN_BYTES..=MEMORY_MAX_BYTES).contains(b));
                self.memory_bytes = memory.ok_or(r#"expected a size from "64KiB" to "64MiB""#)?;
            }
            _ => {
                let digest = value.to_ascii_lowercase();
                if digest.len() != 64 || !digest.chars().all(|c| c.is_ascii_hexdigit()) {
                    return Err("expected 64 hexadecimal digits");
                }
                self.sha256 = Some(digest);
            }
        }
        Ok(())
    }

    fn check(&self, hook: Hook) -> Result<(), PolicyError> {
        check_mode(hook, self.mode)?;
        if hook == Hook::Scheduler && self.on_fault != OnFault::Fallback {
            let why = "the native scheduler takes over at once";
            return Err(PolicyError::OnFaultUnsupported { hook, value: self.on_fault.as_str(), why });
        }
        Ok(())
    }
}

/// Whether policies of the hook can be run in this mode.
pub(crate) fn check_mode(hook: Hook, mode: Mode) -> Result<(), PolicyError> {
    if mode == Mode::Monitor && matches!(hook, Hook::Scheduler | Hook::Sampler) {
        return Err(PolicyError::MonitorUnsupported(hook));
    }
    Ok(())
}

fn bad(key: &str, value: &Value, expected: &'static str) -> PolicyError {
    PolicyError::SidecarValue { key: key.to_owned(), value: value.to_string(), expected }
}

fn unknown(key: &str, section: &str, known: &[&str]) -> PolicyError {
    let nearest = known.iter().max_by(|a, b| strsim::jaro_winkler(a, key).total_cmp(&strsim::jaro_winkler(b, key)));
    PolicyError::SidecarKey { key: format!("{section}{key}"), nearest: nearest.map(|k| format!("{section}{k}")) }
}

/// A whole number and its unit.
fn quantity(text: &str) -> Option<(u64, &str)> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    Some((text[..unit].parse().ok()?, text[unit..].trim()))
}

fn duration(text: &str) -> Option<Duration> {
    match quantity(text)? {
        (n, "us") => Some(Duration::from_micros(n)),
        (n, "ms") => Some(Duration::from_millis(n)),
        (n, "s") => Some(Duration::from_secs(n)),
        _ => None,
    }
}

fn bytes(text: &str) -> Option<usize> {
    let (n, unit) = quantity(text)?;
    let scale = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return None,
    };
    usize::try_from(n.checked_mul(scale)?).ok()
}

fn json_text(settings: Table) -> Result<String, PolicyError> {
    Ok(json(Value::Table(settings), "settings")?.to_string())
}

fn json(value: Value, key: &str) -> Result<serde_json::Value, PolicyError> {
    Ok(match value {
        Value::String(text) => text.into(),
        Value::Integer(number) => number.into(),
        Value::Float(number) => match serde_json::Number::from_f64(number) {
            Some(number) => number.into(),
            None => return Err(bad(key, &value, "a number that JSON can hold")),
        },
        Value::Boolean(flag) => flag.into(),
        Value::Datetime(time) => time.to_string().into(),
        Value::Array(items) => items.into_iter().map(|item| json(item, key)).collect::<Result<Vec<_>, _>>()?.into(),
        Value::Table(table) => {
            let member = |(name, value)| {
                let value = json(value, &format!("{key}.{name}"))?;
                Ok((name, value))
            };
            let members = table.into_iter().map(member).collect::<Result<serde_json::Map<_, _>, PolicyError>>()?;
            members.into()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(hook: Hook, text: &str) -> String {
        Sidecar::parse(hook, text).unwrap_err().to_string()
    }

    #[test]
    fn reads_all_keys_and_hands_settings_over_as_json() {
        let text = r#"
            [policy]
            mode = "monitor"
            deadline = "20ms"
            memory = "32MiB"
            on-fault = "skip"
            sha256 = "ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef0123456789"
            [settings]
            words = ["a", "b"]
            limit = 3
            share = 0.5
            since = 2020-01-01
            [settings.deep]
            on = true
        "#;
        let sidecar = Sidecar::parse(Hook::Auth, text).unwrap();
        assert_eq!(sidecar.mode, Mode::Monitor);
        assert_eq!(sidecar.deadline, Duration::from_millis(20));
        assert_eq!(sidecar.memory_bytes, 32 << 20);
        assert_eq!(sidecar.on_fault, OnFault::Skip);
        assert_eq!(sidecar.sha256.as_deref().map(|s| &s[..6]), Some("abcdef"));
        let settings: serde_json::Value = serde_json::from_str(&sidecar.settings).unwrap();
        let expected = serde_json::json!(
            {"words": ["a", "b"], "limit": 3, "share": 0.5, "since": "2020-01-01", "deep": {"on": true}}
        );
        assert_eq!(settings, expected);
    }

    #[test]
    fn an_empty_sidecar_is_as_none() {
        for hook in Hook::ALL {
            assert_eq!(Sidecar::parse(hook, "").unwrap(), Sidecar::default_for(hook));
        }
    }

    #[test]
    fn refuses_unknown_keys_naming_the_nearest() {
        let text = refused(Hook::Auth, "[policy]\ndedline = \"5ms\"");
        assert_eq!(text, "its settings file has an unknown key policy.dedline (did you mean policy.deadline?)");
        let text = refused(Hook::Auth, "[setings]\nx = 1");
        assert_eq!(text, "its settings file has an unknown key setings (did you mean settings?)");
    }

    #[test]
    fn refuses_values_out_of_bounds_naming_the_bound() {
        for (line, bound) in [
            ("deadline = \"0ms\"", "\"1ms\" to \"10s\""),
            ("deadline = \"11s\"", "\"1ms\" to \"10s\""),
            ("deadline = 5", "\"1ms\" to \"10s\""),
            ("memory = \"65MiB\"", "\"64KiB\" to \"64MiB\""),
            ("memory = \"1KiB\"", "\"64KiB\" to \"64MiB\""),
            ("mode = \"on\"", "\"enforce\""),
            ("on-fault = \"open\"", "\"fallback\""),
            ("sha256 = \"abc\"", "64 hexadecimal digits"),
        ] {
            let text = refused(Hook::Auth, &format!("[policy]\n{line}"));
            assert!(text.contains(bound), "{text}");
        }
        assert!(refused(Hook::Auth, "[settings]\nx = nan").contains("settings.x"));
        assert!(refused(Hook::Auth, "[policy\nx").starts_with("its settings file is not valid TOML: line 1"));
    }

    #[test]
    fn refuses_what_a_hook_does_not_support() {
        let monitor = "[policy]\nmode = \"monitor\"";
        assert_eq!(refused(Hook::Sampler, monitor), "mode \"monitor\" is not supported for the sampler hook yet");
        assert!(refused(Hook::Scheduler, monitor).contains("scheduler"));
        assert!(Sidecar::parse(Hook::Validator, monitor).is_ok());
        assert!(refused(Hook::Scheduler, "[policy]\non-fault = \"deny\"").contains("native scheduler"));
    }
}
