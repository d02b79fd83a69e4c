//! Reads how tokens are drawn: the sampling parameters of chat and plain completions.
use camshaft_core::ids::Token;
use camshaft_core::limits;
use camshaft_core::sampling::{LogitBias, SamplingParams};
use serde_json::Value;

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::{self, Fields};

/// Temperatures below this are greedy: dividing logits by less would overflow.
const GREEDY_TEMPERATURE: f32 = 1e-5;

/// The parameters of a request; `defaults` are those of its model.
///
/// # Errors
/// 400 that names the field, its value and what is allowed.
pub(crate) fn read(
    fields: &Fields<'_>,
    vocabulary_size: usize,
    defaults: &SamplingParams,
) -> Result<SamplingParams, RequestError> {
    let number = |name, range, default: f32| fields.number(name, range).map(|n| n.map_or(default, |n| n as f32));
    let temperature = number("temperature", limits::TEMPERATURE, defaults.temperature)?;
    let penalty_name = if fields.get("repeat_penalty").is_some() { "repeat_penalty" } else { "repetition_penalty" };
    Ok(SamplingParams {
        temperature: if temperature < GREEDY_TEMPERATURE { 0.0 } else { temperature },
        top_k: fields.integer("top_k", limits::TOP_K)?.unwrap_or(defaults.top_k),
        // OpenAI allows 0, but the kernels need a positive number. The smallest one has the same effect: it keeps only
        // the most probable token.
        top_p: number("top_p", limits::TOP_P, defaults.top_p)?.max(f32::MIN_POSITIVE),
        min_p: number("min_p", limits::MIN_P, defaults.min_p)?,
        typical_p: number("typical_p", limits::TYPICAL_P, defaults.typical_p)?.max(f32::MIN_POSITIVE),
        repeat_penalty: number(penalty_name, limits::REPEAT_PENALTY, defaults.repeat_penalty)?,
        repeat_last_n: fields.integer("repeat_last_n", limits::REPEAT_LAST_N)?.unwrap_or(defaults.repeat_last_n),
        frequency_penalty: number("frequency_penalty", limits::FREQUENCY_PENALTY, defaults.frequency_penalty)?,
        presence_penalty: number("presence_penalty", limits::PRESENCE_PENALTY, defaults.presence_penalty)?,
        logit_bias: logit_bias(fields, vocabulary_size)?,
        seed: seed(fields)?,
    })
}

/// Reads any 64-bit integer, signed or not. Without one, the seed is random.
fn seed(fields: &Fields<'_>) -> Result<u64, RequestError> {
    let Some(value) = fields.get("seed") else { return Ok(rand::random()) };
    let seed = value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned));
    seed.ok_or_else(|| fields::wrong_type("seed", "a 64-bit integer", value))
}

fn logit_bias(fields: &Fields<'_>, vocabulary_size: usize) -> Result<Vec<LogitBias>, RequestError> {
    let Some(map) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    if map.len() > limits::LOGIT_BIAS_ENTRIES {
        let max = limits::LOGIT_BIAS_ENTRIES;
        return Err(RequestError::field("logit_bias", format!("logit_bias has {} entries, at most {max}", map.len())));
    }
    let entry = |(key, value): (&String, &Value)| {
        let known = |token: &u32| (*token as usize) < vocabulary_size;
        // Two spellings of one token would be two entries.
        let spelled = |token: &u32| token.to_string() == *key;
        let Some(token) = key.parse::<u32>().ok().filter(known).filter(spelled) else {
            let message = format!("logit_bias keys must be token ids below {vocabulary_size}, got {:?}", Shown(key));
            return Err(RequestError::field("logit_bias", message));
        };
        let bias = fields::number(value, &format!("logit_bias.{token}"), limits::LOGIT_BIAS)?;
        Ok(LogitBias { token: Token(token), bias: bias as f32 })
    };
    map.iter().map(entry).collect()
}
