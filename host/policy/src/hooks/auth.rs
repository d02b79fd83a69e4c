//! The auth chain: a fresh instance per request and policy, in file order until one decides.
use std::time::Instant;

use camshaft_core::ids::TenantId;
use camshaft_core::policy::{
    AuthOutcome, AuthRequest, Fault, FaultKind, Hook, Mode, Principal, Priority, Quotas, Refusal,
};

use crate::answers;
use crate::bindings::auth as wit;
use crate::bindings::host::types;
use crate::loaded::{HookPre, Loaded};
use crate::metrics::Outcome;
use crate::set::{Link, LoadedSet};
use crate::spec::OnFault;
use crate::text::truncate_chars;

const TENANT_CHARS: usize = 128;
const NAME_CHARS: usize = 256;
const WEIGHT_MAX: f64 = 1000.0;
/// Maximum number of models that a principal may name, and of characters of one.
const MODELS: usize = 1024;
const MODEL_CHARS: usize = 256;

/// The answer of one policy.
#[derive(Debug, Clone, PartialEq)]
enum AuthAnswer {
    Allow(Principal),
    Next,
    Refuse(Refusal),
}

/// Runs the enforced policies, then the monitored ones.
pub(crate) fn authenticate(set: &LoadedSet, request: &AuthRequest) -> AuthOutcome {
    if set.chain(Hook::Auth).links.is_empty() {
        return native(set.allow_anonymous || request.loopback);
    }
    let shown = shown(request);
    let outcome = decide(set, request, &shown);
    for policy in set.ready(Hook::Auth).filter(|policy| policy.sidecar.mode == Mode::Monitor) {
        monitor(policy, &shown, &outcome);
    }
    outcome
}

fn decide(set: &LoadedSet, request: &AuthRequest, shown: &wit::Request) -> AuthOutcome {
    let mut enforced = set.enforced(Hook::Auth).peekable();
    if enforced.peek().is_none() {
        return native(set.allow_anonymous || request.loopback);
    }
    for link in enforced {
        let (answer, on_fault) = match link {
            Link::Ready(policy) => (ask(policy, shown), policy.on_fault()),
            Link::Broken(broken) => (Err(broken.fault()), broken.on_fault),
        };
        match (answer, on_fault) {
            (Ok(AuthAnswer::Allow(principal)), _) => return AuthOutcome::Allow(principal),
            (Ok(AuthAnswer::Refuse(refusal)), _) => return AuthOutcome::Refuse(refusal),
            (Ok(AuthAnswer::Next), _) | (Err(_), OnFault::Skip) => {}
            (Err(fault), OnFault::Deny) => return AuthOutcome::Fault(fault),
            (Err(_), OnFault::Fallback) => return native(request.loopback),
        }
    }
    native(false)
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
fn monitor(policy: &Loaded, shown: &wit::Request, enforced: &AuthOutcome) {
    match (ask(policy, shown), enforced) {
        // `next` changes no outcome, and a fault was already counted and logged.
        (Ok(AuthAnswer::Next) | Err(_), _) => {}
        (Ok(AuthAnswer::Allow(theirs)), AuthOutcome::Allow(ours)) if theirs == *ours => {}
        (Ok(AuthAnswer::Refuse(theirs)), AuthOutcome::Refuse(ours)) if theirs.status == ours.status => {}
        (Ok(AuthAnswer::Allow(_)), _) => policy.note_difference("allow", None),
        (Ok(AuthAnswer::Refuse(theirs)), _) => policy.note_difference("refuse", Some(&theirs)),
    }
}

/// Calls one policy in an instance of its own.
fn ask(policy: &Loaded, request: &wit::Request) -> Result<AuthAnswer, Fault> {
    let started = Instant::now();
    let answer = run(policy, request);
    match &answer {
        Ok(AuthAnswer::Allow(_)) => policy.metrics.observe(Outcome::Allow, started),
        Ok(AuthAnswer::Next) => policy.metrics.observe(Outcome::Next, started),
        Ok(AuthAnswer::Refuse(_)) => policy.metrics.observe(Outcome::Refuse, started),
        Err(fault) => policy.note_fault(fault, started),
    }
    answer
}

fn run(policy: &Loaded, request: &wit::Request) -> Result<AuthAnswer, Fault> {
    let HookPre::Auth(pre) = &policy.compiled.pre else {
        return Err(policy.fault(FaultKind::Unavailable, "not an auth policy"));
    };
    let mut store = policy.store(None);
    let mut call = || {
        let guest = pre.instantiate(&mut store)?;
        store.data_mut().set_muted(true);
        let accepted = guest.camshaft_policy_plugin().call_configure(&mut store, &policy.sidecar.settings)?;
        store.data_mut().set_muted(false);
        match accepted {
            Err(text) => Ok(Err(text)),
            Ok(()) => guest.camshaft_policy_auth().call_authenticate(&mut store, request).map(Ok),
        }
    };
    let answer = call().map_err(|error| policy.fault_of(&error, store.data()))?;
    match answer.map_err(|text| policy.refused_settings(&text))? {
        Ok(wit::Verdict::Next) => Ok(AuthAnswer::Next),
        Ok(wit::Verdict::Allow(answer)) => {
            principal(answer).map(AuthAnswer::Allow).map_err(|text| policy.invalid(text))
        }
        Err(refusal) => answers::refusal(refusal).map(AuthAnswer::Refuse).map_err(|text| policy.invalid(text)),
    }
}

fn shown(request: &AuthRequest) -> wit::Request {
    wit::Request {
        method: request.method.clone(),
        path: request.path.clone(),
        headers: request.headers.clone(),
        remote_address: request.remote_address.clone(),
        loopback: request.loopback,
    }
}

fn principal(answer: wit::Principal) -> Result<Principal, String> {
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
    if let Some(share) = answer.quotas.queue_share.filter(|&share| !(share > 0.0 && share <= 1.0)) {
        return Err(format!("a principal with a queue share of {share}, which is not above 0 and at most 1"));
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
        priority: match answer.priority {
            types::Priority::High => Priority::High,
            types::Priority::Normal => Priority::Normal,
            types::Priority::Low => Priority::Low,
        },
        weight: answer.weight,
        quotas: Quotas {
            requests_per_minute: answer.quotas.requests_per_minute,
            tokens_per_minute: answer.quotas.tokens_per_minute,
            concurrent_requests: answer.quotas.concurrent_requests,
            queue_share: answer.quotas.queue_share,
        },
        allowed_models: answer.allowed_models,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> wit::Principal {
        let quotas = wit::Quotas {
            requests_per_minute: None,
            tokens_per_minute: Some(9),
            concurrent_requests: None,
            queue_share: None,
        };
        wit::Principal {
            name: "n".repeat(300),
            tenant: "t".to_owned(),
            priority: types::Priority::Low,
            weight: 2.0,
            quotas,
            allowed_models: None,
            cache_namespace: None,
        }
    }

    #[test]
    fn takes_a_principal_and_gives_it_its_own_namespace() {
        let principal = principal(answer()).unwrap();
        assert_eq!((principal.tenant.as_str(), principal.cache_namespace.as_str()), ("t", "t"));
        assert_eq!((principal.priority, principal.name.len()), (Priority::Low, 256));
        assert_eq!(principal.quotas.tokens_per_minute, Some(9));
    }

    #[test]
    fn refuses_principals_out_of_bounds() {
        for weight in [0.0, -1.0, 1000.1, f64::NAN, f64::INFINITY] {
            assert!(principal(wit::Principal { weight, ..answer() }).is_err());
        }
        let of_share = |share: f64| {
            let quotas = wit::Quotas { queue_share: Some(share), ..answer().quotas };
            principal(wit::Principal { quotas, ..answer() })
        };
        assert_eq!(of_share(1.0).unwrap().quotas.queue_share, Some(1.0));
        assert!(of_share(f64::MIN_POSITIVE).is_ok());
        for share in [0.0, -0.1, 1.001, f64::NAN, f64::INFINITY] {
            assert!(of_share(share).is_err(), "{share}");
        }
        for tenant in [String::new(), "x".repeat(129)] {
            assert!(principal(wit::Principal { tenant: tenant.clone(), ..answer() }).is_err());
            assert!(principal(wit::Principal { cache_namespace: Some(tenant), ..answer() }).is_err());
        }
        let models = |n, chars: usize| Some(vec!["m".repeat(chars); n]);
        assert!(principal(wit::Principal { allowed_models: models(1024, 256), ..answer() }).is_ok());
        assert!(principal(wit::Principal { allowed_models: models(1025, 1), ..answer() }).is_err());
        assert!(principal(wit::Principal { allowed_models: models(1, 257), ..answer() }).is_err());
    }
}
