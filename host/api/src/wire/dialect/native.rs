//! The server's own generations: a prompt in text or tokens, as a completion.
use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use serde_json::Value;

use crate::wire::error::RequestError;
use crate::wire::fields::wrong_type;
use crate::wire::json::Body;
use crate::wire::lists::{IdLists, Lists};
use crate::wire::names::{Names, Paths};
use crate::wire::taken::Taken;
use crate::wire::translated::{Translated, refuse};
use crate::wire::types::generate::REFUSED;

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

/// # Errors
/// 400 that names the field.
pub(super) fn read(body: Body, framing: Framing) -> Result<Translated<()>, RequestError> {
    let (map, lists) = body.into_parts();
    let mut fields = Taken::of_body(map);
    refuse(&fields, REFUSED)?;
    let stream = fields.flag("stream")?.unwrap_or(framing != Framing::Unspecified);
    let paths = if fields.has("tokens") { OF_TOKENS } else { &[] };
    let (prompt, lists) = prompt(&mut fields, lists)?;
    if let Some(n) = fields.take("n").filter(|n| n.as_u64() != Some(1)) {
        return Err(RequestError::field("n", format!("n must be 1 here, got {n}: use /v1/completions")));
    }
    let mut body = fields.rest();
    body.insert("prompt".to_owned(), prompt);
    if stream {
        body.insert("stream".to_owned(), true.into());
    }
    let names = Names::new(paths, Vec::new());
    Ok(Translated { names, ..Translated::own(Body::of_parts(body, lists)) })
}

/// The prompt, which `prompt` or `tokens` gives, with its lists.
fn prompt(fields: &mut Taken, mut lists: Lists) -> Result<(Value, Lists), RequestError> {
    let (prompt, tokens) = (fields.take("prompt"), fields.take("tokens"));
    let ids = lists.take("tokens");
    if let Some(IdLists::Several(_)) = ids {
        return Err(RequestError::field("tokens", "tokens must be one list of token ids"));
    }
    match (prompt, tokens) {
        (Some(_), Some(_)) => Err(RequestError::field("tokens", "prompt and tokens may not come together")),
        (None, None) => Err(fields.missing("prompt")),
        (Some(text @ Value::String(_)), None) => Ok((text, Lists::default())),
        (Some(other), None) => Err(wrong_type("prompt", "a string (lists of token ids are tokens)", &other)),
        (None, Some(list @ Value::Array(_))) if ids.is_some() => {
            lists.set("prompt", ids);
            Ok((list, lists))
        }
        (None, Some(Value::Array(items))) => Err(no_ids(&items)),
        (None, Some(other)) => Err(wrong_type("tokens", "a list of token ids", &other)),
    }
}

/// What is wrong with a list that is none of token ids.
fn no_ids(items: &[Value]) -> RequestError {
    let is_id = |item: &Value| item.as_u64().is_some_and(|id| u32::try_from(id).is_ok());
    match items.iter().enumerate().find(|(_, item)| !is_id(item)) {
        Some((at, item)) => wrong_type(&format!("tokens[{at}]"), "a token id", item),
        None => RequestError::field("tokens", "tokens must hold at least one token id"),
    }
}
