//! Validators: all in file order, each in an instance that serves no other request meanwhile.
use std::sync::Arc;
use std::time::Instant;

use camshaft_core::policy::{Difference, Fault, FaultKind, Marks, Mode, ValidateOutcome, ValidateRequest, Validation};

use wasmtime::component::Resource;

use crate::answers;
use crate::asking;
use crate::bindings::HookGuest;
use crate::bindings::validator as wit;
use crate::imports::draft::Draft;
use crate::loaded::Loaded;
use crate::metrics::Outcome;
use crate::set::Link;
use crate::spec::OnFault;
use crate::store::Subject;

/// Bytes of an amendment.
const PATCH_BYTES: usize = 1 << 20;

/// Runs one link.
pub(crate) async fn validate(link: Option<Link>, request: Arc<ValidateRequest>) -> Validation {
    let link = link.filter(|link| link.matching().admits(request.target()));
    let (outcome, on_fault) = match &link {
        None => return ValidateOutcome::Accept.into(),
        Some(Link::Broken(broken)) => (Err(broken.fault()), broken.on_fault),
        Some(Link::Ready(policy)) if policy.sidecar.mode == Mode::Monitor => {
            monitor(policy, &request).await;
            return ValidateOutcome::Accept.into();
        }
        Some(Link::Ready(policy)) => (ask(policy, &request).await, policy.on_fault()),
    };
    match (outcome, on_fault) {
        (Ok(validation), _) => validation,
        // Whoever takes all places of a policy must not switch it off.
        (Err(fault), _) if fault.kind == FaultKind::Exhausted => ValidateOutcome::Fault(fault).into(),
        (Err(fault), OnFault::Deny | OnFault::LastGood) => ValidateOutcome::Fault(fault).into(),
        (Err(_), OnFault::Skip | OnFault::Fallback) => ValidateOutcome::Accept.into(),
    }
}

/// Runs a policy whose answer does not count: whatever is not an acceptance would have made a difference.
async fn monitor(policy: &Arc<Loaded>, request: &Arc<ValidateRequest>) {
    // A fault was counted and logged.
    let Ok(Validation { outcome, marks }) = ask(policy, request).await else { return };
    match outcome {
        ValidateOutcome::Amend(_) => policy.note_difference(Difference::Amend, None),
        ValidateOutcome::Refuse(refusal) => policy.note_difference(Difference::Refuse, Some(&refusal)),
        ValidateOutcome::Accept if marks.is_some() => policy.note_difference(Difference::Mark, None),
        ValidateOutcome::Accept | ValidateOutcome::Fault(_) => {}
    }
}

/// Asks one policy where it delays nobody else.
async fn ask(policy: &Arc<Loaded>, request: &Arc<ValidateRequest>) -> Result<Validation, Fault> {
    let request = request.clone();
    asking::ask(policy, move |policy| call(policy, &request)).await
}

/// Asks one policy in an instance of its own.
fn call(policy: &Loaded, request: &Arc<ValidateRequest>) -> Result<Validation, Fault> {
    policy.admit()?;
    let started = Instant::now();
    let answer = run(policy, request);
    match answer.as_ref().map(|answer| &answer.outcome) {
        Ok(ValidateOutcome::Accept) => policy.note_answer(Outcome::Accept, started),
        Ok(ValidateOutcome::Amend(_)) => policy.note_answer(Outcome::Amend, started),
        Ok(ValidateOutcome::Refuse(_)) => policy.note_answer(Outcome::Refuse, started),
        Ok(ValidateOutcome::Fault(fault)) | Err(fault) => policy.note_fault(fault, started),
    }
    answer
}

fn run(policy: &Loaded, request: &Arc<ValidateRequest>) -> Result<Validation, Fault> {
    let mut instance =
        policy.instance(Subject::Draft(Draft::new(request.clone(), policy.identity.grant.load().body)))?;
    let HookGuest::Validator(guest) = &instance.guest else {
        return Err(policy.fault(FaultKind::Unavailable, "not a validator policy"));
    };
    let answer =
        guest.camshaft_validator_policy().call_validate(&mut instance.store, &shown(request), Resource::new_borrow(0));
    let answer = answer.map_err(|error| policy.fault_of(&error, instance.store.data()))?;
    let subject = std::mem::take(&mut instance.store.data_mut().subject);
    let outcome = match answer {
        Ok(wit::Verdict::Accept) => Ok(ValidateOutcome::Accept),
        Ok(wit::Verdict::Amend(patch)) => check_patch(&patch).map(|()| ValidateOutcome::Amend(patch)),
        Err(refusal) => answers::refusal(refusal).map(ValidateOutcome::Refuse),
    };
    let outcome = outcome.map_err(|text| policy.invalid(text))?;
    policy.kept.put(instance);
    let passes = matches!(outcome, ValidateOutcome::Accept | ValidateOutcome::Amend(_));
    Ok(Validation { marks: marks(subject, request).filter(|_| passes), outcome })
}

/// What the validator has set; `None`: nothing.
fn marks(subject: Subject, request: &ValidateRequest) -> Option<Marks> {
    let Subject::Draft(draft) = subject else { return None };
    (draft.marks != request.marks).then_some(draft.marks)
}

fn check_patch(patch: &str) -> Result<(), String> {
    if patch.len() > PATCH_BYTES {
        return Err(format!("an amendment of {} bytes, over {PATCH_BYTES}", patch.len()));
    }
    // Any other JSON value would replace the whole body.
    match serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(patch) {
        Ok(_) => Ok(()),
        Err(error) => Err(format!("an amendment that is not a JSON object: {error}")),
    }
}

fn shown(request: &ValidateRequest) -> wit::Request {
    wit::Request {
        endpoint: request.endpoint.as_str().to_owned(),
        model: request.model.clone(),
        prompt_tokens: request.prompt_tokens,
        max_tokens: request.max_tokens,
        max_tokens_set: request.max_tokens_set,
        temperature: request.temperature,
        top_p: request.top_p,
        n: request.n,
        stream: request.stream,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_only_objects_of_bounded_size_as_amendments() {
        assert!(check_patch(r#"{"max_tokens": 5, "n": null}"#).is_ok());
        for patch in ["", "[]", "null", "5", r#"{"a":"#, r#"{} {}"#] {
            assert!(check_patch(patch).unwrap_err().contains("not a JSON object"), "{patch}");
        }
        let filled = |bytes: usize| format!("{{\"a\":\"{}\"}}", "x".repeat(bytes - 8));
        assert!(check_patch(&filled(PATCH_BYTES)).is_ok());
        assert!(check_patch(&filled(PATCH_BYTES + 1)).unwrap_err().contains("over 1048576"));
    }
}
