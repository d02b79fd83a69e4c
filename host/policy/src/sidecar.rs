//! The TOML file beside a policy: how the host runs the policy, and the policy's own settings.
mod breaker;
mod canary;
mod matching;
mod mistake;
mod read;
mod share;
mod supplies;
#[cfg(test)]
mod supplies_tests;

use std::collections::BTreeMap;
use std::time::Duration;

use camshaft_core::breaker::BreakerSettings;
use camshaft_core::canary::CanarySettings;
use camshaft_core::policy::{Hook, Mode};
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use self::canary::CanaryKeys;
use self::mistake::{SidecarMistake, bad, unknown};
use self::read::{bytes, duration, json, line_at, line_of};
use self::supplies::Mistake;
use crate::addresses::MEMORY_MAX_BYTES;
use crate::documents::DocumentSpec;
use crate::error::{PolicyError, SettingsError};
use crate::matching::Matching;
use crate::secrets::SecretSource;
use crate::spec::{OnFault, SnapshotMode, spec};

/// Default and minimum of a guest's linear memory.
const MEMORY_DEFAULT_BYTES: usize = 16 << 20;
const MEMORY_MIN_BYTES: usize = 64 << 10;
const DEADLINE_DEFAULT: Duration = Duration::from_millis(5);
const DEADLINE_MIN: Duration = Duration::from_millis(1);
const DEADLINE_MAX: Duration = Duration::from_secs(10);
/// What `[policy]` takes.
pub(crate) const POLICY_KEYS: [&str; 15] = [
    "mode",
    "deadline",
    "memory",
    "on-fault",
    "required",
    "body-digest",
    "monitor-share",
    "sha256",
    "snapshot",
    "breaker",
    "canary",
    "canary-by",
    "canary-calls",
    "canary-time",
    "canary-slot",
];

impl From<Mistake> for SidecarMistake {
    fn from(mistake: Mistake) -> Self {
        match mistake {
            Mistake::Value { key, value, expected } => bad(&key, &value, expected),
            Mistake::Unknown { key, section, known } => unknown(&key, &section, known),
        }
    }
}

/// A checked settings file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sidecar {
    pub(crate) mode: Mode,
    /// Deadline of one call, or of all calls of a request if the instance serves only that request.
    pub(crate) deadline: Duration,
    pub(crate) memory_bytes: usize,
    pub(crate) on_fault: OnFault,
    /// Of samplers: whether it runs whatever samplers a request names.
    pub(crate) required: bool,
    /// Of auth policies: whether bodies are read before it is called, for their digest.
    pub(crate) body_digest: bool,
    pub(crate) breaker: BreakerSettings,
    /// Of a sampler that is monitored: of so many tokens, one is compared.
    pub(crate) monitor_every: u32,
    /// When its instances begin from a snapshot.
    pub(crate) snapshot: SnapshotMode,
    /// How a new version of the file is tried; `None`: it serves at once.
    pub(crate) canary: Option<CanarySettings>,
    /// The requests that it is asked about.
    pub(crate) matching: Matching,
    /// In lower-case hexadecimal.
    pub(crate) sha256: Option<String>,
    /// One JSON object.
    pub(crate) settings: String,
    pub(crate) documents: Vec<DocumentSpec>,
    pub(crate) secrets: BTreeMap<String, SecretSource>,
}

impl Sidecar {
    /// The defaults, for a policy without a sidecar.
    pub(crate) fn default_for(hook: Hook) -> Self {
        Self {
            mode: Mode::default(),
            deadline: DEADLINE_DEFAULT,
            memory_bytes: MEMORY_DEFAULT_BYTES,
            on_fault: spec(hook).on_fault[0],
            required: false,
            body_digest: false,
            breaker: spec(hook).breaker,
            monitor_every: share::MONITOR_EVERY,
            snapshot: SnapshotMode::default(),
            canary: None,
            matching: Matching::default(),
            sha256: None,
            settings: "{}".to_owned(),
            documents: Vec::new(),
            secrets: BTreeMap::new(),
        }
    }

    /// Parses the settings file of this name.
    ///
    /// # Errors
    /// It is not TOML, or has a wrong value. Names the file and the line.
    pub(crate) fn read(hook: Hook, file: &str, bytes: &[u8]) -> Result<Self, PolicyError> {
        let wrong = |line, problem| PolicyError::Settings { file: file.to_owned(), line, problem };
        let text = std::str::from_utf8(bytes).map_err(|error| wrong(None, SettingsError::Syntax(error.to_string())))?;
        let table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map(|span| line_at(text, span.start));
            wrong(line, SettingsError::Syntax(error.message().to_owned()))
        })?;
        Self::checked(hook, table).map_err(|SidecarMistake { key, problem }| wrong(line_of(text, &key), problem))
    }

    /// Whether another differs from it in the mode and in how it is tried at most.
    pub(crate) fn is_same_version(&self, other: &Self) -> bool {
        *self == Self { mode: self.mode, canary: self.canary, ..other.clone() }
    }

    /// All that a policy does by it, for telling apart two that serve beside each other. How it is tried is no part.
    pub(crate) fn version(&self) -> String {
        // Derived: no field can be forgotten.
        format!("{:?}", Self { canary: None, ..self.clone() })
    }

    /// Whether the policy has no settings of its own.
    pub(crate) fn is_bare(&self) -> bool {
        self.settings == "{}"
    }

    /// Whether `bytes` may be all that is left of this settings file, after it was cut: they say nothing at all, or have no
    /// settings, or no `[match]`, where this one has some. `settings = {}` and `match = {}` say that there are none.
    pub(crate) fn is_cut_to(&self, bytes: &[u8]) -> bool {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        let Ok(table) = text.parse::<Table>() else { return false };
        let is_empty = |value: &Value| value.as_table().is_some_and(Table::is_empty);
        let says = |key: &str| {
            let none = format!("{key}={{}}");
            let says_none = text.lines().any(|line| line.split_whitespace().collect::<String>().starts_with(&none));
            says_none || table.get(key).is_some_and(|value| !is_empty(value))
        };
        let (settings, matching) = (says("settings"), says("match"));
        let says_nothing = !settings && !matching && table.values().all(is_empty);
        says_nothing || !settings && !self.is_bare() || !matching && !self.matching.is_all()
    }

    /// Whether another one lacks settings, or a `[match]`, where this one has some.
    pub(crate) fn is_lost_in(&self, other: &Self) -> bool {
        !self.is_bare() && other.is_bare() || !self.matching.is_all() && other.matching.is_all()
    }

    /// # Errors
    /// Names the path of the wrong key and the error.
    fn checked(hook: Hook, table: Table) -> Result<Self, SidecarMistake> {
        let mut sidecar = Self::default_for(hook);
        for (key, value) in table {
            match (key.as_str(), value) {
                ("policy", Value::Table(policy)) => {
                    if policy.contains_key("monitor-share") && hook != Hook::Sampler {
                        let problem = SettingsError::MonitorShareUnsupported { hook };
                        return Err(SidecarMistake { key: "policy.monitor-share".to_owned(), problem });
                    }
                    sidecar.set_all(policy)?;
                }
                ("settings", Value::Table(settings)) => sidecar.settings = settings_json(settings)?,
                ("match", Value::Table(table)) => sidecar.matching = matching::read(hook, table)?,
                ("documents", Value::Table(documents)) => sidecar.documents = supplies::documents(&documents)?,
                ("secrets", Value::Table(secrets)) => sidecar.secrets = supplies::secrets(&secrets)?,
                // It may be a secret.
                ("secrets", _) => return Err(bad(&key, &Value::String("...".to_owned()), "expected a table")),
                ("policy" | "settings" | "match" | "documents", value) => {
                    return Err(bad(&key, &value, "expected a table"));
                }
                _ if POLICY_KEYS.contains(&key.as_str()) => {
                    return Err(SidecarMistake { problem: SettingsError::OutsidePolicy { key: key.clone() }, key });
                }
                _ => return Err(unknown(&key, "", &["policy", "settings", "match", "documents", "secrets"])),
            }
        }
        sidecar.check(hook)?;
        Ok(sidecar)
    }

    /// # Errors
    /// The settings file of this name pins another component.
    pub(crate) fn check_digest(&self, file: &str, found: &str) -> Result<(), PolicyError> {
        match &self.sha256 {
            Some(pinned) if pinned != found => {
                let problem = SettingsError::DigestMismatch { found: found.to_owned(), pinned: pinned.clone() };
                Err(PolicyError::Settings { file: file.to_owned(), line: None, problem })
            }
            _ => Ok(()),
        }
    }

    fn set_all(&mut self, policy: Table) -> Result<(), SidecarMistake> {
        let mut canary = CanaryKeys::default();
        for (key, value) in policy {
            if !POLICY_KEYS.contains(&key.as_str()) {
                return Err(unknown(&key, "policy.", &POLICY_KEYS));
            }
            if key == "breaker" {
                breaker::set(&mut self.breaker, value)?;
                continue;
            }
            if key == "monitor-share" {
                self.monitor_every =
                    share::every(&value).map_err(|expected| bad("policy.monitor-share", &value, expected))?;
                continue;
            }
            if canary::KEYS.contains(&key.as_str()) {
                canary.set(&key, value)?;
                continue;
            }
            let set = match (key.as_str(), value.as_bool()) {
                ("required", Some(required)) => {
                    self.required = required;
                    Ok(())
                }
                ("body-digest", Some(body_digest)) => {
                    self.body_digest = body_digest;
                    Ok(())
                }
                _ => self.set(&key, value.as_str().unwrap_or_default()),
            };
            set.map_err(|expected| bad(&format!("policy.{key}"), &value, expected))?;
        }
        self.canary = canary.settings()?;
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        match key {
            "mode" => {
                self.mode = Mode::parse(value).ok_or(r#"expected "enforce", "monitor" or "off""#)?;
            }
            "on-fault" => {
                self.on_fault = OnFault::parse(value).ok_or(r#"expected "deny", "skip", "fallback" or "last-good""#)?;
            }
            "required" | "body-digest" => return Err("expected true or false"),
            "deadline" => {
                let deadline = duration(value).filter(|d| (DEADLINE_MIN..=DEADLINE_MAX).contains(d));
                self.deadline = deadline.ok_or(r#"expected a time from "1ms" to "10s""#)?;
            }
            "memory" => {
                let memory = bytes(value).filter(|b| (MEMORY_MIN_BYTES..=MEMORY_MAX_BYTES).contains(b));
                self.memory_bytes = memory.ok_or(r#"expected a size from "64KiB" to "64MiB""#)?;
            }
            "snapshot" => {
                self.snapshot = SnapshotMode::parse(value).ok_or(r#"expected "auto", "never" or "share-random""#)?;
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

    fn check(&self, hook: Hook) -> Result<(), SidecarMistake> {
        if !spec(hook).on_fault.contains(&self.on_fault) {
            let why = spec(hook).on_fault_why;
            let problem = SettingsError::OnFaultUnsupported { hook, value: self.on_fault.as_str(), why };
            return Err(SidecarMistake { key: "policy.on-fault".to_owned(), problem });
        }
        if self.required && hook != Hook::Sampler {
            let problem = SettingsError::RequiredUnsupported { hook };
            return Err(SidecarMistake { key: "policy.required".to_owned(), problem });
        }
        if self.body_digest && hook != Hook::Auth {
            let problem = SettingsError::BodyDigestUnsupported { hook };
            return Err(SidecarMistake { key: "policy.body-digest".to_owned(), problem });
        }
        Ok(())
    }
}

fn settings_json(settings: Table) -> Result<String, SidecarMistake> {
    let json = json(Value::Table(settings), "settings");
    Ok(json.map_err(|(key, value)| bad(&key, &value, "a number that JSON can hold"))?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "10-x.toml";

    fn refused(hook: Hook, text: &str) -> String {
        Sidecar::read(hook, FILE, text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn reads_all_keys_and_hands_settings_over_as_json() {
        let text = r#"
            [policy]
            mode = "monitor"
            deadline = "20ms"
            memory = "32MiB"
            on-fault = "skip"
            snapshot = "share-random"
            sha256 = "ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef0123456789"
            [settings]
            words = ["a", "b"]
            limit = 3
            share = 0.5
            since = 2020-01-01
            [settings.deep]
            on = true
        "#;
        let sidecar = Sidecar::read(Hook::Auth, FILE, text.as_bytes()).unwrap();
        assert_eq!(sidecar.mode, Mode::Monitor);
        assert_eq!(sidecar.deadline, Duration::from_millis(20));
        assert_eq!(sidecar.memory_bytes, 32 << 20);
        assert_eq!(sidecar.on_fault, OnFault::Skip);
        assert_eq!(sidecar.snapshot, SnapshotMode::ShareRandom);
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
            assert_eq!(Sidecar::read(hook, FILE, b"").unwrap(), Sidecar::default_for(hook));
        }
    }

    #[test]
    fn a_file_that_lost_its_settings_is_told_from_one_without() {
        let read = |text: &str| Sidecar::read(Hook::Auth, FILE, text.as_bytes()).unwrap();
        let (settings, mode) = (read("[settings]\nx = 1"), read("[policy]\nmode = \"monitor\""));
        let matching = read("[match]\nendpoints = [\"/metrics\"]");
        for (text, of_settings, of_mode, of_match) in [
            ("", true, true, true),
            ("# only this\n", true, true, true),
            ("[policy]\n", true, true, true),
            ("[policy]\nmode = \"enforce\"\n", true, false, true),
            ("[settings]\n", true, true, true),
            ("[settings]\n# x = 1\n# cut he", true, true, true),
            ("[policy]\nmode = \"enforce\"\n[settings]\n", true, false, true),
            ("settings = {}\n", false, false, true),
            (" settings={ } # none\n[policy]\n", false, false, true),
            ("[settings]\nx = 2\n", false, false, true),
            ("[settings]\nx = 2\n[match]\n", false, false, true),
            ("match = {}\n", true, false, false),
            ("[match]\nendpoints = [\"/v1/*\"]\n", true, false, false),
            ("settings = {}\nmatch = { }\n", false, false, false),
            ("[sett", false, false, false),
        ] {
            assert_eq!(settings.is_cut_to(text.as_bytes()), of_settings, "{text}");
            assert_eq!(mode.is_cut_to(text.as_bytes()), of_mode, "{text}");
            assert_eq!(matching.is_cut_to(text.as_bytes()), of_match, "{text}");
        }
    }

    #[test]
    fn refuses_unknown_keys_naming_the_nearest() {
        let text = refused(Hook::Auth, "[policy]\ndedline = \"5ms\"");
        assert_eq!(text, "10-x.toml, line 2: unknown key policy.dedline; did you mean `policy.deadline`?");
        let text = refused(Hook::Auth, "\nmode = \"off\"");
        assert_eq!(text, "10-x.toml, line 2: mode belongs under [policy]");
        let text = refused(Hook::Auth, "[setings]\nx = 1");
        assert_eq!(text, "10-x.toml, line 1: unknown key setings; did you mean `settings`?");
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
            ("snapshot = \"always\"", "\"auto\", \"never\" or \"share-random\""),
            ("snapshot = true", "\"share-random\""),
            ("sha256 = \"abc\"", "64 hexadecimal digits"),
        ] {
            let text = refused(Hook::Auth, &format!("[policy]\n{line}"));
            assert!(text.contains(bound), "{text}");
        }
        assert!(refused(Hook::Auth, "[settings]\ny = 1\n\nx = nan").starts_with("10-x.toml, line 4: settings.x"));
        assert!(refused(Hook::Auth, "[policy\nx").starts_with("10-x.toml, line 1: not valid TOML: "));
    }

    #[test]
    fn refuses_what_a_hook_does_not_support() {
        let share = "[policy]\nmonitor-share = 0.5";
        assert_eq!(
            refused(Hook::Auth, share),
            "10-x.toml, line 2: monitor-share is for samplers: monitored policies of the auth hook see all"
        );
        assert_eq!(Sidecar::read(Hook::Sampler, FILE, share.as_bytes()).unwrap().monitor_every, 2);
        assert!(refused(Hook::Sampler, "[policy]\nmonitor-share = 0").contains("0.0001 to 1.0"));
        assert!(refused(Hook::Scheduler, "[policy]\non-fault = \"deny\"").contains("native scheduler"));
        let required = "[policy]\nrequired = true";
        assert!(refused(Hook::Auth, required).ends_with("policies of the auth hook always run"));
        assert!(Sidecar::read(Hook::Sampler, FILE, required.as_bytes()).unwrap().required);
        assert!(refused(Hook::Sampler, "[policy]\nrequired = \"yes\"").contains("expected true or false"));
        let digest = "[policy]\nbody-digest = true";
        assert!(Sidecar::read(Hook::Auth, FILE, digest.as_bytes()).unwrap().body_digest);
        assert!(refused(Hook::Filter, digest).ends_with("policies of the filter hook are called later"));
        assert!(refused(Hook::Auth, "[policy]\nbody-digest = 1").contains("expected true or false"));
    }
}
