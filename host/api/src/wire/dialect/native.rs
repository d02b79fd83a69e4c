//! The server's own generations: a prompt in text or tokens, as a completion.
use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

use super::{AnswerFormat, Converted};
use crate::wire::error::RequestError;
use crate::wire::names::{Names, Paths};
use crate::wire::read::Body;
use crate::wire::types::completions::CompletionRequest;
use crate::wire::types::generate::GenerateRequest;
use crate::wire::types::generation::GenerationFields;
use crate::wire::types::values::Input;

/// What the completion endpoint calls the fields of a request whose prompt is `tokens`.
const OF_TOKENS: &Paths = &[("prompt", "tokens")];
const NDJSON: &str = "application/x-ndjson";
const EVENT_STREAM: &str = "text/event-stream";
const JSON: &str = "application/json";

/// How a stream is written, which the client's `Accept` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Framing {
    /// Neither of the others: whole, or in events if the body asks for a stream.
    Unspecified,
    Events,
    /// JSON, one object a line.
    Lines,
}

impl Framing {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let kinds = values.flat_map(|value| value.split(',')).map(Accepted::of);
        let framing = |kind: Accepted<'_>| match kind.name {
            _ if kind.quality <= 0.0 => None,
            name if name.eq_ignore_ascii_case(NDJSON) => Some((kind.quality, Self::Lines)),
            name if name.eq_ignore_ascii_case(EVENT_STREAM) => Some((kind.quality, Self::Events)),
            name if name.eq_ignore_ascii_case(JSON) => Some((kind.quality, Self::Unspecified)),
            // What is named goes before anything else.
            _ => None,
        };
        let best = kinds.filter_map(framing).reduce(|best, next| if next.0 > best.0 { next } else { best });
        best.map_or(Self::Unspecified, |(_, framing)| framing)
    }
}

/// A media type that a client accepts, and how gladly: from 0, not at all, to 1.
struct Accepted<'a> {
    name: &'a str,
    quality: f64,
}

impl<'a> Accepted<'a> {
    fn of(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        Self { name, quality: quality.map_or(1.0, |quality| quality.parse().unwrap_or(0.0)) }
    }
}

/// The completion that a generation asks for.
///
/// # Errors
/// 400: it has neither a text nor tokens, or both.
pub(super) fn completion(
    body: Body<GenerateRequest>,
    framing: Framing,
) -> Result<Converted<CompletionRequest>, RequestError> {
    let GenerateRequest { prompt, tokens, echo, logprobs, suffix, parse_special, generation, .. } = body.request;
    let (prompt, paths): (_, &Paths) = match (prompt, tokens) {
        (Some(text), None) => (Input::Text(text), &[]),
        (None, Some(tokens)) => (Input::Tokens(tokens), OF_TOKENS),
        (None, None) => return Err(RequestError::field("prompt", "prompt is required")),
        (Some(_), Some(_)) => return Err(RequestError::field("tokens", "tokens and prompt may not come together")),
    };
    let stream = generation.stream.unwrap_or(framing != Framing::Unspecified);
    let request = CompletionRequest {
        prompt: Some(prompt),
        echo,
        logprobs,
        suffix,
        parse_special,
        generation: GenerationFields { stream: Some(stream), ..generation },
    };
    let names = Names::new(paths, Vec::new(), Vec::new());
    Converted::new(request, body.unknown, AnswerFormat::Native(framing), names, Vec::new())
}
