//! Shares as settings files give them.
use toml::Value;

/// Of each this many tokens, one is compared with what a monitored sampler would do, unless the settings say otherwise.
pub(super) const MONITOR_EVERY: u32 = 16;
/// The smallest share.
const LEAST: f64 = 0.0001;

/// A share of tokens, as the number of tokens of which one is compared.
///
/// # Errors
/// What is expected instead.
pub(super) fn every(value: &Value) -> Result<u32, &'static str> {
    let share = value.as_float().or_else(|| value.as_integer().map(|share| share as f64));
    let share = share.filter(|share| (LEAST..=1.0).contains(share)).ok_or("expected a share from 0.0001 to 1.0")?;
    Ok((1.0 / share).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_one_of_so_many_tokens_within_its_bounds() {
        for (share, tokens) in [(1.0, 1), (0.5, 2), (0.0625, 16), (0.3, 3), (0.0001, 10_000)] {
            assert_eq!(every(&Value::Float(share)), Ok(tokens));
        }
        assert_eq!(every(&Value::Integer(1)), Ok(1));
        for wrong in
            [Value::Float(0.000_099), Value::Float(1.000_1), Value::Float(f64::NAN), Value::Integer(2), "1".into()]
        {
            assert!(every(&wrong).is_err(), "{wrong}");
        }
    }
}
