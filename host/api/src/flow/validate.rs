//! Calls the validator policies, which accept, amend or refuse a request.
use std::sync::Arc;

use camshaft_core::policy::{
    BodyText, Marks, Priority, RequestContext, Target, ValidateOutcome, ValidateRequest, Validation,
};
use serde_json::Value;

use crate::flow::caller::Caller;
use crate::flow::context::ReadContext;
use crate::flow::error::{AmendmentError, FlowError};
use crate::flow::incoming::{self, Incoming};
use crate::flow::waiting;
use crate::wire::read::{Body, Fields, read_bytes};

/// Bound of an amendment in bytes. Past it, the policy has failed.
const AMENDMENT_BYTES: usize = 1 << 20;
/// The field that no amendment may change.
const MODEL: &str = "model";

/// A request that validators check.
pub(crate) trait Validated: Send + Sized + 'static {
    /// What tells which validators are asked.
    fn target<'a>(&'a self, caller: &'a Caller) -> Target<'a>;

    fn question(&self, caller: &Caller, draft: Draft<'_>) -> ValidateRequest;

    /// Checks that an amendment has not changed what it must not change. The model is the same in any case.
    fn is_same_kind(&self, before: &Self) -> bool;
}

/// What a validator finds beside the request's own fields.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) body: BodyText,
    pub(crate) marks: &'a Marks,
}

/// What validators are asked about a request that generates nothing. `prompt_tokens`: of its longest text.
pub(crate) fn question(
    caller: &Caller,
    Target { model, endpoint, .. }: Target<'_>,
    Draft { body, marks }: Draft<'_>,
    estimated_cost: u64,
    prompt_tokens: u32,
) -> ValidateRequest {
    let principal = &caller.principal;
    ValidateRequest {
        endpoint,
        model: model.to_owned(),
        tenant: principal.tenant.clone(),
        principal: principal.name.clone(),
        marks: marks.clone(),
        estimated_cost,
        body,
        prompt_tokens,
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

impl<R> Accepted<R> {
    pub(crate) fn map<S>(self, to: impl FnOnce(R) -> S) -> Accepted<S> {
        Accepted { request: to(self.request), priority: self.priority, context: self.context }
    }
}

/// Reads a body for its model, and asks every validator in turn. An amended body is read again before the next validator sees it.
///
/// # Errors
/// Those of `read`; a validator's refusal, or 500 if a validator failed.
pub(crate) async fn accept<B, R>(
    incoming: &mut Incoming,
    of: &incoming::Target,
    body: Arc<Body<B>>,
    read: impl Fn(ReadContext<'_>, &B) -> Result<R, FlowError> + Clone + Send + 'static,
) -> Result<Accepted<R>, FlowError>
where
    B: Fields + Send + Sync + 'static,
    R: Validated,
{
    let (mut body, first) = (body, read.clone());
    let mut request = {
        let body = body.clone();
        incoming.read(of, move |context| first(context, &body.request)).await?
    };
    let policies = incoming.caller.policies.clone();
    // An amendment changes nothing of what they are chosen by.
    let asked: Vec<usize> = {
        let target = request.target(&incoming.caller);
        (0..policies.validators()).filter(|index| policies.validates(*index, target)).collect()
    };
    let mut marks = incoming.caller.principal.marks();
    for index in asked {
        let seen = body.clone();
        let draft = Draft { body: BodyText::new(move || seen.to_json()), marks: &marks };
        let question = Arc::new(request.question(&incoming.caller, draft));
        let Validation { outcome, marks: set } = incoming.within(of, policies.validate(index, &question)).await?;
        marks = set.unwrap_or(marks);
        match outcome {
            ValidateOutcome::Accept => {}
            ValidateOutcome::Amend(patch) => {
                let amended = amend(incoming, of, (&body, patch), read.clone()).await;
                let amended = amended.and_then(|(after, body)| match after.is_same_kind(&request) {
                    true => Ok((after, body)),
                    false => Err(AmendmentError::AnotherKind),
                });
                (request, body) = amended.map_err(|error| match error {
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
        waiting::wake_meanwhile(&incoming.api, meant);
    }
    let Marks { attributes, priority } = marks;
    let kept = match policies.keeps_bodies() {
        true => Some(incoming.read(of, move |_| Ok(body.to_json().into())).await?),
        false => None,
    };
    Ok(Accepted { request, priority, context: RequestContext { attributes, body: kept } })
}

/// Applies a merge patch to the body, and reads the result.
async fn amend<B, R>(
    incoming: &mut Incoming,
    of: &incoming::Target,
    (body, patch): (&Arc<Body<B>>, String),
    read: impl Fn(ReadContext<'_>, &B) -> Result<R, FlowError> + Send + 'static,
) -> Result<(R, Arc<Body<B>>), AmendmentError>
where
    B: Fields + Send + Sync + 'static,
    R: Validated,
{
    if patch.len() > AMENDMENT_BYTES {
        return Err(AmendmentError::TooLarge { bytes: patch.len(), max: AMENDMENT_BYTES });
    }
    // What validators have added waits, too.
    incoming.share.grow(read_bytes(&patch)).map_err(FlowError::from)?;
    let body = body.clone();
    let amended = incoming.read(of, move |context| {
        let (before, body) = (body.member(MODEL), body.patched(&patch)?);
        let (after, its) = (body.member(MODEL), &context.served().model.id);
        let is_same = after == before || after.as_ref().and_then(Value::as_str) == Some(its);
        Ok(if is_same { Some((read(context, &body.request)?, Arc::new(body))) } else { None })
    });
    amended.await?.ok_or(AmendmentError::AnotherKind)
}
