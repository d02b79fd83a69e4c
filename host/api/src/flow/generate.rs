//! Serves a generation: reads it, asks the validators, submits it and renders its answer.
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use camshaft_core::policy::{Target, ValidateRequest};
use camshaft_core::quota::Demand;

use crate::flow::api::ModelWish;
use crate::flow::caller::Caller;
use crate::flow::context::ReadContext;
use crate::flow::error::FlowError;
use crate::flow::generation::RunningChoices;
use crate::flow::incoming::Incoming;
use crate::flow::request::GenerationRequest;
use crate::flow::validate::{self, Accepted, Draft, Validated};
use crate::flow::{answer, chat, completions, trace};
use crate::wire::dialect::{AnswerFormat, Converted, Dialect, Served};
use crate::wire::read::{Body, Fields};
use crate::wire::types::chat::ChatRequest;
use crate::wire::types::completions::CompletionRequest;
use crate::wire::types::generation::GenerationFields;

/// What was asked for and left out, because the answer means the same without it (RFC 9110, 5.6.7, and the older `Warning`).
pub(crate) const WARNING: HeaderName = HeaderName::from_static("warning");

/// A request that an endpoint serves.
pub(crate) trait Generates: Fields + Send + Sync + 'static {
    fn fields(&self) -> &GenerationFields;

    /// Whether it has token ids, which mean something to one model alone.
    fn has_ids(&self) -> bool;

    /// # Errors
    /// 400 or 403: the model cannot do what is asked, or the caller may not.
    fn generation(&self, context: ReadContext<'_>) -> Result<GenerationRequest, FlowError>;

    /// The model that it asks for.
    fn wish(&self) -> ModelWish<'_> {
        let GenerationFields { model, session_id, lora, logit_bias, stop_token_ids, .. } = self.fields();
        let of_one_model = lora.as_ref().is_some_and(|list| !list.is_empty())
            || logit_bias.as_ref().is_some_and(|biases| !biases.is_empty())
            || stop_token_ids.as_ref().is_some_and(|ids| !ids.is_empty());
        let falls_back = !of_one_model && !self.has_ids();
        ModelWish { name: model.as_deref(), session: session_id.as_deref(), falls_back }
    }
}

impl Generates for ChatRequest {
    fn fields(&self) -> &GenerationFields {
        &self.generation
    }

    fn has_ids(&self) -> bool {
        false
    }

    fn generation(&self, context: ReadContext<'_>) -> Result<GenerationRequest, FlowError> {
        chat::read(context, self)
    }
}

impl Generates for CompletionRequest {
    fn fields(&self) -> &GenerationFields {
        &self.generation
    }

    fn has_ids(&self) -> bool {
        self.prompt.as_ref().is_some_and(|prompt| prompt.has_ids())
    }

    fn generation(&self, context: ReadContext<'_>) -> Result<GenerationRequest, FlowError> {
        completions::read(context, self)
    }
}

/// # Errors
/// Any failure before the response's head is sent.
pub(crate) async fn respond(dialect: Dialect, mut incoming: Incoming) -> Result<Response, FlowError> {
    let span = trace::validate(incoming.exchange.span());
    let bytes = incoming.text.len();
    let served = incoming.parse(move |text| Ok(dialect.read(text)?)).await?;
    match served {
        Served::Chat(request) => serve(dialect, incoming, request, bytes, span).await,
        Served::Completion(request) => serve(dialect, incoming, request, bytes, span).await,
    }
}

/// Serves a request whose body has `bytes`.
async fn serve<B: Generates>(
    dialect: Dialect,
    mut incoming: Incoming,
    Converted { body, format, names, left_out }: Converted<B>,
    bytes: usize,
    span: tracing::Span,
) -> Result<Response, FlowError> {
    incoming.count_unknown(&body);
    let of_fields = names.of_fields();
    let accepted = accept(dialect, &mut incoming, body, bytes).await.map_err(|error| error.renamed(names))?;
    drop(span);
    let warning = incoming.leave_out(&left_out);
    let mut response = begin(incoming, accepted, format).await.map_err(|error| error.renamed(of_fields))?;
    response.headers_mut().extend(warning.map(|warning| (WARNING, warning)));
    Ok(response)
}

/// Reads a request for its model, and asks the validators.
async fn accept<B: Generates>(
    dialect: Dialect,
    incoming: &mut Incoming,
    body: Arc<Body<B>>,
    bytes: usize,
) -> Result<Accepted<GenerationRequest>, FlowError> {
    let target = incoming.target(&body.request.wish(), body.request.fields().timeout, bytes).await?;
    let read =
        move |context: ReadContext<'_>, request: &B| Ok(Checked { request: request.generation(context)?, dialect });
    let mut accepted = validate::accept(incoming, &target, body, read).await?.map(|checked| checked.request);
    accepted.request.settings.timeout = accepted.request.settings.timeout.or(target.timeout);
    Ok(accepted)
}

/// Reserves and submits a request, and begins its response.
async fn begin(
    mut incoming: Incoming,
    accepted: Accepted<GenerationRequest>,
    format: AnswerFormat,
) -> Result<Response, FlowError> {
    let request = &accepted.request;
    let choices = u32::try_from(request.choices().count()).unwrap_or(u32::MAX);
    let (tokens, prompt_tokens) = (request.max_total_tokens(), request.prompt_tokens());
    incoming.reserve(Demand { choices, tokens, read: prompt_tokens })?;
    let Incoming { api, caller, exchange, grant, mut share, .. } = incoming;
    // From here on the tokens wait, and the body only if a policy reads it.
    let body_bytes = accepted.context.body.as_ref().map_or(0, |body| body.len());
    share.resize(request.held_bytes().saturating_add(body_bytes).saturating_add(format.held_bytes()))?;
    exchange.set_model(&request.served.model.id);
    request.settings.user.iter().for_each(|user| exchange.set_user(user));
    request.settings.session.iter().for_each(|session| exchange.set_session(session));
    let running = RunningChoices::submit(&api, &caller, &accepted, exchange.clone(), grant)?;
    answer::respond(format, running, accepted.request, exchange, share).await
}

impl Incoming {
    /// Counts what is left out of a request. Returns the header that says so.
    fn leave_out(&self, what: &[&'static str]) -> Option<HeaderValue> {
        what.iter().for_each(|what| self.api.metrics.leave_out(self.exchange.endpoint(), what));
        let text = format!("299 - \"left out of the request: {}\"", what.join(", "));
        (!what.is_empty()).then(|| HeaderValue::from_str(&text).ok()).flatten()
    }
}

/// A request that validators may change.
#[derive(Debug)]
struct Checked {
    request: GenerationRequest,
    dialect: Dialect,
}

impl Validated for Checked {
    fn target<'a>(&'a self, caller: &'a Caller) -> Target<'a> {
        let GenerationRequest { served, endpoint, .. } = &self.request;
        Target { tenant: &caller.principal.tenant, model: &served.model.id, endpoint: endpoint.for_policies() }
    }

    fn question(&self, caller: &Caller, draft: Draft<'_>) -> ValidateRequest {
        let request = &self.request;
        let settings = &request.settings;
        let longest = request.prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
        ValidateRequest {
            endpoint: request.endpoint.for_policies(),
            model: request.served.model.id.clone(),
            tenant: caller.principal.tenant.clone(),
            principal: caller.principal.name.clone(),
            marks: draft.marks.clone(),
            estimated_cost: request.max_total_tokens(),
            body: draft.body,
            prompt_tokens: u32::try_from(longest).unwrap_or(u32::MAX),
            max_tokens: request.prompts.iter().map(|prompt| prompt.max_tokens).max().unwrap_or(0),
            max_tokens_set: settings.extent.max_tokens_set,
            temperature: settings.sampling.temperature,
            top_p: settings.sampling.top_p,
            n: u32::try_from(request.choices().count()).unwrap_or(u32::MAX),
            stream: settings.stream,
        }
    }

    fn is_same_kind(&self, before: &Self) -> bool {
        let (now, before) = (&self.request, &before.request);
        // Other answers than OpenAI's have one choice.
        let choices = |request: &GenerationRequest| (request.prompts.len(), request.settings.n);
        let answers_as_well = self.dialect.is_own() || choices(now) == choices(before);
        now.served.model.id == before.served.model.id
            && now.settings.stream == before.settings.stream
            && answers_as_well
    }
}
