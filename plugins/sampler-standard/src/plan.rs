//! The operations on each row of a request, computed once.
use camshaft_plugin::sampler::{Parameters, Step};

/// The steps that have an effect, in llama.cpp's order. The last one settles the row: after `KeepBest` or `Temperature`
/// (even 1) the host draws from the row as it is.
pub fn steps(request: &Parameters) -> Vec<Step> {
    // Without `..`: a parameter that is added to the request does not compile until it is decided here.
    let Parameters {
        temperature,
        top_k,
        top_p,
        min_p,
        typical_p,
        repeat_penalty,
        repeat_last_n,
        frequency_penalty,
        presence_penalty,
        logit_bias_ids,
        logit_bias_values,
        seed: _,
        choice: _,
        prompt_tokens: _,
        max_tokens: _,
    } = request;
    let mut steps = Vec::with_capacity(8);
    if !logit_bias_ids.is_empty() {
        steps.push(Step::Bias { ids: logit_bias_ids.clone(), values: logit_bias_values.clone() });
    }
    if *repeat_penalty != 1.0 || *frequency_penalty != 0.0 || *presence_penalty != 0.0 {
        steps.push(Step::Penalize {
            last_n: *repeat_last_n,
            repeat: *repeat_penalty,
            frequency: *frequency_penalty,
            presence: *presence_penalty,
        });
    }
    if *temperature == 0.0 {
        steps.push(Step::KeepBest);
        return steps;
    }
    if *top_k > 0 {
        steps.push(Step::KeepTopK(*top_k));
    }
    if *typical_p < 1.0 {
        steps.push(Step::KeepTypical { p: *typical_p, min_keep: 1 });
    }
    if *top_p < 1.0 {
        steps.push(Step::KeepTopP { p: *top_p, min_keep: 1 });
    }
    if *min_p > 0.0 {
        steps.push(Step::KeepMinP { p: *min_p, min_keep: 1 });
    }
    steps.push(Step::Temperature(*temperature));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that turns every step off.
    fn off() -> Parameters {
        Parameters {
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
            prompt_tokens: 1,
            max_tokens: 1,
        }
    }

    #[test]
    fn leaves_out_every_step_that_is_off() {
        assert_eq!(steps(&off()), [Step::Temperature(1.0)]);
    }

    #[test]
    fn orders_all_steps_as_llama_cpp_does() {
        let request = Parameters {
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
            Step::KeepTypical { p: 0.9, min_keep: 1 },
            Step::KeepTopP { p: 0.95, min_keep: 1 },
            Step::KeepMinP { p: 0.05, min_keep: 1 },
            Step::Temperature(0.8),
        ];
        assert_eq!(steps(&request), expected);
    }

    #[test]
    fn any_one_penalty_is_enough_to_penalize() {
        for request in [
            Parameters { repeat_penalty: 1.5, ..off() },
            Parameters { frequency_penalty: -0.5, ..off() },
            Parameters { presence_penalty: 0.5, ..off() },
        ] {
            assert!(
                matches!(steps(&request)[..], [Step::Penalize { last_n: 64, .. }, Step::Temperature(1.0)]),
                "{request:?}"
            );
        }
    }

    #[test]
    fn keeps_the_best_at_temperature_zero_after_the_penalties() {
        let request = Parameters { temperature: 0.0, top_k: 40, presence_penalty: 1.0, ..off() };
        let steps = steps(&request);
        assert!(matches!(steps[..], [Step::Penalize { .. }, Step::KeepBest]), "{steps:?}");
    }
}
