//! The auth chain: in file order until one policy decides, each in an instance that serves no other request meanwhile, unless a
//! verdict may be used again.
use std::sync::Arc;
use std::time::Instant;

use camshaft_core::ids::TenantId;
use camshaft_core::policy::{
    Attributes, AuthOutcome, AuthRequest, Authentication, Difference, Fault, FaultKind, Mode, Principal, Priority,
    Quotas, Refusal,
};

use wasmtime::component::Resource;

use crate::answers;
use crate::asking;
use crate::bindings::HookGuest;
use crate::bindings::auth as wit;
use crate::imports::call::{Call, Said};
use crate::loaded::Loaded;
use crate::metrics::Outcome;
use crate::set::{Chain, Link};
use crate::spec::OnFault;
use crate::store::Subject;
use crate::text::truncate_chars;

const TENANT_CHARS: usize = 128;
const NAME_CHARS: usize = 256;
const WEIGHT_MAX: f64 = 1000.0;
/// Maximum number of models that a principal may name, and of characters of one.
const MODELS: usize = 1024;
const MODEL_CHARS: usize = 256;

/// Runs the enforced policies, then the monitored ones.
pub(crate) async fn authenticate(chain: &Chain, allow_anonymous: bool, request: &Arc<AuthRequest>) -> Authentication {
    if chain.links.is_empty() {
        return native(allow_anonymous || request.loopback).into();
    }
    let answer = decide(chain, allow_anonymous, request).await;
    let monitored = chain.ready().filter(|policy| policy.sidecar.mode == Mode::Monitor);
    for policy in monitored.filter(|policy| policy.sidecar.matching.admits_endpoint(endpoint(request))) {
        monitor(policy, request, &answer.outcome).await;
    }
    answer
}

async fn decide(chain: &Chain, allow_anonymous: bool, request: &Arc<AuthRequest>) -> Authentication {
    let mut enforced = chain.enforced().peekable();
    if enforced.peek().is_none() {
        return native(allow_anonymous || request.loopback).into();
    }
    // A route that none of them is asked about is closed, not open.
    for link in enforced.filter(|link| link.matching().admits_endpoint(endpoint(request))) {
        let (answer, on_fault) = match link {
            Link::Ready(policy) => (ask(policy, request).await, policy.on_fault()),
            Link::Broken(broken) => (Err(broken.fault()), broken.on_fault),
        };
        match (answer, on_fault) {
            (Ok(Some(answer)), _) => return answer,
            // Whoever takes all places of a policy must not switch it off.
            (Err(fault), _) if fault.kind == FaultKind::Exhausted => return AuthOutcome::Fault(fault).into(),
            (Ok(None), _) | (Err(_), OnFault::Skip) => {}
            (Err(fault), OnFault::Deny | OnFault::LastGood) => return AuthOutcome::Fault(fault).into(),
            (Err(_), OnFault::Fallback) => return native(request.loopback).into(),
        }
    }
    native(false).into()
}

/// What `[match]` is compared with.
fn endpoint(request: &AuthRequest) -> &str {
    if request.route.is_empty() { &request.path } else { &request.route }
}

/// The caller if no policy decides.
fn native(allowed: bool) -> AuthOutcome {
    if allowed {
        return AuthOutcome::Allow(Principal::anonymous());
    }
    AuthOutcome::Refuse(Refusal {
        status: 401,
        code: "invalid_api_key".to_owned(),
        message: "The request carries no valid credentials.".to_owned(),
        param: None,
    })
}

/// Runs a monitored policy, and records if its answer would have changed the outcome.
async fn monitor(policy: &Arc<Loaded>, request: &Arc<AuthRequest>, enforced: &AuthOutcome) {
    // `next` changes no outcome, and a fault was already counted and logged.
    let Ok(Some(answer)) = ask(policy, request).await else { return };
    match (answer.outcome, enforced) {
        (AuthOutcome::Allow(theirs), AuthOutcome::Allow(ours)) if theirs == *ours => {}
        (AuthOutcome::Refuse(theirs), AuthOutcome::Refuse(ours)) if theirs.status == ours.status => {}
        (AuthOutcome::Allow(_), AuthOutcome::Allow(_)) => policy.note_difference(Difference::Principal, None),
        (AuthOutcome::Allow(_), _) => policy.note_difference(Difference::Allow, None),
        (AuthOutcome::Refuse(theirs), AuthOutcome::Refuse(_)) => {
            policy.note_difference(Difference::Status, Some(&theirs));
        }
        (AuthOutcome::Refuse(theirs), _) => policy.note_difference(Difference::Refuse, Some(&theirs)),
        (AuthOutcome::Fault(_), _) => {}
    }
}

/// What one policy says, asked where it delays nobody else; `None`: the next one decides.
async fn ask(policy: &Arc<Loaded>, request: &Arc<AuthRequest>) -> Result<Option<Authentication>, Fault> {
    if let Some(answer) = policy.verdicts.find(request, Instant::now()) {
        policy.metrics.count(Outcome::Reused);
        return Ok(Some(answer));
    }
    let request = request.clone();
    asking::ask(policy, move |policy| call(policy, &request)).await
}

/// Calls one policy in an instance of its own.
fn call(policy: &Loaded, request: &Arc<AuthRequest>) -> Result<Option<Authentication>, Fault> {
    policy.admit()?;
    let started = Instant::now();
    let answer = run(policy, request);
    match answer.as_ref().map(|answer| answer.as_ref().map(|answer| &answer.outcome)) {
        Ok(Some(AuthOutcome::Allow(_))) => policy.note_answer(Outcome::Allow, started),
        Ok(None) => policy.note_answer(Outcome::Next, started),
        Ok(Some(AuthOutcome::Refuse(_))) => policy.note_answer(Outcome::Refuse, started),
        Ok(Some(AuthOutcome::Fault(fault))) | Err(fault) => policy.note_fault(fault, started),
    }
    answer
}

/// Calls the policy in an instance of its own.
fn run(policy: &Loaded, request: &Arc<AuthRequest>) -> Result<Option<Authentication>, Fault> {
    let grant = policy.identity.grant.load_full();
    let body_digest = policy.sidecar.body_digest;
    let call = Call { request: request.clone(), grant: grant.clone(), body_digest, said: Said::default() };
    let mut instance = policy.instance(Subject::Call(call))?;
    let HookGuest::Auth(guest) = &instance.guest else {
        return Err(policy.fault(FaultKind::Unavailable, "not an auth policy"));
    };
    let verdict =
        guest.camshaft_auth_policy().call_authenticate(&mut instance.store, &shown(request), Resource::new_borrow(0));
    let verdict = verdict.map_err(|error| policy.fault_of(&error, instance.store.data()))?;
    let subject = std::mem::take(&mut instance.store.data_mut().subject);
    let Subject::Call(Call { said, .. }) = subject else {
        return Err(policy.fault(FaultKind::Unavailable, "the call is lost"));
    };
    let outcome = match verdict {
        Ok(wit::Verdict::Next) => {
            policy.kept.put(instance);
            return Ok(None);
        }
        Ok(wit::Verdict::Allow(answer)) => principal(answer, said.limits, said.attributes).map(AuthOutcome::Allow),
        Err(refusal) => answers::refusal(refusal).map(AuthOutcome::Refuse),
    };
    let outcome = outcome.map_err(|text| policy.invalid(text))?;
    policy.kept.put(instance);
    let answer = Authentication { outcome, reply: said.reply };
    // Another body has another digest.
    if let Some(reuse) = said.reuse.filter(|_| !said.read_digest) {
        // What it was shown may be withheld by now.
        let holds = || Arc::ptr_eq(&grant, &policy.identity.grant.load());
        policy.verdicts.keep(request, (&reuse, &answer), Instant::now(), holds);
    }
    Ok(Some(answer))
}

fn shown(request: &AuthRequest) -> wit::Request {
    wit::Request {
        method: request.method.clone(),
        path: request.path.clone(),
        remote_address: request.remote_address.clone(),
        loopback: request.loopback,
    }
}

fn principal(answer: wit::Principal, quotas: Quotas, attributes: Attributes) -> Result<Principal, String> {
    let label = |what: &str, text: &str| match text.chars().count() {
        0 => Err(format!("a principal with an empty {what}")),
        n if n > TENANT_CHARS => Err(format!("a principal whose {what} has {n} characters, over {TENANT_CHARS}")),
        _ => Ok(()),
    };
    label("tenant", &answer.tenant)?;
    if let Some(namespace) = &answer.cache_namespace {
        label("cache namespace", namespace)?;
    }
    if !(answer.weight > 0.0 && answer.weight <= WEIGHT_MAX) {
        return Err(format!("a principal of weight {}, which is not above 0 and at most {WEIGHT_MAX}", answer.weight));
    }
    if let Some(models) = &answer.allowed_models
        && (models.len() > MODELS || models.iter().any(|model| model.chars().count() > MODEL_CHARS))
    {
        return Err(format!("a principal with over {MODELS} models, or one of over {MODEL_CHARS} characters"));
    }
    Ok(Principal {
        name: truncate_chars(answer.name, NAME_CHARS),
        cache_namespace: answer.cache_namespace.unwrap_or_else(|| answer.tenant.clone()),
        tenant: TenantId::new(answer.tenant),
        priority: Priority::of_number(answer.priority),
        weight: answer.weight,
        quotas,
        allowed_models: answer.allowed_models,
        attributes: Arc::new(attributes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> wit::Principal {
        wit::Principal {
            name: "n".repeat(300),
            tenant: "t".to_owned(),
            priority: 128,
            weight: 2.0,
            allowed_models: None,
            cache_namespace: None,
        }
    }

    fn granted(answer: wit::Principal) -> Result<Principal, String> {
        principal(answer, Quotas { tokens_per_minute: Some(9), ..Quotas::default() }, Attributes::default())
    }

    #[test]
    fn takes_a_principal_and_gives_it_its_own_namespace() {
        let principal = granted(answer()).unwrap();
        assert_eq!((principal.tenant.as_str(), principal.cache_namespace.as_str()), ("t", "t"));
        assert_eq!((principal.priority, principal.name.len()), (Priority::Low, 256));
        assert_eq!(principal.quotas.tokens_per_minute, Some(9));
    }

    #[test]
    fn refuses_principals_out_of_bounds() {
        for weight in [0.0, -1.0, 1000.1, f64::NAN, f64::INFINITY] {
            assert!(granted(wit::Principal { weight, ..answer() }).is_err());
        }
        for tenant in [String::new(), "x".repeat(129)] {
            assert!(granted(wit::Principal { tenant: tenant.clone(), ..answer() }).is_err());
            assert!(granted(wit::Principal { cache_namespace: Some(tenant), ..answer() }).is_err());
        }
        let models = |n, chars: usize| Some(vec!["m".repeat(chars); n]);
        assert!(granted(wit::Principal { allowed_models: models(1024, 256), ..answer() }).is_ok());
        assert!(granted(wit::Principal { allowed_models: models(1025, 1), ..answer() }).is_err());
        assert!(granted(wit::Principal { allowed_models: models(1, 257), ..answer() }).is_err());
    }
}
