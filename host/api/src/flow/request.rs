//! A generation request from bytes to a response: what chat and plain completions have in common.
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use camshaft_core::ids::Token;
use camshaft_core::limits;
use serde_json::{Map, Value};

use crate::flow::api::{Api, ApiLimits, Served};
use crate::flow::generation::Running;
use crate::flow::{chat, completions, stream, trace, unary, validate};
use crate::http::auth::Caller;
use crate::http::body;
use crate::http::observe::Exchange;
use crate::wire::error::ApiError;
use crate::wire::fields::Fields;
use crate::wire::params;
use crate::wire::params::{Bounds, Settings};

/// Bodies up to this size are parsed and tokenized in place; a longer one moves to a thread that may block, so that it
/// does not delay other connections.
const INLINE_BYTES: usize = 32 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completion,
}

/// A checked request, ready to be submitted.
#[derive(Debug)]
pub(crate) struct GenerationRequest {
    pub(crate) endpoint: Endpoint,
    pub(crate) served: Arc<Served>,
    /// At least one.
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) settings: Settings,
    /// Alternatives to report with each token; `None`: no log-probabilities.
    pub(crate) logprobs: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Prompt {
    /// At least one, and room for one more in the context.
    pub(crate) tokens: Arc<[Token]>,
    /// What each choice may generate within the context: at least 1.
    pub(crate) max_tokens: u32,
    /// The prompt's text if the answer is to begin with it.
    pub(crate) echo: String,
}

/// What parsing works with besides the body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) api: &'a Api,
    pub(crate) caller: &'a Caller,
}

/// The whole way of a request.
///
/// # Errors
/// Whatever happens before the response's head is sent.
pub(crate) async fn complete(
    endpoint: Endpoint,
    api: Arc<Api>,
    caller: Caller,
    request: Request,
) -> Result<Response, ApiError> {
    let exchange = request.extensions().get::<Arc<Exchange>>().cloned();
    let exchange = exchange.ok_or_else(|| ApiError::Internal("a request without an exchange".to_owned()))?;
    api.readiness.admit()?;
    let from_header = params::timeout_header(request.headers(), api.limits().max_timeout)?;
    let text = body::read(request, api.limits().body_bytes).await?;
    let span = trace::validate(exchange.span());
    let mut request = read(endpoint, &api, &caller, text).await?;
    drop(span);
    request.settings.timeout = request.settings.timeout.or(from_header);
    exchange.set_model(&request.served.model.id);
    let running = Running::submit(&api, &caller, &request, exchange.clone())?;
    match request.settings.stream {
        true => stream::respond(running, request, exchange).await,
        false => unary::respond(running, request).await,
    }
}

async fn read(
    endpoint: Endpoint,
    api: &Arc<Api>,
    caller: &Caller,
    text: String,
) -> Result<GenerationRequest, ApiError> {
    if text.len() <= INLINE_BYTES {
        return validate::read(endpoint, Context { api, caller }, &text);
    }
    let (api, caller) = (api.clone(), caller.clone());
    let reading =
        tokio::task::spawn_blocking(move || validate::read(endpoint, Context { api: &api, caller: &caller }, &text));
    reading.await.map_err(|error| ApiError::Internal(format!("a request could not be read: {error}")))?
}

impl Endpoint {
    /// What validators call it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat",
            Endpoint::Completion => "completion",
        }
    }

    /// # Errors
    /// 400, 403 or 404 for what is wrong with the body.
    pub(crate) fn parse(self, context: Context<'_>, body: &Map<String, Value>) -> Result<GenerationRequest, ApiError> {
        match self {
            Endpoint::Chat => chat::parse(context, body),
            Endpoint::Completion => completions::parse(context, body),
        }
    }
}

impl Context<'_> {
    /// Reads what both endpoints share.
    pub(crate) fn settings(&self, fields: &Fields<'_>, served: &Served) -> Result<Settings, ApiError> {
        let samplers = if fields.get("samplers").is_some() { self.caller.policies.samplers() } else { Vec::new() };
        let vocabulary_size = served.model.info.vocabulary.size();
        let ApiLimits { max_tokens, max_timeout, .. } = self.api.limits();
        Settings::read(fields, Bounds { max_tokens, max_timeout, vocabulary_size, samplers: &samplers })
    }

    /// Checks a prompt against the model's context; `param` is the field it came from.
    pub(crate) fn prompt(
        &self,
        tokens: Vec<Token>,
        served: &Served,
        settings: &Settings,
        param: &'static str,
    ) -> Result<Prompt, ApiError> {
        if tokens.is_empty() {
            return Err(ApiError::param(param, "the prompt is empty, and this model does not begin a text by itself"));
        }
        let context = served.model.info.context_tokens;
        let left = u32::try_from(tokens.len()).ok().and_then(|used| context.checked_sub(used)).unwrap_or(0);
        if left == 0 {
            return Err(ApiError::ContextLength { tokens: tokens.len(), context, param });
        }
        let wanted = settings.max_tokens.unwrap_or(self.api.limits().max_tokens).max(1);
        Ok(Prompt { tokens: tokens.into(), max_tokens: wanted.min(left), echo: String::new() })
    }
}

impl GenerationRequest {
    /// # Errors
    /// 400 if prompts and `n` together make too many choices.
    pub(crate) fn check_choices(self) -> Result<Self, ApiError> {
        let choices = self.prompts.len() as f64 * f64::from(self.settings.n);
        if limits::CHOICES.contains(choices) {
            return Ok(self);
        }
        let most = limits::CHOICES.max;
        Err(ApiError::param("n", format!("prompts times n must be at most {most} choices, got {choices}")))
    }

    /// Each choice with its prompt, in the order of their indices.
    pub(crate) fn choices(&self) -> impl Iterator<Item = &Prompt> {
        self.prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, self.settings.n as usize))
    }

    /// The most tokens that it can come to use.
    pub(crate) fn most_tokens(&self) -> u64 {
        self.prompt_tokens() + self.choices().map(|prompt| u64::from(prompt.max_tokens)).sum::<u64>()
    }

    /// Length of all prompts together: each counts once, however many choices it has.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum()
    }
}
