//! The validator policies' turn: they accept a request, amend it, or refuse it.
use camshaft_core::policy::{ValidateOutcome, ValidateRequest};
use serde_json::{Map, Value};

use crate::flow::context::Context;
use crate::flow::error::{AmendmentError, FlowError};
use crate::wire::{json, merge_patch};

/// Bytes of one amendment; past it the policy counts as failed.
const AMENDMENT_BYTES: usize = 1 << 20;

/// A request that validators are asked about.
pub(crate) trait Validated: Sized {
    /// # Errors
    /// 400, 403 or 404 for what is wrong with the body.
    fn parse(&self, context: Context<'_>, body: &Map<String, Value>) -> Result<Self, FlowError>;
    fn question(&self, context: Context<'_>, body: String) -> ValidateRequest;
    /// Whether an amendment left alone what it may not change.
    fn is_same_kind(&self, before: &Self) -> bool;
}

/// Asks every validator in turn; what one amends is parsed anew before the next one sees it.
///
/// # Errors
/// A validator's refusal, or 500 for a validator that failed.
pub(crate) fn run<R: Validated>(
    context: Context<'_>,
    mut body: Map<String, Value>,
    mut request: R,
) -> Result<R, FlowError> {
    let policies = &context.caller.policies;
    let validators = policies.validators();
    // Policies read what was parsed: in the client's own text a repeated key could mean one thing here and another there.
    let mut seen = if validators > 0 { serialize(&body)? } else { String::new() };
    for index in 0..validators {
        match policies.validate(index, &request.question(context, seen.clone())) {
            ValidateOutcome::Accept => {}
            ValidateOutcome::Amend(patch) => {
                request = amend(context, &request, &mut body, &patch)
                    .map_err(|error| FlowError::Amendment { index, source: Box::new(error) })?;
                seen = serialize(&body)?;
            }
            ValidateOutcome::Refuse(refusal) => return Err(FlowError::ValidatorRefused(Box::new(refusal))),
            ValidateOutcome::Fault(fault) => {
                return Err(FlowError::ValidatorFault(Box::new(fault)));
            }
        }
    }
    Ok(request)
}

fn serialize(body: &Map<String, Value>) -> Result<String, FlowError> {
    serde_json::to_string(body).map_err(FlowError::Serialize)
}

/// Applies a merge patch to the body and parses the result.
fn amend<R: Validated>(
    context: Context<'_>,
    before: &R,
    body: &mut Map<String, Value>,
    patch: &str,
) -> Result<R, AmendmentError> {
    if patch.len() > AMENDMENT_BYTES {
        return Err(AmendmentError::TooLarge { bytes: patch.len(), max: AMENDMENT_BYTES });
    }
    merge_patch::apply(body, &json::parse(patch)?);
    let after = before.parse(context, body)?;
    if !after.is_same_kind(before) {
        return Err(AmendmentError::AnotherKind);
    }
    Ok(after)
}
