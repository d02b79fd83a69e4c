//! Serves a generation: reads it, asks the validators, submits it and renders its answer. What else is validated asks them here, too.
use std::sync::Arc;

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use camshaft_core::policy::{
    BodyText, Endpoint, Marks, Priority, RequestContext, ValidateOutcome, ValidateRequest, Validation,
};
use camshaft_core::quota::Demand;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use crate::flow::api::{self, ModelWish};
use crate::flow::error::{AmendmentError, FlowError};
use crate::flow::generation::RunningChoices;
use crate::flow::incoming::{self, Incoming, off_thread};
use crate::flow::request::{GenerationRequest, ReadContext};
use crate::flow::{answer, trace};
use crate::wire::dialect::{AnswerFormat, Converted, Dialect, Served};
use crate::wire::read::{Body, Fields, read_bytes};
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
    fn generation(&self, context: ReadContext<'_>)
    -> impl Future<Output = Result<GenerationRequest, FlowError>> + Send;

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
    let mut accepted = ask_validators(incoming, &target, body, |context, body| {
        Box::pin(async move { Ok(asking(context, body.request.generation(context).await?, dialect)) })
    })
    .await?;
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

/// What validators are told of a generation.
fn asking(context: ReadContext<'_>, request: GenerationRequest, dialect: Dialect) -> Asking<GenerationRequest> {
    let longest = request.prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
    let settings = &request.settings;
    // Other answers than OpenAI's have one choice.
    let choices = (!dialect.is_own()).then_some((request.prompts.len(), settings.n));
    let fixed = vec![json!(settings.stream), json!(choices)];
    let question = ValidateRequest {
        max_tokens: request.prompts.iter().map(|prompt| prompt.max_tokens).max().unwrap_or(0),
        max_tokens_set: settings.extent.max_tokens_set,
        temperature: settings.sampling.temperature,
        top_p: settings.sampling.top_p,
        n: u32::try_from(request.choices().count()).unwrap_or(u32::MAX),
        stream: settings.stream,
        ..question(context, request.endpoint.for_policies(), request.max_total_tokens(), longest)
    };
    Asking { request, question, fixed }
}

/// Bound of an amendment in bytes. Past it, the policy has failed.
const AMENDMENT_BYTES: usize = 1 << 20;
/// The field that no amendment may change.
const MODEL: &str = "model";

/// A request that was read for its model, and what validators are told of it.
#[derive(Debug)]
pub(crate) struct Asking<R> {
    pub(crate) request: R,
    /// Its body comes later, and its marks are those that nobody has changed.
    pub(crate) question: ValidateRequest,
    /// What no amendment may change. The model is the same in any case.
    pub(crate) fixed: Vec<Value>,
}

/// What validators are asked about a request that generates nothing. `prompt_tokens`: of its longest text.
pub(crate) fn question(
    context: ReadContext<'_>,
    endpoint: Endpoint,
    estimated_cost: u64,
    prompt_tokens: usize,
) -> ValidateRequest {
    let principal = &context.caller.principal;
    ValidateRequest {
        endpoint,
        model: context.served().model.id.clone(),
        tenant: principal.tenant.clone(),
        principal: principal.name.clone(),
        marks: principal.marks(),
        estimated_cost,
        body: String::new().into(),
        prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX),
        max_tokens: 0,
        max_tokens_set: false,
        temperature: 0.0,
        top_p: 1.0,
        n: 1,
        stream: false,
    }
}

/// A request that no validator refused.
#[derive(Debug)]
pub(crate) struct Accepted<R> {
    pub(crate) request: R,
    pub(crate) priority: Priority,
    /// What samplers and filters may ask about it.
    pub(crate) context: RequestContext,
}

/// What reads a body for its model.
type Reading<'a, R> = BoxFuture<'a, Result<Asking<R>, FlowError>>;

/// Reads a body for its model, and asks every validator in turn. An amended body is read again before the next validator sees it.
///
/// # Errors
/// Those of `read`; a validator's refusal, or 500 if a validator failed.
pub(crate) async fn ask_validators<B, R>(
    incoming: &mut Incoming,
    of: &incoming::Target,
    body: Arc<Body<B>>,
    read: impl for<'a> Fn(ReadContext<'a>, Arc<Body<B>>) -> Reading<'a, R> + Sync,
) -> Result<Accepted<R>, FlowError>
where
    B: Fields + Send + Sync + 'static,
    R: Send,
{
    let mut body = body;
    let mut asking = incoming.read(of, read(incoming.context(of), body.clone())).await?;
    let policies = incoming.caller.policies.clone();
    // An amendment changes nothing of what they are chosen by.
    let target = asking.question.target();
    let asked: Vec<usize> = (0..policies.validators()).filter(|index| policies.validates(*index, target)).collect();
    let mut marks = asking.question.marks.clone();
    for index in asked {
        let seen = body.clone();
        let text = BodyText::new(move || seen.to_json());
        let question = Arc::new(ValidateRequest { body: text, marks: marks.clone(), ..asking.question.clone() });
        let Validation { outcome, marks: set } = incoming.within(of, policies.validate(index, &question)).await?;
        marks = set.unwrap_or(marks);
        match outcome {
            ValidateOutcome::Accept => {}
            ValidateOutcome::Amend(patch) => {
                let amended = amend(incoming, of, (&body, patch), &read).await;
                let amended = amended.and_then(|(after, body)| match after.fixed == asking.fixed {
                    true => Ok((after, body)),
                    false => Err(AmendmentError::AnotherKind),
                });
                (asking, body) = amended.map_err(|error| match error {
                    // Not what the policy has written, but where and when it is read.
                    AmendmentError::Refused(error) if !error.answer().status().is_client_error() => error,
                    error => FlowError::Amendment { index, source: Box::new(error) },
                })?;
            }
            ValidateOutcome::Refuse(refusal) => return Err(FlowError::ValidatorRefused(Box::new(refusal))),
            ValidateOutcome::Fault(fault) => return Err(FlowError::ValidatorFault(Box::new(fault))),
        }
    }
    if let Some(meant) = &of.found.instead_of {
        // Whoever is refused has nothing loaded.
        api::wake_meanwhile(&incoming.api, meant);
    }
    let Marks { attributes, priority } = marks;
    let kept = match policies.keeps_bodies() {
        true => Some(off_thread(of.bytes, move || Ok(body.to_json().into())).await?),
        false => None,
    };
    Ok(Accepted { request: asking.request, priority, context: RequestContext { attributes, body: kept } })
}

/// Applies a merge patch to the body, and reads the result.
async fn amend<B, R>(
    incoming: &mut Incoming,
    of: &incoming::Target,
    (body, patch): (&Arc<Body<B>>, String),
    read: impl for<'a> Fn(ReadContext<'a>, Arc<Body<B>>) -> Reading<'a, R> + Sync,
) -> Result<(Asking<R>, Arc<Body<B>>), AmendmentError>
where
    B: Fields + Send + Sync + 'static,
    R: Send,
{
    if patch.len() > AMENDMENT_BYTES {
        return Err(AmendmentError::TooLarge { bytes: patch.len(), max: AMENDMENT_BYTES });
    }
    // What validators have added waits, too.
    incoming.share.grow(read_bytes(&patch)).map_err(FlowError::from)?;
    let added = patch.len();
    let (body, its) = (body.clone(), of.found.served.model.id.clone());
    let patched = off_thread(of.bytes, move || {
        let (before, body) = (body.member(MODEL), body.patched(&patch)?);
        let after = body.member(MODEL);
        let is_same = after == before || after.as_ref().and_then(Value::as_str) == Some(&its);
        Ok(is_same.then(|| Arc::new(body)))
    });
    let body = patched.await?.ok_or(AmendmentError::AnotherKind)?;
    let context = incoming.context(of);
    let context = ReadContext { bytes: context.bytes + added, ..context };
    Ok((incoming.read(of, read(context, body.clone())).await?, body))
}
