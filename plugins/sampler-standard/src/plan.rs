//! The operations on each row of a request, computed once.
use camshaft_plugin::sampler::Request;

/// One operation on the row.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Bias { ids: Vec<u32>, values: Vec<f32> },
    Penalize { last_n: u32, repeat: f32, frequency: f32, presence: f32 },
    KeepBest,
    KeepTopK(u32),
    KeepTypical(f32),
    KeepTopP(f32),
    KeepMinP(f32),
    Temperature(f32),
}

/// The steps that have an effect, in llama.cpp's order. The last one settles the row: after `KeepBest` or `Temperature`
/// (even 1) the host draws from the row as it is.
pub fn plan(r: &Request) -> Vec<Step> {
    let mut steps = Vec::with_capacity(8);
    if !r.logit_bias_ids.is_empty() {
        steps.push(Step::Bias { ids: r.logit_bias_ids.clone(), values: r.logit_bias_values.clone() });
    }
    if r.repeat_penalty != 1.0 || r.frequency_penalty != 0.0 || r.presence_penalty != 0.0 {
        steps.push(Step::Penalize {
            last_n: r.repeat_last_n,
            repeat: r.repeat_penalty,
            frequency: r.frequency_penalty,
            presence: r.presence_penalty,
        });
    }
    if r.temperature == 0.0 {
        steps.push(Step::KeepBest);
        return steps;
    }
    if r.top_k > 0 {
        steps.push(Step::KeepTopK(r.top_k));
    }
    if r.typical_p < 1.0 {
        steps.push(Step::KeepTypical(r.typical_p));
    }
    if r.top_p < 1.0 {
        steps.push(Step::KeepTopP(r.top_p));
    }
    if r.min_p > 0.0 {
        steps.push(Step::KeepMinP(r.min_p));
    }
    steps.push(Step::Temperature(r.temperature));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that turns every step off.
    fn off() -> Request {
        Request {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias_ids: Vec::new(),
            logit_bias_values: Vec::new(),
            seed: 0,
            choice: 0,
            model: "demo".to_owned(),
            tenant: "t".to_owned(),
            prompt_tokens: 1,
            max_tokens: 1,
        }
    }

    #[test]
    fn leaves_out_every_step_that_is_off() {
        assert_eq!(plan(&off()), [Step::Temperature(1.0)]);
    }

    #[test]
    fn orders_all_steps_as_llama_cpp_does() {
        let request = Request {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 0.9,
            repeat_penalty: 1.1,
            frequency_penalty: 0.5,
            presence_penalty: 0.25,
            logit_bias_ids: vec![7],
            logit_bias_values: vec![-1.0],
            ..off()
        };
        let expected = [
            Step::Bias { ids: vec![7], values: vec![-1.0] },
            Step::Penalize { last_n: 64, repeat: 1.1, frequency: 0.5, presence: 0.25 },
            Step::KeepTopK(40),
            Step::KeepTypical(0.9),
            Step::KeepTopP(0.95),
            Step::KeepMinP(0.05),
            Step::Temperature(0.8),
        ];
        assert_eq!(plan(&request), expected);
    }

    #[test]
    fn any_one_penalty_is_enough_to_penalize() {
        for request in [
            Request { repeat_penalty: 1.5, ..off() },
            Request { frequency_penalty: -0.5, ..off() },
            Request { presence_penalty: 0.5, ..off() },
        ] {
            assert!(
                matches!(plan(&request)[..], [Step::Penalize { last_n: 64, .. }, Step::Temperature(1.0)]),
                "{request:?}"
            );
        }
    }

    #[test]
    fn keeps_the_best_at_temperature_zero_after_the_penalties() {
        let request = Request { temperature: 0.0, top_k: 40, presence_penalty: 1.0, ..off() };
        let steps = plan(&request);
        assert!(matches!(steps[..], [Step::Penalize { .. }, Step::KeepBest]), "{steps:?}");
    }
}
