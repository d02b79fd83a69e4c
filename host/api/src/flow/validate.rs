//! From a body's text to a checked request, through the validator policies.
use camshaft_core::policy::{Hook, ValidateOutcome, ValidateRequest};
use serde_json::{Map, Value};

use crate::flow::request::{Context, Endpoint, GenerationRequest};
use crate::http::body;
use crate::wire::error::ApiError;
use crate::wire::merge_patch;

/// Bytes of one amendment; past it the policy counts as failed.
const AMENDMENT_BYTES: usize = 1 << 20;

/// A request that validators may judge.
pub(crate) trait Judged: Sized {
    /// # Errors
    /// 400, 403 or 404 for what is wrong with the body.
    fn parse(&self, context: Context<'_>, body: &Map<String, Value>) -> Result<Self, ApiError>;
    fn question(&self, context: Context<'_>, body: String) -> ValidateRequest;
    /// Whether an amendment left alone what it may not change.
    fn is_same_kind(&self, before: &Self) -> bool;
}

/// Parses the body of a generation and lets the validators judge it.
///
/// # Errors
/// The first thing wrong with the body, a validator's refusal, or 500 for a validator that failed.
pub(crate) fn read(endpoint: Endpoint, context: Context<'_>, text: &str) -> Result<GenerationRequest, ApiError> {
    let body = body::parse(text)?;
    let request = endpoint.parse(context, &body)?;
    judge(context, body, request)
}

/// Asks every validator in turn; what one amends is parsed anew before the next one sees it.
///
/// # Errors
/// A validator's refusal, or 500 for a validator that failed.
pub(crate) fn judge<R: Judged>(
    context: Context<'_>,
    mut body: Map<String, Value>,
    mut request: R,
) -> Result<R, ApiError> {
    let policies = &context.caller.policies;
    let validators = policies.validators();
    // Policies read what was parsed: in the client's own text a repeated key could mean one thing here and another there.
    let mut seen = if validators > 0 { serialize(&body)? } else { String::new() };
    for index in 0..validators {
        match policies.validate(index, &request.question(context, seen.clone())) {
            ValidateOutcome::Accept => {}
            ValidateOutcome::Amend(patch) => {
                request = amend(context, &request, &mut body, &patch)
                    .map_err(|error| ApiError::BadAmendment { index, detail: error.to_string() })?;
                seen = serialize(&body)?;
            }
            ValidateOutcome::Refuse(refusal) => return Err(ApiError::ValidatorRefused(Box::new(refusal))),
            ValidateOutcome::Fault(fault) => {
                return Err(ApiError::PolicyFault { hook: Hook::Validator, fault: Box::new(fault) });
            }
        }
    }
    Ok(request)
}

fn serialize(body: &Map<String, Value>) -> Result<String, ApiError> {
    serde_json::to_string(body).map_err(|error| ApiError::Internal(format!("a body could not be written: {error}")))
}

impl Judged for GenerationRequest {
    fn parse(&self, context: Context<'_>, body: &Map<String, Value>) -> Result<Self, ApiError> {
        self.endpoint.parse(context, body)
    }

    fn question(&self, context: Context<'_>, body: String) -> ValidateRequest {
        let settings = &self.settings;
        let longest = self.prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
        ValidateRequest {
            endpoint: self.endpoint.as_str(),
            model: self.served.model.id.clone(),
            tenant: context.caller.principal.tenant.clone(),
            body,
            prompt_tokens: u32::try_from(longest).unwrap_or(u32::MAX),
            max_tokens: self.prompts.iter().map(|prompt| prompt.max_tokens).max().unwrap_or(0),
            max_tokens_set: settings.max_tokens.is_some(),
            temperature: settings.sampling.temperature,
            top_p: settings.sampling.top_p,
            n: settings.n,
            stream: settings.stream,
        }
    }

    fn is_same_kind(&self, before: &Self) -> bool {
        self.served.model.id == before.served.model.id && self.settings.stream == before.settings.stream
    }
}

/// Applies a merge patch to the body and parses the result.
fn amend<R: Judged>(
    context: Context<'_>,
    before: &R,
    body: &mut Map<String, Value>,
    patch: &str,
) -> Result<R, ApiError> {
    if patch.len() > AMENDMENT_BYTES {
        let message = format!("the amendment has {} bytes, at most {AMENDMENT_BYTES}", patch.len());
        return Err(ApiError::Internal(message));
    }
    merge_patch::apply(body, &body::parse(patch)?);
    let after = before.parse(context, body)?;
    if !after.is_same_kind(before) {
        return Err(ApiError::Internal("the amendment changes model or stream".to_owned()));
    }
    Ok(after)
}
