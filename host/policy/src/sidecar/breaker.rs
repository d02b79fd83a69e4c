//! `[policy.breaker]`: when the breaker of a policy opens, and for how long.
use std::ops::RangeInclusive;
use std::time::Duration;

use camshaft_core::breaker::BreakerSettings;
use toml::Value;

use super::mistake::{SidecarMistake, bad, unknown};
use super::read::duration;

const KEYS: [&str; 5] = ["faults", "share", "window", "pause", "max-pause"];
const FAULTS_MAX: i64 = 10_000;
const WINDOW: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);
const PAUSE: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(3600);

/// # Errors
/// Names the wrong key and what it takes.
pub(super) fn set(settings: &mut BreakerSettings, value: Value) -> Result<(), SidecarMistake> {
    let Value::Table(table) = value else { return Err(bad("policy.breaker", &value, "expected a table")) };
    for (key, value) in table {
        let at = format!("policy.breaker.{key}");
        let time = |bounds: RangeInclusive<Duration>, expected: &'static str| {
            let time = value.as_str().and_then(duration).filter(|time| bounds.contains(time));
            time.ok_or_else(|| bad(&at, &value, expected))
        };
        match key.as_str() {
            "faults" => {
                let faults = value.as_integer().filter(|faults| (0..=FAULTS_MAX).contains(faults));
                let faults = faults.and_then(|faults| u32::try_from(faults).ok());
                settings.faults = faults.ok_or_else(|| bad(&at, &value, "expected a number from 0 to 10000"))?;
            }
            "share" => {
                let share = value.as_float().or(value.as_integer().map(|whole| whole as f64));
                let share = share.filter(|share| (0.0..=1.0).contains(share));
                let share = share.ok_or_else(|| bad(&at, &value, "expected a number from 0.0 to 1.0"))?;
                settings.share_permille = (share * 1000.0).round() as u32;
            }
            "window" => settings.window = time(WINDOW, r#"expected a time from "1s" to "600s""#)?,
            "pause" => settings.pause = time(PAUSE, r#"expected a time from "10ms" to "3600s""#)?,
            "max-pause" => settings.max_pause = time(PAUSE, r#"expected a time from "10ms" to "3600s""#)?,
            _ => return Err(unknown(&key, "policy.breaker.", &KEYS)),
        }
    }
    if settings.max_pause < settings.pause {
        let value = Value::String(format!("{}ms", settings.max_pause.as_millis()));
        return Err(bad("policy.breaker.max-pause", &value, "expected a time that is not below policy.breaker.pause"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use camshaft_core::policy::Hook;

    use super::super::Sidecar;
    use super::*;

    fn read(lines: &str) -> Result<BreakerSettings, String> {
        let text = format!("[policy.breaker]\n{lines}\n");
        let sidecar = Sidecar::read(Hook::Auth, "10-x.toml", text.as_bytes());
        sidecar.map(|sidecar| sidecar.breaker).map_err(|error| error.to_string())
    }

    #[test]
    fn takes_every_key_at_its_bounds() {
        let least = "faults = 0\nshare = 0\nwindow = \"1s\"\npause = \"10ms\"\nmax-pause = \"10ms\"";
        let (second, short) = (Duration::from_secs(1), Duration::from_millis(10));
        let expected = BreakerSettings { faults: 0, share_permille: 0, window: second, pause: short, max_pause: short };
        assert_eq!(read(least).unwrap(), expected);
        let most = "faults = 10000\nshare = 1.0\nwindow = \"600s\"\npause = \"3600s\"\nmax-pause = \"3600s\"";
        let hour = 3600 * second;
        let expected = BreakerSettings {
            faults: 10_000,
            share_permille: 1000,
            window: 600 * second,
            pause: hour,
            max_pause: hour,
        };
        assert_eq!(read(most).unwrap(), expected);
        assert_eq!(read("").unwrap(), BreakerSettings::SHARED);
    }

    #[test]
    fn refuses_what_is_past_a_bound_and_names_it() {
        for (line, bound) in [
            ("faults = 10001", "0 to 10000"),
            ("faults = -1", "0 to 10000"),
            ("share = 1.001", "0.0 to 1.0"),
            ("share = nan", "0.0 to 1.0"),
            ("window = \"999ms\"", "\"1s\" to \"600s\""),
            ("window = \"601s\"", "\"1s\" to \"600s\""),
            ("pause = \"9ms\"", "\"10ms\" to \"3600s\""),
            ("max-pause = \"3601s\"", "\"10ms\" to \"3600s\""),
            ("pause = \"2s\"\nmax-pause = \"1s\"", "not below policy.breaker.pause"),
            ("fault = 1", "did you mean `policy.breaker.faults`?"),
        ] {
            let refused = read(line).unwrap_err();
            assert!(refused.contains(bound) && refused.starts_with("10-x.toml, line"), "{line}: {refused}");
        }
        let refused = Sidecar::read(Hook::Auth, "10-x.toml", b"[policy]\nbreaker = 1").unwrap_err().to_string();
        assert!(refused.contains("expected a table"), "{refused}");
    }
}
