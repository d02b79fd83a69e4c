//! The native standard chain: the usual sampling parameters, applied in llama.cpp's order.
use super::params::SamplingParams;
use super::row::{Row, RowError};

/// Applies bias, penalties, top-k, typical, top-p, min-p and temperature to a row. The caller draws the token.
#[derive(Debug, Clone)]
pub struct StandardChain {
    params: SamplingParams,
    bias_ids: Vec<u32>,
    bias_values: Vec<f32>,
}

impl StandardChain {
    pub fn new(params: SamplingParams) -> Self {
        let bias_ids = params.logit_bias.iter().map(|b| b.token.0).collect();
        let bias_values = params.logit_bias.iter().map(|b| b.bias).collect();
        Self { params, bias_ids, bias_values }
    }

    /// Shapes the row.
    ///
    /// # Errors
    /// A parameter is outside the bounds of [`crate::limits`], which the API checks.
    pub fn shape(&self, row: &mut Row) -> Result<(), RowError> {
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
            // As two lists in `self`.
            logit_bias: _,
            // The row draws.
            seed: _,
        } = self.params;
        if !self.bias_ids.is_empty() {
            row.bias(&self.bias_ids, &self.bias_values)?;
        }
        if repeat_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0 {
            row.penalize(repeat_last_n, repeat_penalty, frequency_penalty, presence_penalty)?;
        }
        if temperature == 0.0 {
            row.keep_best();
            return Ok(());
        }
        row.keep_top_k(top_k);
        if typical_p < 1.0 {
            row.keep_typical(typical_p, 1)?;
        }
        if top_p < 1.0 {
            row.keep_top_p(top_p, 1)?;
        }
        if min_p > 0.0 {
            row.keep_min_p(min_p, 1)?;
        }
        row.temperature(temperature)
    }
}
