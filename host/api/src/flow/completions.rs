//! `POST /v1/completions`.
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use camshaft_core::ids::Token;
use camshaft_core::limits::{self, Range};
use camshaft_core::vocabulary::Vocabulary;
use serde_json::{Map, Value};

use crate::flow::api::{Api, Served};
use crate::flow::request::{self, Context, Endpoint, GenerationRequest};
use crate::http::auth::Caller;
use crate::wire::error::ApiError;
use crate::wire::fields::{self, Fields};

const PROMPT: &str = "prompt";

pub(crate) async fn complete(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    request::complete(Endpoint::Completion, api, caller, request).await
}

/// # Errors
/// 400, 403 or 404 for what is wrong with the body.
pub(crate) fn parse(context: Context<'_>, body: &Map<String, Value>) -> Result<GenerationRequest, ApiError> {
    let fields = Fields::of_body(body);
    let served = context.api.model_of(&fields, context.caller)?;
    served.pool()?;
    let settings = context.settings(&fields, served)?;
    let logprobs = fields.integer("logprobs", limits::COMPLETION_LOGPROBS)?;
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && logprobs.is_some() {
        return Err(ApiError::param("echo", "echo together with logprobs is not supported"));
    }
    let mut prompts = Vec::new();
    for (text, tokens) in read_prompts(&fields, served)? {
        let mut prompt = context.prompt(tokens, served, &settings, PROMPT)?;
        if echo {
            prompt.echo = text.unwrap_or_else(|| text_of(&served.model.info.vocabulary, &prompt.tokens));
        }
        prompts.push(prompt);
    }
    GenerationRequest { endpoint: Endpoint::Completion, served: served.clone(), prompts, settings, logprobs }
        .check_choices()
}

/// Text (if it came as text) and tokens of each prompt.
type PromptInput = (Option<String>, Vec<Token>);

/// A string, a list of strings, a list of token ids, or a list of such lists.
fn read_prompts(fields: &Fields<'_>, served: &Served) -> Result<Vec<PromptInput>, ApiError> {
    // Control tokens written out in a prompt stay text, since the prompt may carry what others wrote; token ids say them.
    let parse_special = fields.flag("parse_special")?.unwrap_or(false);
    let text = |text: &str| (Some(text.to_owned()), served.model.tokenizer.tokenize(text, true, parse_special));
    let list = match fields.require(PROMPT)? {
        Value::String(string) => return Ok(vec![text(string)]),
        Value::Array(list) if !list.is_empty() => list,
        Value::Array(_) => return Err(ApiError::param(PROMPT, "prompt must not be an empty list")),
        other => return Err(fields::wrong_type(PROMPT, "a string, a list of strings or a list of token ids", other)),
    };
    let vocabulary = &served.model.info.vocabulary;
    if list[0].is_number() {
        return Ok(vec![(None, token_ids(list, PROMPT, vocabulary)?)]);
    }
    if list.len() > limits::PROMPTS {
        let most = limits::PROMPTS;
        return Err(ApiError::param(PROMPT, format!("prompt may hold at most {most} prompts, got {}", list.len())));
    }
    let one = |(i, value): (usize, &Value)| {
        let path = format!("{PROMPT}[{i}]");
        match value {
            Value::String(string) => Ok(text(string)),
            Value::Array(ids) => Ok((None, token_ids(ids, &path, vocabulary)?)),
            other => Err(fields::wrong_type(&path, "a string or a list of token ids", other)),
        }
    };
    list.iter().enumerate().map(one).collect()
}

/// Reads token ids and checks that the vocabulary has them.
pub(crate) fn token_ids(list: &[Value], path: &str, vocabulary: &Vocabulary) -> Result<Vec<Token>, ApiError> {
    let range = Range { min: 0.0, max: vocabulary.size().saturating_sub(1) as f64 };
    let ids = list.iter().enumerate().map(|(i, value)| match value.as_u64() {
        // The common case, without a path that nobody will read.
        Some(id) if (id as usize) < vocabulary.size() => Ok(Token(id as u32)),
        _ => fields::integer(value, &format!("{path}[{i}]"), range).map(Token),
    });
    ids.collect()
}

/// What tokens say, with a replacement for bytes that are not UTF-8.
pub(crate) fn text_of(vocabulary: &Vocabulary, tokens: &[Token]) -> String {
    let bytes: Vec<u8> =
        tokens.iter().flat_map(|&token| vocabulary.token_bytes(token).unwrap_or_default()).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
