//! The server's own generations: a prompt in text or tokens as a completion, and its answer without choices.
use axum::http::HeaderMap;
use axum::http::header::ACCEPT;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::wire::chat_answer::{ChatAnswer, Stage, StreamError, Usage};
use crate::wire::error::RequestError;
use crate::wire::fields::wrong_type;
use crate::wire::json::Body;
use crate::wire::lists::{IdLists, Lists};
use crate::wire::names::{Names, Paths};
use crate::wire::sse::{self, Pieces};
use crate::wire::stamp;
use crate::wire::taken::Taken;
use crate::wire::translated::{Translated, refuse};
use crate::wire::types::generate::REFUSED;

/// What the completion endpoint calls the fields of a request whose prompt is `tokens`.
const OF_TOKENS: &Paths = &[("prompt", "tokens")];
/// What the name of an answer begins with.
const ID: &str = "gen-";
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

/// What the answer needs of the request.
#[derive(Debug)]
pub(crate) struct Native {
    pub(super) stream: bool,
    framing: Framing,
    session: Option<String>,
}

impl Native {
    /// # Errors
    /// 400 that names the field.
    pub(super) fn read(body: Body, framing: Framing) -> Result<Translated<Self>, RequestError> {
        let (map, lists) = body.into_parts();
        let mut fields = Taken::of_body(map);
        refuse(&fields, REFUSED)?;
        let stream = fields.flag("stream")?.unwrap_or(framing != Framing::Unspecified);
        let paths = if fields.has("tokens") { OF_TOKENS } else { &[] };
        let (prompt, lists) = prompt(&mut fields, lists)?;
        if let Some(n) = fields.take("n").filter(|n| n.as_u64() != Some(1)) {
            return Err(RequestError::field("n", format!("n must be 1 here, got {n}: use /v1/completions")));
        }
        // What is no text is refused where all endpoints refuse it.
        let session = fields.take("session_id");
        let told = session.as_ref().and_then(Value::as_str).map(str::to_owned);
        let mut body = fields.rest();
        body.extend(session.map(|session| ("session_id".to_owned(), session)));
        body.insert("prompt".to_owned(), prompt);
        if stream {
            body.insert("stream".to_owned(), true.into());
            body.insert("stream_options".to_owned(), json!({"include_usage": true}));
        }
        let kept_bytes = told.as_ref().map_or(0, String::len);
        let (body, kept) = (Body::of_parts(body, lists), Self { stream, framing, session: told });
        Ok(Translated { body, kept, kept_bytes, names: Names::new(paths, Vec::new()) })
    }

    pub(super) fn content_type(&self) -> Option<&'static str> {
        (self.framing == Framing::Lines).then_some(NDJSON)
    }

    pub(super) fn events(self, prompt_tokens: u64) -> Events {
        let Self { framing, session, .. } = self;
        let (id, stage) = (stamp::id(ID), Stage::New);
        Events { id, framing, session, prompt_tokens, stage, finish_reason: None, usage: None }
    }

    /// A whole answer.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn answer(self, answer: ChatAnswer) -> Result<Vec<u8>, serde_json::Error> {
        let choice = answer.choices.into_iter().next().unwrap_or_default();
        serde_json::to_vec(&Answer {
            id: stamp::id(ID),
            object: "generation",
            created: answer.created,
            model: &answer.model,
            session_id: self.session.as_deref(),
            text: &choice.text,
            logprobs: choice.logprobs.as_deref(),
            finish_reason: choice.finish_reason.as_deref(),
            usage: answer.usage.unwrap_or_default().into(),
        })
    }
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

#[derive(Debug, Serialize)]
struct Answer<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    session_id: Option<&'a str>,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a RawValue>,
    finish_reason: Option<&'a str>,
    usage: UsageObject,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct UsageObject {
    prompt_tokens: u64,
    cached_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

impl From<Usage> for UsageObject {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.prompt_tokens_details.cached_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.total_tokens,
        }
    }
}

/// Writes the events of one generation: `start`, `text` for each piece, and `end` with the reason and the usage.
#[derive(Debug)]
pub(crate) struct Events {
    id: String,
    framing: Framing,
    session: Option<String>,
    prompt_tokens: u64,
    stage: Stage,
    finish_reason: Option<String>,
    usage: Option<Usage>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Event<'a> {
    /// In lines alone, which have no comments.
    Comment {
        text: &'a str,
    },
    Start {
        id: &'a str,
        created: u64,
        model: &'a str,
        session_id: Option<&'a str>,
        prompt_tokens: u64,
    },
    Text {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<&'a RawValue>,
    },
    End {
        finish_reason: Option<&'a str>,
        session_id: Option<&'a str>,
        usage: UsageObject,
    },
}

/// As every stream ends that fails.
#[derive(Debug, Serialize)]
struct Failed<'a> {
    error: ErrorObject<'a>,
}

#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: Option<&'a str>,
}

impl Events {
    pub(crate) fn ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    pub(crate) fn comment(&self, out: &mut Pieces, text: &str) {
        match self.framing {
            Framing::Lines => self.write(out, &Event::Comment { text }),
            Framing::Events | Framing::Unspecified => sse::say(out.next(), text),
        }
    }

    pub(crate) fn chunk(&mut self, out: &mut Pieces, chunk: ChatAnswer) {
        if let Some(StreamError { message, kind, param, code }) = &chunk.error {
            self.stage = Stage::Ended;
            let error = ErrorObject { message, kind, param: param.as_deref(), code: code.as_deref() };
            self.write(out, &Failed { error });
            return;
        }
        self.begin(out, &chunk);
        self.usage = chunk.usage.or(self.usage);
        let Some(choice) = chunk.choices.into_iter().next() else { return };
        if !choice.text.is_empty() || choice.logprobs.is_some() {
            self.write(out, &Event::Text { text: &choice.text, logprobs: choice.logprobs.as_deref() });
        }
        self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
    }

    /// The completion's last chunk was the one before.
    pub(crate) fn end(&mut self, out: &mut Pieces) {
        self.stage = Stage::Ended;
        let usage = self.usage.unwrap_or_default().into();
        let (finish_reason, session_id) = (self.finish_reason.as_deref(), self.session.as_deref());
        self.write(out, &Event::End { finish_reason, session_id, usage });
        if self.framing != Framing::Lines {
            out.next().extend_from_slice(sse::DONE);
        }
    }

    fn begin(&mut self, out: &mut Pieces, chunk: &ChatAnswer) {
        if !self.stage.begin() {
            return;
        }
        let (id, session_id, prompt_tokens) = (self.id.as_str(), self.session.as_deref(), self.prompt_tokens);
        let start = Event::Start { id, created: chunk.created, model: &chunk.model, session_id, prompt_tokens };
        self.write(out, &start);
    }

    fn write(&self, out: &mut Pieces, event: &impl Serialize) {
        match self.framing {
            Framing::Lines => sse::line(out.next(), event),
            Framing::Events | Framing::Unspecified => sse::write(out.next(), event),
        }
    }
}
