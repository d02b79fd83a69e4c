//! How to generate, as a request asks for it, within the server's bounds and with its model's defaults.
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
use crate::wire::types::generation::GenerationFields;
use crate::wire::types::values::{TextOrList, Whole};

/// Header with the timeout: seconds from arrival to the first token.
pub(crate) const TIMEOUT_HEADER: &str = "x-request-timeout";
/// The shortest time, in seconds.
const MIN_SECONDS: f64 = 0.001;
/// Temperatures below this are greedy: dividing logits by less would overflow.
const GREEDY_TEMPERATURE: f32 = 1e-5;

/// The bounds against which a request is checked, and its model's defaults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds<'a> {
    /// 0 where a request may ask for no tokens at all.
    pub(crate) least_tokens: u32,
    pub(crate) max_tokens: u32,
    /// What a request has that does not say.
    pub(crate) unset_tokens: u32,
    /// The longest time, also of requests that set none; `None`: no bound.
    pub(crate) max_duration: Option<Duration>,
    pub(crate) max_timeout: Duration,
    pub(crate) vocabulary_size: usize,
    pub(crate) samplers: &'a [PolicyName],
    /// Of a request that names no parameters.
    pub(crate) sampling: &'a SamplingParams,
}

/// See the module.
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

/// How far a generation goes: what ends it, and what keeps it from ending.
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

/// How much is left of a long prompt: its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Truncate {
    Last(u32),
    /// What the context has room for beside the output.
    Context,
}

impl GenerationSettings {
    /// # Errors
    /// 400 that names the field, its value and what is allowed.
    pub(crate) fn new(fields: &GenerationFields, bounds: Bounds<'_>) -> Result<Self, RequestError> {
        let stream = fields.stream.unwrap_or(false);
        let n = fields.n.map_or(1, Whole::get);
        if fields.stream_options.is_some() && !stream {
            return Err(RequestError::field("stream_options", "stream_options is only allowed when stream is true"));
        }
        Ok(Self {
            sampling: sampling(fields, bounds)?,
            extent: Extent::new(fields, bounds)?,
            n,
            best_of: best_of(fields, n, stream)?,
            stream,
            include_usage: fields.stream_options.as_ref().and_then(|options| options.include_usage).unwrap_or(false),
            samplers: samplers(fields, bounds.samplers)?,
            session: fields.session_id.as_deref().map(SessionId::new),
            cache_key: fields.prompt_cache_key.clone(),
            truncate: fields.truncate_prompt_tokens.map(|most| match most {
                Whole(-1) => Truncate::Context,
                most => Truncate::Last(most.get()),
            }),
            user: end_user([&fields.safety_identifier, &fields.user]),
            hints: Arc::new(Hints::new(fields.hints.clone().unwrap_or_default().into_iter().collect())),
            timeout: timeout(fields.timeout, bounds.max_timeout)?,
        })
    }
}

impl Extent {
    fn new(fields: &GenerationFields, bounds: Bounds<'_>) -> Result<Self, RequestError> {
        let (name, set) = match (fields.max_completion_tokens, fields.max_tokens) {
            (Some(most), _) => ("max_completion_tokens", Some(most.get())),
            (None, most) => ("max_tokens", most.map(Whole::get)),
        };
        if let Some(too_few) = set.filter(|set| *set < bounds.least_tokens) {
            let message = format!("{name} must be at least {}, got {too_few}", bounds.least_tokens);
            return Err(RequestError::field(name, message));
        }
        // A larger number than the bound is cut to it, as the context cuts it: clients send what their own models may generate.
        let max_tokens = set.unwrap_or(bounds.unset_tokens).min(bounds.max_tokens);
        let min_tokens = fields.min_tokens.map_or(0, Whole::get);
        if min_tokens > max_tokens {
            let message = format!("min_tokens must be at most max_tokens ({max_tokens}), got {min_tokens}");
            return Err(RequestError::field("min_tokens", message));
        }
        Ok(Self {
            max_tokens,
            max_tokens_set: set.is_some(),
            min_tokens,
            stop: match fields.stop.clone() {
                None => Vec::new(),
                Some(TextOrList::Text(text)) => vec![text],
                Some(TextOrList::List(texts)) => texts,
            },
            stop_tokens: tokens(
                fields.stop_token_ids.as_deref().unwrap_or_default(),
                "stop_token_ids",
                bounds.vocabulary_size,
            )?,
            ignore_eos: fields.ignore_eos.unwrap_or(false),
            max_duration: max_duration(fields, bounds.max_duration)?,
        })
    }
}

/// Checks that a vocabulary of this size has these ids.
///
/// # Errors
/// 400 that names the entry, such as `prompt[3]`.
pub(crate) fn tokens(ids: &[u32], path: &str, vocabulary_size: usize) -> Result<Vec<Token>, RequestError> {
    match ids.iter().position(|&id| id as usize >= vocabulary_size) {
        None => Ok(ids.iter().copied().map(Token).collect()),
        Some(entry) => {
            let (path, id, most) = (format!("{path}[{entry}]"), ids[entry], vocabulary_size.saturating_sub(1));
            Err(RequestError::field(path.clone(), format!("{path} must be a token id of 0 to {most}, got {id}")))
        }
    }
}

/// How tokens are drawn.
fn sampling(fields: &GenerationFields, bounds: Bounds<'_>) -> Result<SamplingParams, RequestError> {
    let defaults = bounds.sampling;
    let number = |number: Option<f64>, default: f32| number.map_or(default, |number| number as f32);
    let temperature = number(fields.temperature, defaults.temperature);
    Ok(SamplingParams {
        temperature: if temperature < GREEDY_TEMPERATURE { 0.0 } else { temperature },
        // -1 is 0 in other servers' words.
        top_k: fields.top_k.map_or(defaults.top_k, Whole::get),
        // OpenAI allows 0, but the kernels need a positive number. The smallest one has the same effect: it keeps only
        // the most probable token.
        top_p: number(fields.top_p, defaults.top_p).max(f32::MIN_POSITIVE),
        min_p: number(fields.min_p, defaults.min_p),
        typical_p: number(fields.typical_p, defaults.typical_p).max(f32::MIN_POSITIVE),
        repeat_penalty: number(fields.repeat_penalty.or(fields.repetition_penalty), defaults.repeat_penalty),
        repeat_last_n: fields.repeat_last_n.map_or(defaults.repeat_last_n, Whole::get),
        frequency_penalty: number(fields.frequency_penalty, defaults.frequency_penalty),
        presence_penalty: number(fields.presence_penalty, defaults.presence_penalty),
        logit_bias: logit_bias(fields, bounds.vocabulary_size)?,
        seed: fields.seed.and_then(|seed| seed.0).unwrap_or_else(rand::random),
    })
}

fn logit_bias(fields: &GenerationFields, vocabulary_size: usize) -> Result<Vec<LogitBias>, RequestError> {
    let entry = |(key, &bias): (&String, &f64)| {
        let known = |token: &u32| (*token as usize) < vocabulary_size;
        // Two spellings of one token would be two entries.
        let spelled = |token: &u32| token.to_string() == *key;
        let Some(token) = key.parse::<u32>().ok().filter(known).filter(spelled) else {
            let message = format!("logit_bias keys must be token ids below {vocabulary_size}, got {:?}", Shown(key));
            return Err(RequestError::field("logit_bias", message));
        };
        Ok(LogitBias { token: Token(token), bias: bias as f32 })
    };
    fields.logit_bias.iter().flatten().map(entry).collect()
}

/// Choices that are generated for each prompt.
fn best_of(fields: &GenerationFields, n: u32, stream: bool) -> Result<u32, RequestError> {
    let best_of = fields.best_of.map_or(n, Whole::get);
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

fn samplers(fields: &GenerationFields, known: &[PolicyName]) -> Result<Option<Vec<String>>, RequestError> {
    let Some(names) = &fields.samplers else { return Ok(None) };
    let unknown = |name: &String| !known.iter().any(|sampler| sampler.as_str() == name);
    match names.iter().position(unknown) {
        None => Ok(Some(names.clone())),
        Some(i) => {
            let message = format!("there is no sampler named {:?} in force", Shown(&names[i]));
            Err(RequestError::field(format!("samplers[{i}]"), message))
        }
    }
}

/// The end user whom the client names, by either name of the field. Another type is ignored, as nothing depends on it.
pub(crate) fn end_user(named: [&Option<Value>; 2]) -> Option<String> {
    let text = |value: &'_ Option<Value>| Some(value.as_ref()?.as_str()?.chars().take(limits::USER_CHARS).collect());
    named.into_iter().filter_map(text).find(|user: &String| !user.is_empty())
}

/// The server's own bound counts where it is shorter, or the only one.
fn max_duration(fields: &GenerationFields, bound: Option<Duration>) -> Result<Option<Duration>, RequestError> {
    let own = seconds("max_duration", fields.max_duration, bound.unwrap_or(limits::DURATION))?;
    Ok(own.or(bound))
}

/// A timeout, in seconds.
///
/// # Errors
/// 400: it is longer than may be.
pub(crate) fn timeout(timeout: Option<f64>, max: Duration) -> Result<Option<Duration>, RequestError> {
    seconds("timeout", timeout, max)
}

fn seconds(name: &str, seconds: Option<f64>, max: Duration) -> Result<Option<Duration>, RequestError> {
    let range = Range { min: MIN_SECONDS, max: max.as_secs_f64() };
    match seconds {
        Some(seconds) if !range.contains(seconds) => {
            let message = format!("{name} must be between {} and {}, got {seconds}", range.min, range.max);
            Err(RequestError::field(name, message))
        }
        seconds => Ok(seconds.map(Duration::from_secs_f64)),
    }
}

/// Reads the timeout header, for clients that cannot add a field to the body.
///
/// # Errors
/// 400: it is no time, or out of its bounds.
pub(crate) fn timeout_header(headers: &HeaderMap, max: Duration) -> Result<Option<Duration>, RequestError> {
    let Some(value) = headers.get(TIMEOUT_HEADER) else { return Ok(None) };
    let range = Range { min: MIN_SECONDS, max: max.as_secs_f64() };
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

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
