//! Serves a generation: parses, validates, submits and renders it.
use axum::response::Response;
use camshaft_core::policy::{Target, ValidateRequest};
use camshaft_core::quota::Demand;

use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::generation::RunningChoices;
use crate::flow::incoming::Incoming;
use crate::flow::request::{Endpoint, GenerationRequest};
use crate::flow::validate::{self, Accepted, Draft, Validated};
use crate::flow::{chat, completions, stream, trace, unary};
use crate::wire::error::RequestError;
use crate::wire::json::{self, Body};
use crate::wire::params;
use crate::wire::translated::Translated;

/// A response that has begun, and what its translation into another shape needs.
#[derive(Debug)]
pub(crate) struct Begun<T> {
    pub(crate) response: Response,
    pub(crate) kept: T,
    /// What is kept takes this much memory.
    pub(crate) kept_bytes: usize,
    /// Of the request.
    pub(crate) prompt_tokens: u64,
}

/// # Errors
/// Any failure before the response's head is sent.
pub(crate) async fn respond(endpoint: Endpoint, incoming: Incoming) -> Result<Response, FlowError> {
    let own = |_: ParseContext<'_>, text: &str| json::parse(text).map(Translated::own);
    Ok(respond_to(endpoint, Answered::Here, incoming, own).await?.response)
}

/// Who reads the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answered {
    /// The client.
    Here,
    /// A translation, which knows of one choice and reads the usage.
    Translated,
}

/// As [`respond`], to a body that `translate` reads.
///
/// # Errors
/// Any failure before the response's head is sent.
pub(crate) async fn respond_to<T: Send + 'static>(
    endpoint: Endpoint,
    answered: Answered,
    mut incoming: Incoming,
    translate: impl Fn(ParseContext<'_>, &str) -> Result<Translated<T>, RequestError> + Send + Sync + 'static,
) -> Result<Begun<T>, FlowError> {
    let from_header = params::timeout_header(&incoming.headers, incoming.api.limits().max_timeout)?;
    let span = trace::validate(incoming.exchange.span());
    let read = move |context: ParseContext<'_>, text: &str| {
        let Translated { body, kept, kept_bytes, names } = translate(context, text)?;
        let of_fields = names.of_fields();
        let accepted = accept(context, body, (endpoint, answered)).map_err(|error| error.renamed(names))?;
        Ok((accepted, (kept, kept_bytes), of_fields))
    };
    let (mut accepted, (kept, kept_bytes), names) = incoming.read(from_header, read).await?;
    drop(span);
    let settings = &mut accepted.request.settings;
    settings.timeout = settings.timeout.or(from_header);
    let prompt_tokens = accepted.request.prompt_tokens();
    let response = begin(incoming, accepted, kept_bytes).await.map_err(|error| error.renamed(names))?;
    Ok(Begun { response, kept, kept_bytes, prompt_tokens })
}

/// Parses a body, and asks the validators.
fn accept(
    context: ParseContext<'_>,
    body: Body,
    (endpoint, answered): (Endpoint, Answered),
) -> Result<Accepted<GenerationRequest>, FlowError> {
    let request = Checked { request: parse(endpoint, context, &body)?, answered };
    Ok(validate::run(context, body, request)?.map(|checked| checked.request))
}

/// Reserves and submits a request, and begins its response. `kept_bytes`: of what its translation needs.
async fn begin(
    mut incoming: Incoming,
    accepted: Accepted<GenerationRequest>,
    kept_bytes: usize,
) -> Result<Response, FlowError> {
    let request = &accepted.request;
    let choices = u32::try_from(request.choices().count()).unwrap_or(u32::MAX);
    let (tokens, prompt_tokens) = (request.max_total_tokens(), request.prompt_tokens());
    incoming.reserve(Demand { choices, tokens, read: prompt_tokens })?;
    let Incoming { api, caller, exchange, grant, mut share, .. } = incoming;
    // From here on the tokens wait, and the body only if a policy reads it.
    let body_bytes = accepted.context.body.as_ref().map_or(0, |body| body.len());
    share.resize(request.held_bytes().saturating_add(body_bytes).saturating_add(kept_bytes))?;
    exchange.set_model(&request.served.model.id);
    request.settings.user.iter().for_each(|user| exchange.set_user(user));
    request.settings.session.iter().for_each(|session| exchange.set_session(session));
    let running = RunningChoices::submit(&api, &caller, &accepted, exchange.clone(), grant)?;
    let request = accepted.request;
    match request.settings.stream {
        true => stream::respond(running, request, exchange, share).await,
        false => unary::respond(running, request, share).await,
    }
}

/// # Errors
/// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed.
pub(crate) fn parse(
    endpoint: Endpoint,
    context: ParseContext<'_>,
    body: &Body,
) -> Result<GenerationRequest, FlowError> {
    match endpoint {
        Endpoint::Chat => chat::parse(context, body),
        Endpoint::Completion => completions::parse(context, body),
    }
}

/// A request that validators may change.
#[derive(Debug)]
struct Checked {
    request: GenerationRequest,
    answered: Answered,
}

impl Validated for Checked {
    fn parse(&self, context: ParseContext<'_>, body: &Body) -> Result<Self, FlowError> {
        Ok(Self { request: parse(self.request.endpoint, context, body)?, answered: self.answered })
    }

    fn target<'a>(&'a self, context: ParseContext<'a>) -> Target<'a> {
        let tenant = &context.caller.principal.tenant;
        let GenerationRequest { served, endpoint, .. } = &self.request;
        Target { tenant, model: &served.model.id, endpoint: endpoint.for_policies() }
    }

    fn question(&self, context: ParseContext<'_>, draft: Draft<'_>) -> ValidateRequest {
        let request = &self.request;
        let settings = &request.settings;
        let longest = request.prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
        ValidateRequest {
            endpoint: request.endpoint.for_policies(),
            model: request.served.model.id.clone(),
            tenant: context.caller.principal.tenant.clone(),
            principal: context.caller.principal.name.clone(),
            marks: draft.marks.clone(),
            estimated_cost: request.max_total_tokens(),
            body: draft.body.to_owned(),
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
        let answers = |request: &GenerationRequest| (request.prompts.len(), request.settings.n);
        let reads_as_well = self.answered == Answered::Here
            || (answers(now) == answers(before) && now.settings.include_usage == before.settings.include_usage);
        now.served.model.id == before.served.model.id && now.settings.stream == before.settings.stream && reads_as_well
    }
}
