//! Reads the parameters that chat and plain completions share, and checks them against the limits.
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use camshaft_core::ids::{PolicyName, SessionId, Token};
use camshaft_core::limits::{self, Range};
use camshaft_core::policy::Hints;
use camshaft_core::sampling::{LogitBias, SamplingParams};
use serde_json::Value;

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::{self, Fields};

/// Header with the timeout: seconds from arrival to the first token.
pub(crate) const TIMEOUT_HEADER: &str = "x-request-timeout";
const MIN_TIMEOUT: f64 = 0.001;
/// Temperatures below this are greedy: dividing logits by less would overflow.
const GREEDY_TEMPERATURE: f32 = 1e-5;
/// Fields that no engine here supports. They are refused unless absent, null or empty.
const UNSUPPORTED: [&str; 13] = [
    "tools",
    "functions",
    "audio",
    "prediction",
    "grammar",
    "json_schema",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "suffix",
    "web_search_options",
];

/// The bounds against which a request is checked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds<'a> {
    pub(crate) max_tokens: u32,
    pub(crate) max_timeout: Duration,
    pub(crate) vocabulary_size: usize,
    pub(crate) samplers: &'a [PolicyName],
}

/// How to generate, as the client asked for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GenerationSettings {
    pub(crate) sampling: SamplingParams,
    /// `None` if the client did not set it.
    pub(crate) max_tokens: Option<u32>,
    pub(crate) stop: Vec<String>,
    /// Number of choices per prompt.
    pub(crate) n: u32,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) samplers: Option<Vec<String>>,
    pub(crate) ignore_eos: bool,
    /// The session that pins the request's KV in the prefix cache.
    pub(crate) session: Option<SessionId>,
    /// What the client says for scheduler policies to read.
    pub(crate) hints: Arc<Hints>,
    /// Maximum time from arrival to the first token.
    pub(crate) timeout: Option<Duration>,
}

impl GenerationSettings {
    /// Reads and checks the parameters.
    ///
    /// # Errors
    /// 400 that names the field, its value and what is allowed.
    pub(crate) fn read(fields: &Fields<'_>, bounds: Bounds<'_>) -> Result<Self, RequestError> {
        refuse_unsupported(fields)?;
        let n = fields.integer("n", limits::CHOICES)?.unwrap_or(1);
        if let Some(best_of) = fields.integer("best_of", limits::CHOICES)?
            && best_of > n
        {
            return Err(RequestError::field(
                "best_of",
                format!("best_of above n ({n}) is not supported, got {best_of}"),
            ));
        }
        let stream = fields.flag("stream")?.unwrap_or(false);
        Ok(Self {
            sampling: sampling(fields, bounds.vocabulary_size)?,
            max_tokens: max_tokens(fields, bounds.max_tokens)?,
            stop: stop(fields)?,
            n,
            stream,
            include_usage: include_usage(fields, stream)?,
            samplers: samplers(fields, bounds.samplers)?,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            session: session(fields)?,
            hints: hints(fields)?.into(),
            timeout: timeout(fields, bounds.max_timeout)?,
        })
    }
}

/// Refuses unsupported fields, because ignoring them would silently change the answer.
fn refuse_unsupported(fields: &Fields<'_>) -> Result<(), RequestError> {
    for name in UNSUPPORTED {
        if fields.get(name).is_some_and(|value| !is_empty(value)) {
            return Err(RequestError::field(name, format!("{name} is not supported")));
        }
    }
    let Some(format) = fields.get("response_format") else { return Ok(()) };
    match Fields::of(format, "response_format")?.text("type")? {
        Some("text") => Ok(()),
        kind => Err(RequestError::field(
            "response_format",
            format!("response_format of type {} is not supported, only text", Shown(kind.unwrap_or("(none)"))),
        )),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn sampling(fields: &Fields<'_>, vocabulary_size: usize) -> Result<SamplingParams, RequestError> {
    let defaults = SamplingParams::default();
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

/// Reads `max_completion_tokens`, or else its older name `max_tokens`.
fn max_tokens(fields: &Fields<'_>, max: u32) -> Result<Option<u32>, RequestError> {
    let range = Range { min: 1.0, max: f64::from(max) };
    let old = fields.integer("max_tokens", range)?;
    Ok(fields.integer("max_completion_tokens", range)?.or(old))
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

fn include_usage(fields: &Fields<'_>, stream: bool) -> Result<bool, RequestError> {
    let Some(options) = fields.get("stream_options") else { return Ok(false) };
    let include = Fields::of(options, "stream_options")?.flag("include_usage")?;
    if !stream {
        return Err(RequestError::field("stream_options", "stream_options is only allowed when stream is true"));
    }
    Ok(include.unwrap_or(false))
}

fn samplers(fields: &Fields<'_>, known: &[PolicyName]) -> Result<Option<Vec<String>>, RequestError> {
    let Some(list) = fields.list("samplers")? else { return Ok(None) };
    if list.len() > limits::SAMPLERS {
        let max = limits::SAMPLERS;
        return Err(RequestError::field("samplers", format!("samplers may name at most {max}, got {}", list.len())));
    }
    let name = |(i, value): (usize, &Value)| {
        let path = format!("samplers[{i}]");
        let name = value.as_str().ok_or_else(|| fields::wrong_type(&path, "a string", value))?;
        if list[..i].iter().any(|earlier| earlier.as_str() == Some(name)) {
            let name = Shown(name);
            return Err(RequestError::field(path, format!("{name:?} is named twice: each sampler may be named once")));
        }
        match known.iter().any(|sampler| sampler.as_str() == name) {
            true => Ok(name.to_owned()),
            false => Err(RequestError::field(path, format!("there is no sampler named {:?} in force", Shown(name)))),
        }
    };
    list.iter().enumerate().map(name).collect::<Result<_, _>>().map(Some)
}

/// Reads `timeout`, in seconds.
pub(crate) fn timeout(fields: &Fields<'_>, max: Duration) -> Result<Option<Duration>, RequestError> {
    let range = Range { min: MIN_TIMEOUT, max: max.as_secs_f64() };
    Ok(fields.number("timeout", range)?.map(Duration::from_secs_f64))
}

/// Reads the timeout header, for clients that cannot add a field to the body.
pub(crate) fn timeout_header(headers: &HeaderMap, max: Duration) -> Result<Option<Duration>, RequestError> {
    let Some(value) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let range = Range { min: MIN_TIMEOUT, max: max.as_secs_f64() };
    let seconds = value.to_str().ok().and_then(|text| text.trim().parse::<f64>().ok());
    match seconds.filter(|&seconds| range.contains(seconds)) {
        Some(seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
        None => {
            let shown = String::from_utf8_lossy(value.as_bytes());
            let (min, max, shown) = (range.min, range.max, Shown(&shown));
            let message = format!("{TIMEOUT_HEADER} must be seconds between {min} and {max}, got {shown:?}");
            Err(RequestError::field(TIMEOUT_HEADER, message))
        }
    }
}

/// Reads `session_id`, a name that the client chooses.
pub(crate) fn session(fields: &Fields<'_>) -> Result<Option<SessionId>, RequestError> {
    let Some(name) = fields.text("session_id")? else { return Ok(None) };
    let max = limits::SESSION_ID;
    if name.is_empty() || name.len() > max || !name.bytes().all(|b| b.is_ascii_graphic()) {
        let message = format!("session_id must have 1 to {max} visible ASCII characters, got {}", name.len());
        return Err(RequestError::field("session_id", message));
    }
    Ok(Some(SessionId::new(name)))
}

/// Reads `hints`, names and values that only scheduler policies look at.
fn hints(fields: &Fields<'_>) -> Result<Hints, RequestError> {
    let Some(map) = fields.object("hints")? else { return Ok(Hints::default()) };
    let (max, name_bytes, value_bytes) = (limits::HINTS, limits::HINT_NAME_BYTES, limits::HINT_VALUE_BYTES);
    if map.len() > max {
        return Err(RequestError::field("hints", format!("hints has {} entries, at most {max}", map.len())));
    }
    let entry = |(name, value): (&String, &Value)| {
        if name.is_empty() || name.len() > name_bytes || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            let shown = Shown(name);
            let message =
                format!("a name in hints must have 1 to {name_bytes} visible ASCII characters, got {shown:?}");
            return Err(RequestError::field("hints", message));
        }
        let path = format!("hints.{name}");
        let text = value.as_str().ok_or_else(|| fields::wrong_type(&path, "a string", value))?;
        if text.len() > value_bytes {
            let message = format!("{path} may have at most {value_bytes} bytes, got {}", text.len());
            return Err(RequestError::field(path, message));
        }
        Ok((name.clone(), text.to_owned()))
    };
    map.iter().map(entry).collect::<Result<_, _>>().map(Hints::new)
}

#[cfg(test)]
#[path = "params_tests.rs"]
mod tests;
