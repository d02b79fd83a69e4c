//! Calls the validator policies, which accept, amend or refuse a request.
use std::sync::Arc;

use camshaft_core::policy::{Marks, Priority, RequestContext, Target, ValidateOutcome, ValidateRequest, Validation};

use crate::flow::aside::INLINE_BYTES;
use crate::flow::context::ParseContext;
use crate::flow::error::{AmendmentError, FlowError};
use crate::wire::json::{self, Body};

/// Bound of an amendment in bytes. Past it, the policy has failed.
const AMENDMENT_BYTES: usize = 1 << 20;

/// A request that validators check.
pub(crate) trait Validated: Sized {
    /// # Errors
    /// 400, 403 or 404: the body is malformed, or names a model that is unknown or not allowed.
    fn parse(&self, context: ParseContext<'_>, body: &Body) -> Result<Self, FlowError>;
    /// What tells which validators are asked.
    fn target<'a>(&'a self, context: ParseContext<'a>) -> Target<'a>;
    fn question(&self, context: ParseContext<'_>, draft: Draft<'_>) -> ValidateRequest;
    /// Checks that an amendment has not changed what it must not change.
    fn is_same_kind(&self, before: &Self) -> bool;
}

/// What a validator finds beside the request's own fields.
#[derive(Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) body: &'a str,
    pub(crate) marks: &'a Marks,
}

/// What validators are asked about a request that generates nothing. `prompt_tokens`: of its longest text.
pub(crate) fn question(
    context: ParseContext<'_>,
    Target { model, endpoint, .. }: Target<'_>,
    Draft { body, marks }: Draft<'_>,
    estimated_cost: u64,
    prompt_tokens: u32,
) -> ValidateRequest {
    let principal = &context.caller.principal;
    ValidateRequest {
        endpoint,
        model: model.to_owned(),
        tenant: principal.tenant.clone(),
        principal: principal.name.clone(),
        marks: marks.clone(),
        estimated_cost,
        body: body.to_owned(),
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

/// Calls every validator in turn. Parses an amended body again before the next validator sees it.
///
/// # Errors
/// A validator's refusal, or 500 if a validator failed.
pub(crate) fn run<R: Validated>(
    context: ParseContext<'_>,
    mut body: Body,
    mut request: R,
) -> Result<Accepted<R>, FlowError> {
    let policies = &context.caller.policies;
    // An amendment changes nothing of what they are chosen by.
    let target = request.target(context);
    let validators: Vec<usize> =
        (0..policies.validators()).filter(|index| policies.validates(*index, target)).collect();
    // Policies get the parsed body as text, not the client's own text, in which two parsers could read a repeated key
    // differently.
    let keeps = policies.keeps_bodies();
    let mut seen = if !validators.is_empty() || keeps { serialize(&body)? } else { String::new() };
    let mut marks = context.caller.principal.marks();
    for (asked, index) in validators.into_iter().enumerate() {
        context.check()?;
        let ask = || {
            let draft = Draft { body: &seen, marks: &marks };
            policies.validate(index, &Arc::new(request.question(context, draft)))
        };
        let Validation { outcome, marks: set } = context.answers.of(asked, context.aside, ask)?;
        marks = set.unwrap_or(marks);
        match outcome {
            ValidateOutcome::Accept => {}
            ValidateOutcome::Amend(patch) => {
                let amended = amend(context, &request, &mut body, &patch);
                (request, seen) = amended.map_err(|error| match error {
                    // Not what the policy has written, but where and when it is read.
                    AmendmentError::Refused(error) if !error.answer().status().is_client_error() => error,
                    error => FlowError::Amendment { index, source: Box::new(error) },
                })?;
            }
            ValidateOutcome::Refuse(refusal) => return Err(FlowError::ValidatorRefused(Box::new(refusal))),
            ValidateOutcome::Fault(fault) => {
                return Err(FlowError::ValidatorFault(Box::new(fault)));
            }
        }
    }
    let Marks { attributes, priority } = marks;
    Ok(Accepted { request, priority, context: RequestContext { attributes, body: keeps.then(|| seen.into()) } })
}

fn serialize(body: &Body) -> Result<String, FlowError> {
    serde_json::to_string(body).map_err(FlowError::Serialize)
}

/// Applies a merge patch to the body and parses the result, which comes with its text.
fn amend<R: Validated>(
    context: ParseContext<'_>,
    before: &R,
    body: &mut Body,
    patch: &str,
) -> Result<(R, String), AmendmentError> {
    if patch.len() > AMENDMENT_BYTES {
        return Err(AmendmentError::TooLarge { bytes: patch.len(), max: AMENDMENT_BYTES });
    }
    let is_long = |text: &str| context.aside.inline_places().is_some() && text.len() > INLINE_BYTES;
    if is_long(patch) {
        return Err(FlowError::NotInline.into());
    }
    body.patch(&json::parse(patch)?);
    let text = serialize(body)?;
    if is_long(&text) {
        return Err(FlowError::NotInline.into());
    }
    let after = before.parse(context, body)?;
    if !after.is_same_kind(before) {
        return Err(AmendmentError::AnotherKind);
    }
    Ok((after, text))
}
