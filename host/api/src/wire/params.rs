//! Reads the parameters that chat and plain completions share, and checks them against the limits.
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use camshaft_core::ids::{PolicyName, SessionId};
use camshaft_core::limits::{self, Range};
use camshaft_core::policy::Hints;
use camshaft_core::sampling::SamplingParams;
use serde_json::Value;

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::extent::{Extent, ExtentBounds};
use crate::wire::fields::{self, Fields};
use crate::wire::sampling;

/// Header with the timeout: seconds from arrival to the first token.
pub(crate) const TIMEOUT_HEADER: &str = "x-request-timeout";
const MIN_TIMEOUT: f64 = 0.001;
/// Fields that no engine here supports. They are refused unless absent, null or empty.
const UNSUPPORTED: [&str; 4] = ["functions", "audio", "prediction", "web_search_options"];
/// Fields that change the answer in a way that is not served, with the reason. They are refused unless absent, null or false.
const REFUSED: [(&str, &str); 2] = [
    ("use_beam_search", "sequences are sampled one by one; best_of returns the likeliest of several"),
    ("chat_template", "a model's chats are rendered with its own template"),
];

/// The bounds against which a request is checked, and its model's defaults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds<'a> {
    pub(crate) extent: ExtentBounds,
    pub(crate) max_timeout: Duration,
    pub(crate) vocabulary_size: usize,
    pub(crate) samplers: &'a [PolicyName],
    /// Of a request that names no parameters.
    pub(crate) sampling: &'a SamplingParams,
}

/// How to generate, as the client asked for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct GenerationSettings {
    pub(crate) sampling: SamplingParams,
    pub(crate) extent: Extent,
    /// Number of choices that are answered per prompt.
    pub(crate) n: u32,
    /// Number of choices that are generated per prompt, at least `n`: the likeliest of them are answered.
    pub(crate) best_of: u32,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) samplers: Option<Vec<String>>,
    /// The session that pins the request's KV in the prefix cache.
    pub(crate) session: Option<SessionId>,
    /// The part of the caller's cached prefixes that the request shares.
    pub(crate) cache_key: Option<String>,
    /// Tokens that are left of a prompt that is longer.
    pub(crate) truncate: Option<Truncate>,
    /// The end user, for the log.
    pub(crate) user: Option<String>,
    /// What the client says for scheduler policies to read.
    pub(crate) hints: Arc<Hints>,
    /// Maximum time from arrival to the first token.
    pub(crate) timeout: Option<Duration>,
}

/// How much is left of a long prompt: its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Truncate {
    Last(u32),
    /// What the context has room for beside the output.
    Context,
}

impl GenerationSettings {
    /// Reads and checks the parameters.
    ///
    /// # Errors
    /// 400 that names the field, its value and what is allowed.
    pub(crate) fn read(fields: &Fields<'_>, bounds: Bounds<'_>) -> Result<Self, RequestError> {
        refuse_unsupported(fields)?;
        let stream = fields.flag("stream")?.unwrap_or(false);
        let n = fields.integer("n", limits::CHOICES)?.unwrap_or(1);
        Ok(Self {
            sampling: sampling::read(fields, bounds.vocabulary_size, bounds.sampling)?,
            extent: Extent::read(fields, bounds.extent, bounds.vocabulary_size)?,
            n,
            best_of: best_of(fields, n, stream)?,
            stream,
            include_usage: include_usage(fields, stream)?,
            samplers: samplers(fields, bounds.samplers)?,
            session: session(fields)?,
            cache_key: cache_key(fields)?,
            truncate: truncate(fields)?,
            user: user(fields),
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
    for (name, why) in REFUSED {
        if fields.get(name).is_some_and(|value| *value != Value::Bool(false) && !is_empty(value)) {
            return Err(RequestError::field(name, format!("{name} is not supported: {why}")));
        }
    }
    let mut modalities = fields.list("modalities")?.into_iter().flatten().enumerate();
    if let Some((at, other)) = modalities.find(|(_, value)| *value != "text") {
        let message = format!("modalities may hold text only, got {}", Shown(&other.to_string()));
        return Err(RequestError::field(format!("modalities[{at}]"), message));
    }
    Ok(())
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Choices that are generated for each prompt.
fn best_of(fields: &Fields<'_>, n: u32, stream: bool) -> Result<u32, RequestError> {
    let best_of = fields.integer("best_of", limits::CHOICES)?.unwrap_or(n);
    let refuse = |message: String| Err(RequestError::field("best_of", message));
    if best_of < n {
        return refuse(format!("best_of must be at least n ({n}), got {best_of}"));
    }
    if best_of > n && stream {
        let why = "which choices are the likeliest is known at their end";
        return refuse(format!("best_of above n ({n}) is not supported when stream is true, got {best_of}: {why}"));
    }
    Ok(best_of)
}

/// Reads `truncate_prompt_tokens`: -1 is as many as there is room for.
fn truncate(fields: &Fields<'_>) -> Result<Option<Truncate>, RequestError> {
    const NAME: &str = "truncate_prompt_tokens";
    match fields.get(NAME) {
        Some(value) if value.as_i64() == Some(-1) => Ok(Some(Truncate::Context)),
        _ => Ok(fields.integer(NAME, limits::TRUNCATED_TOKENS)?.map(Truncate::Last)),
    }
}

/// The end user whom the client names, by either name of the field. Another type is ignored, as nothing depends on it.
pub(crate) fn user(fields: &Fields<'_>) -> Option<String> {
    let named = |name| fields.get(name).and_then(Value::as_str).filter(|user| !user.is_empty());
    named("safety_identifier").or_else(|| named("user")).map(|user| user.chars().take(limits::USER_CHARS).collect())
}

/// Reads `prompt_cache_key`, a name that the client chooses.
pub(crate) fn cache_key(fields: &Fields<'_>) -> Result<Option<String>, RequestError> {
    const NAME: &str = "prompt_cache_key";
    let Some(key) = fields.text(NAME)? else { return Ok(None) };
    let max = limits::CACHE_KEY_BYTES;
    if key.is_empty() || key.len() > max {
        return Err(RequestError::field(NAME, format!("{NAME} must have 1 to {max} bytes, got {}", key.len())));
    }
    Ok(Some(key.to_owned()))
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
