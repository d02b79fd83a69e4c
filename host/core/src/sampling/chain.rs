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
        let p = &self.params;
        if !self.bias_ids.is_empty() {
            row.bias(&self.bias_ids, &self.bias_values)?;
        }
        if p.repeat_penalty != 1.0 || p.frequency_penalty != 0.0 || p.presence_penalty != 0.0 {
            row.penalize(p.repeat_last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty)?;
        }
        if p.temperature == 0.0 {
            row.keep_best();
            return Ok(());
        }
        row.keep_top_k(p.top_k);
        if p.typical_p < 1.0 {
            row.keep_typical(p.typical_p, 1)?;
        }
        if p.top_p < 1.0 {
            row.keep_top_p(p.top_p, 1)?;
        }
        if p.min_p > 0.0 {
            row.keep_min_p(p.min_p, 1)?;
        }
        row.temperature(p.temperature)
    }
}
