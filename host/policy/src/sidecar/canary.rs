//! The `canary` keys of `[policy]`: how a new version of the file is tried.
use std::ops::RangeInclusive;
use std::time::Duration;

use camshaft_core::canary::{CanaryBy, CanarySettings, Share};
use toml::Value;

use super::mistake::{SidecarMistake, bad};
use super::read::duration;

pub(super) const KEYS: [&str; 5] = ["canary", "canary-by", "canary-calls", "canary-time", "canary-slot"];
const CALLS_DEFAULT: u64 = 1000;
const CALLS: RangeInclusive<u64> = 1..=1_000_000;
const TIME_DEFAULT: Duration = Duration::from_secs(600);
const TIME: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);
const SLOT_DEFAULT: Duration = Duration::from_secs(10);
const SLOT: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// What the keys say, whatever their order.
#[derive(Debug, Default)]
pub(super) struct CanaryKeys {
    share: Option<Share>,
    by: CanaryBy,
    calls: Option<u64>,
    time: Option<Duration>,
    slot: Option<Duration>,
    /// The first one of the others.
    other: Option<(String, Value)>,
}

impl CanaryKeys {
    /// # Errors
    /// Names the wrong key and what it takes.
    pub(super) fn set(&mut self, key: &str, value: Value) -> Result<(), SidecarMistake> {
        let at = format!("policy.{key}");
        let time = |bounds: RangeInclusive<Duration>, expected: &'static str| {
            let time = value.as_str().and_then(duration).filter(|time| bounds.contains(time));
            time.map(Some).ok_or_else(|| bad(&at, &value, expected))
        };
        match key {
            "canary" => {
                let share = value.as_float().and_then(Share::of);
                self.share = Some(share.ok_or_else(|| bad(&at, &value, "expected a share from 0.000001 to 0.999999"))?);
                return Ok(());
            }
            "canary-by" => {
                let by = value.as_str().and_then(CanaryBy::parse);
                self.by = by.ok_or_else(|| bad(&at, &value, r#"expected "tenant" or "request""#))?;
            }
            "canary-calls" => {
                let calls = value.as_integer().and_then(|calls| u64::try_from(calls).ok());
                let calls = calls.filter(|calls| CALLS.contains(calls));
                self.calls = Some(calls.ok_or_else(|| bad(&at, &value, "expected a number from 1 to 1000000"))?);
            }
            "canary-time" => self.time = time(TIME, r#"expected a time from "1s" to "24h""#)?,
            _ => self.slot = time(SLOT, r#"expected a time from "1s" to "1h""#)?,
        }
        self.other.get_or_insert((at, value));
        Ok(())
    }

    /// # Errors
    /// They say how something is to be tried that is not.
    pub(super) fn settings(self) -> Result<Option<CanarySettings>, SidecarMistake> {
        let Some(share) = self.share else {
            return match self.other {
                Some((at, value)) => Err(bad(&at, &value, "it says nothing without policy.canary")),
                None => Ok(None),
            };
        };
        Ok(Some(CanarySettings {
            share,
            by: self.by,
            calls: self.calls.unwrap_or(CALLS_DEFAULT),
            time: self.time.unwrap_or(TIME_DEFAULT),
            slot: self.slot.unwrap_or(SLOT_DEFAULT),
        }))
    }
}

#[cfg(test)]
mod tests {
    use camshaft_core::policy::Hook;

    use super::super::Sidecar;
    use super::*;

    fn read(lines: &str) -> Result<Option<CanarySettings>, String> {
        let text = format!("[policy]\n{lines}\n");
        let sidecar = Sidecar::read(Hook::Sampler, "10-x.toml", text.as_bytes());
        sidecar.map(|sidecar| sidecar.canary).map_err(|error| error.to_string())
    }

    #[test]
    fn takes_every_key_at_its_bounds() {
        let (second, minute) = (Duration::from_secs(1), Duration::from_secs(60));
        let defaults = CanarySettings {
            share: Share::of(0.05).unwrap(),
            by: CanaryBy::Tenant,
            calls: 1000,
            time: 10 * minute,
            slot: 10 * second,
        };
        assert_eq!(read("canary = 0.05"), Ok(Some(defaults)));
        assert_eq!(read(""), Ok(None));
        for share in [0.000001, 0.999999] {
            let read = read(&format!("canary = {share}")).unwrap().unwrap();
            assert_eq!(read.share.as_f64(), share);
        }
        let least =
            "canary-slot = \"1s\"\ncanary-time = \"1s\"\ncanary-calls = 1\ncanary-by = \"request\"\ncanary = 0.05";
        let expected = CanarySettings { by: CanaryBy::Request, calls: 1, time: second, slot: second, ..defaults };
        assert_eq!(read(least), Ok(Some(expected)));
        let most = "canary = 0.05\ncanary-slot = \"1h\"\ncanary-time = \"24h\"\ncanary-calls = 1000000";
        let expected = CanarySettings { calls: 1_000_000, time: 1440 * minute, slot: 60 * minute, ..defaults };
        assert_eq!(read(most), Ok(Some(expected)));
    }

    #[test]
    fn refuses_what_is_past_a_bound_and_names_it() {
        for (lines, bound) in [
            ("canary = 0.0000009", "from 0.000001 to 0.999999"),
            ("canary = 0.9999991", "from 0.000001 to 0.999999"),
            ("canary = 0.0", "from 0.000001 to 0.999999"),
            ("canary = 1.0", "from 0.000001 to 0.999999"),
            ("canary = 1", "from 0.000001 to 0.999999"),
            ("canary = nan", "from 0.000001 to 0.999999"),
            ("canary = 0.5\ncanary-by = \"user\"", "\"tenant\" or \"request\""),
            ("canary = 0.5\ncanary-calls = 0", "1 to 1000000"),
            ("canary = 0.5\ncanary-calls = 1000001", "1 to 1000000"),
            ("canary = 0.5\ncanary-time = \"999ms\"", "\"1s\" to \"24h\""),
            ("canary = 0.5\ncanary-time = \"25h\"", "\"1s\" to \"24h\""),
            ("canary = 0.5\ncanary-slot = \"999ms\"", "\"1s\" to \"1h\""),
            ("canary = 0.5\ncanary-slot = \"61m\"", "\"1s\" to \"1h\""),
            ("canary-by = \"tenant\"", "nothing without policy.canary"),
            ("canary-time = \"1m\"", "nothing without policy.canary"),
            ("canary = 0.5\ncanary-tim = \"1m\"", "did you mean `policy.canary-time`?"),
        ] {
            let refused = read(lines).unwrap_err();
            assert!(refused.contains(bound) && refused.starts_with("10-x.toml, line"), "{lines}: {refused}");
        }
    }
}
