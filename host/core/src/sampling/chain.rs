//! The native standard chain: the usual sampling parameters, applied in llama.cpp's order.
use super::checks::RowError;
use super::params::SamplingParams;
use super::row::Row;
use super::step::Step;

/// Applies bias, penalties, top-k, typical, top-p, min-p and temperature to a row. The caller draws the token.
#[derive(Debug, Clone)]
pub struct StandardChain {
    steps: Vec<Step>,
}

impl StandardChain {
    pub fn new(params: SamplingParams) -> Self {
        Self { steps: steps(params) }
    }

    #[cfg(test)]
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Shapes the row.
    ///
    /// # Errors
    /// A parameter is outside the bounds of [`crate::limits`], which the API checks.
    pub fn shape(&self, row: &mut Row) -> Result<(), RowError> {
        self.steps.iter().try_for_each(|step| step.apply(row))
    }
}

/// The steps that change something. The last one settles the row.
fn steps(params: SamplingParams) -> Vec<Step> {
    // Without `..`: a parameter that is added does not compile until it has its place here.
    let SamplingParams {
        temperature,
        top_k,
        top_p,
        min_p,
        typical_p,
        repeat_penalty,
        repeat_last_n,
        frequency_penalty,
        presence_penalty,
        logit_bias,
        // The row draws.
        seed: _,
    } = params;
    let mut steps = Vec::with_capacity(8);
    if !logit_bias.is_empty() {
        let (ids, values) = logit_bias.iter().map(|bias| (bias.token.0, bias.bias)).unzip();
        steps.push(Step::Bias { ids, values });
    }
    if repeat_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0 {
        let (repeat, frequency, presence) = (repeat_penalty, frequency_penalty, presence_penalty);
        steps.push(Step::Penalize { last_n: repeat_last_n, repeat, frequency, presence });
    }
    if temperature == 0.0 {
        steps.push(Step::KeepBest);
        return steps;
    }
    if top_k > 0 {
        steps.push(Step::KeepTopK(top_k));
    }
    if typical_p < 1.0 {
        steps.push(Step::KeepTypical { p: typical_p, min_keep: 1 });
    }
    if top_p < 1.0 {
        steps.push(Step::KeepTopP { p: top_p, min_keep: 1 });
    }
    if min_p > 0.0 {
        steps.push(Step::KeepMinP { p: min_p, min_keep: 1 });
    }
    steps.push(Step::Temperature(temperature));
    steps
}
