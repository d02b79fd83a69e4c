//! Reads how far a generation goes: what ends it, and what keeps it from ending.
use std::time::Duration;

use camshaft_core::ids::Token;
use camshaft_core::limits::{self, Range};
use serde_json::Value;

use crate::wire::error::RequestError;
use crate::wire::fields::{self, Fields};

const MAX_DURATION: &str = "max_duration";
const STOP_TOKENS: &str = "stop_token_ids";
/// The shortest `max_duration`, in seconds.
const MIN_DURATION: f64 = 0.001;

/// Bounds of how far a generation goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExtentBounds {
    /// 0 where a request may ask for no tokens at all.
    pub(crate) least_tokens: u32,
    pub(crate) max_tokens: u32,
    /// What a request has that does not say.
    pub(crate) unset_tokens: u32,
    /// The longest time, also of requests that set none; `None`: no bound.
    pub(crate) max_duration: Option<Duration>,
}

/// How far a generation goes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Extent {
    pub(crate) max_tokens: u32,
    /// Whether the client set it.
    pub(crate) max_tokens_set: bool,
    pub(crate) min_tokens: u32,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_tokens: Vec<Token>,
    pub(crate) ignore_eos: bool,
    /// From the request's arrival.
    pub(crate) max_duration: Option<Duration>,
}

impl Extent {
    /// # Errors
    /// 400 that names the field, its value and what is allowed.
    pub(crate) fn read(
        fields: &Fields<'_>,
        bounds: ExtentBounds,
        vocabulary_size: usize,
    ) -> Result<Self, RequestError> {
        let set = max_tokens(fields, bounds)?;
        let max_tokens = set.unwrap_or(bounds.unset_tokens);
        let min_tokens =
            fields.integer("min_tokens", Range { min: 0.0, max: f64::from(bounds.max_tokens) })?.unwrap_or(0);
        if min_tokens > max_tokens {
            let message = format!("min_tokens must be at most max_tokens ({max_tokens}), got {min_tokens}");
            return Err(RequestError::field("min_tokens", message));
        }
        Ok(Self {
            max_tokens,
            max_tokens_set: set.is_some(),
            min_tokens,
            stop: stop(fields)?,
            stop_tokens: stop_tokens(fields, vocabulary_size)?,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            max_duration: max_duration(fields, bounds.max_duration)?,
        })
    }
}

/// Reads `max_completion_tokens`, or else its older name `max_tokens`. A larger number than the bound is cut to it, as the
/// context cuts it: clients send what their own models may generate.
fn max_tokens(fields: &Fields<'_>, bounds: ExtentBounds) -> Result<Option<u32>, RequestError> {
    let range = Range { min: f64::from(bounds.least_tokens), max: f64::from(bounds.max_tokens) };
    let is_above = |value: &Value| value.as_u64().is_some_and(|number| number > u64::from(bounds.max_tokens));
    let one = |name: &str| match fields.get(name) {
        Some(value) if is_above(value) => Ok(Some(bounds.max_tokens)),
        _ => fields.integer(name, range),
    };
    let old = one("max_tokens")?;
    Ok(one("max_completion_tokens")?.or(old))
}

fn stop_tokens(fields: &Fields<'_>, vocabulary_size: usize) -> Result<Vec<Token>, RequestError> {
    let list = fields.list(STOP_TOKENS)?.map_or(&[][..], Vec::as_slice);
    if list.len() > limits::STOP_TOKENS {
        let message = format!("{STOP_TOKENS} may hold at most {} ids, got {}", limits::STOP_TOKENS, list.len());
        return Err(RequestError::field(STOP_TOKENS, message));
    }
    let range = Range { min: 0.0, max: vocabulary_size.saturating_sub(1) as f64 };
    let one = |(i, value): (usize, &Value)| fields::integer(value, &format!("{STOP_TOKENS}[{i}]"), range).map(Token);
    list.iter().enumerate().map(one).collect()
}

/// Reads `max_duration`, in seconds. The server's own bound counts where it is shorter, or the only one.
fn max_duration(fields: &Fields<'_>, bound: Option<Duration>) -> Result<Option<Duration>, RequestError> {
    let range = Range { min: MIN_DURATION, max: bound.unwrap_or(limits::DURATION).as_secs_f64() };
    let own = fields.number(MAX_DURATION, range)?.map(Duration::from_secs_f64);
    Ok(own.or(bound))
}

fn stop(fields: &Fields<'_>) -> Result<Vec<String>, RequestError> {
    let texts = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => {
            let text = |value: &'_ Value| matches!(value, Value::String(_));
            if let Some(other) = list.iter().find(|value| !text(value)) {
                return Err(fields::wrong_type("stop", "a string or a list of strings", other));
            }
            list.iter().filter_map(|value| if let Value::String(text) = value { Some(text) } else { None }).collect()
        }
        Some(other) => return Err(fields::wrong_type("stop", "a string or a list of strings", other)),
    };
    let (strings, bytes) = (limits::STOP_STRINGS, limits::STOP_BYTES);
    if texts.len() > strings {
        return Err(RequestError::field(
            "stop",
            format!("stop may hold at most {strings} strings, got {}", texts.len()),
        ));
    }
    for text in &texts {
        if text.is_empty() || text.len() > bytes {
            let message = format!("a stop string must have between 1 and {bytes} bytes, got {}", text.len());
            return Err(RequestError::field("stop", message));
        }
    }
    Ok(texts.into_iter().cloned().collect())
}
