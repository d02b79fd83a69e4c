//! The sampling parameters that requests have where they name none.
use serde::{Deserialize, Serialize};

use super::params::SamplingParams;
use crate::limits;

/// What a model's requests are sampled with unless they say otherwise. `None`: as [`SamplingParams::default`] has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingDefaults {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub typical_p: Option<f32>,
    pub repeat_penalty: Option<f32>,
    pub repeat_last_n: Option<u32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
}

impl SamplingDefaults {
    /// These, and where they say nothing, `others`.
    pub fn over(self, others: Self) -> Self {
        Self {
            temperature: self.temperature.or(others.temperature),
            top_k: self.top_k.or(others.top_k),
            top_p: self.top_p.or(others.top_p),
            min_p: self.min_p.or(others.min_p),
            typical_p: self.typical_p.or(others.typical_p),
            repeat_penalty: self.repeat_penalty.or(others.repeat_penalty),
            repeat_last_n: self.repeat_last_n.or(others.repeat_last_n),
            frequency_penalty: self.frequency_penalty.or(others.frequency_penalty),
            presence_penalty: self.presence_penalty.or(others.presence_penalty),
        }
    }

    /// The same without values that a request could not have, which a model's file may hold.
    pub fn within_limits(self) -> Self {
        let number = |value: Option<f32>, range: limits::Range| value.filter(|&value| range.contains(f64::from(value)));
        let integer =
            |value: Option<u32>, range: limits::Range| value.filter(|&value| range.contains(f64::from(value)));
        Self {
            temperature: number(self.temperature, limits::TEMPERATURE),
            top_k: integer(self.top_k, limits::TOP_K),
            top_p: number(self.top_p, limits::TOP_P),
            min_p: number(self.min_p, limits::MIN_P),
            typical_p: number(self.typical_p, limits::TYPICAL_P),
            repeat_penalty: number(self.repeat_penalty, limits::REPEAT_PENALTY),
            repeat_last_n: integer(self.repeat_last_n, limits::REPEAT_LAST_N),
            frequency_penalty: number(self.frequency_penalty, limits::FREQUENCY_PENALTY),
            presence_penalty: number(self.presence_penalty, limits::PRESENCE_PENALTY),
        }
    }

    /// The parameters of a request that names none.
    pub fn params(self) -> SamplingParams {
        let usual = SamplingParams::default();
        SamplingParams {
            temperature: self.temperature.unwrap_or(usual.temperature),
            top_k: self.top_k.unwrap_or(usual.top_k),
            top_p: self.top_p.unwrap_or(usual.top_p),
            min_p: self.min_p.unwrap_or(usual.min_p),
            typical_p: self.typical_p.unwrap_or(usual.typical_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(usual.repeat_penalty),
            repeat_last_n: self.repeat_last_n.unwrap_or(usual.repeat_last_n),
            frequency_penalty: self.frequency_penalty.unwrap_or(usual.frequency_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(usual.presence_penalty),
            ..usual
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_sets_is_openais_default() {
        let SamplingParams { temperature, top_k, top_p, min_p, typical_p, repeat_penalty, .. } =
            SamplingDefaults::default().params();
        assert_eq!((temperature, top_k, top_p, min_p, typical_p, repeat_penalty), (1.0, 0, 1.0, 0.0, 1.0, 1.0));
    }

    #[test]
    fn one_set_of_defaults_lies_over_another_field_by_field() {
        let file = SamplingDefaults { temperature: Some(0.6), top_k: Some(20), ..SamplingDefaults::default() };
        let operator = SamplingDefaults { temperature: Some(0.0), min_p: Some(0.1), ..SamplingDefaults::default() };
        let params = operator.over(file).params();
        assert_eq!((params.temperature, params.top_k, params.min_p, params.top_p), (0.0, 20, 0.1, 1.0));
    }

    #[test]
    fn a_value_that_no_request_could_have_counts_as_none() {
        let check = |temperature: f32, kept: bool| {
            let defaults = SamplingDefaults { temperature: Some(temperature), ..SamplingDefaults::default() };
            assert_eq!(defaults.within_limits().temperature.is_some(), kept, "{temperature}");
        };
        check(0.0, true);
        check(2.0, true);
        check(2.1, false);
        check(-0.1, false);
        check(f32::NAN, false);
        let defaults = SamplingDefaults { top_k: Some(1_000_001), ..SamplingDefaults::default() };
        assert_eq!(defaults.within_limits().top_k, None);
    }
}
