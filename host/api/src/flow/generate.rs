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
use crate::flow::{answer, chat, completions, trace};
use crate::wire::dialect::{AnswerFormat, Dialect};
use crate::wire::json::{self, Body};
use crate::wire::params;
use crate::wire::translated::Translated;

/// The endpoint that serves requests of a dialect.
pub(crate) fn endpoint(dialect: Dialect) -> Endpoint {
    match dialect {
        Dialect::Chat | Dialect::Responses | Dialect::Messages => Endpoint::Chat,
        Dialect::Completions | Dialect::Native(_) => Endpoint::Completion,
    }
}

/// # Errors
/// Any failure before the response's head is sent.
pub(crate) async fn respond(dialect: Dialect, mut incoming: Incoming) -> Result<Response, FlowError> {
    if !dialect.is_own() {
        // While it is translated, both are there.
        incoming.share.grow(json::parsed_bytes(&incoming.text))?;
    }
    let from_header = params::timeout_header(&incoming.headers, incoming.api.limits().max_timeout)?;
    let span = trace::validate(incoming.exchange.span());
    let read = move |context: ParseContext<'_>, text: &str| {
        let body = json::parse(text)?;
        dialect.known().iter().for_each(|known| context.known(&body.fields(), known));
        let Translated { body, kept: format, names } = dialect.read(body)?;
        let of_fields = names.of_fields();
        let accepted = accept(context, body, dialect).map_err(|error| error.renamed(names))?;
        Ok((accepted, format, of_fields))
    };
    let (mut accepted, format, names) = incoming.read(from_header, read).await?;
    drop(span);
    let settings = &mut accepted.request.settings;
    settings.timeout = settings.timeout.or(from_header);
    begin(incoming, accepted, format).await.map_err(|error| error.renamed(names))
}

/// Parses a body, and asks the validators.
fn accept(context: ParseContext<'_>, body: Body, dialect: Dialect) -> Result<Accepted<GenerationRequest>, FlowError> {
    let request = Checked { request: parse(endpoint(dialect), context, &body)?, dialect };
    Ok(validate::run(context, body, request)?.map(|checked| checked.request))
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
    dialect: Dialect,
}

impl Validated for Checked {
    fn parse(&self, context: ParseContext<'_>, body: &Body) -> Result<Self, FlowError> {
        Ok(Self { request: parse(self.request.endpoint, context, body)?, dialect: self.dialect })
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
        // Other answers than OpenAI's have one choice.
        let choices = |request: &GenerationRequest| (request.prompts.len(), request.settings.n);
        let answers_as_well = self.dialect.is_own() || choices(now) == choices(before);
        now.served.model.id == before.served.model.id
            && now.settings.stream == before.settings.stream
            && answers_as_well
    }
}
