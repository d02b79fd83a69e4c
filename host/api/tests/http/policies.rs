//! Policies written out by hand: what each hook answers is a closure.
use std::fmt;
use std::sync::Arc;

use camshaft_core::answering::Answering;
use camshaft_core::ids::{Generation, PolicyDigest, PolicyName};
use camshaft_core::policy::{
    AuthOutcome, AuthRequest, Authentication, Fault, FaultKind, Hook, Mode, Policies, PolicyEffect, PolicySet,
    PolicyState, PolicyStatus, Principal, Refusal, ValidateOutcome, ValidateRequest, Validation,
};
use tokio::sync::Semaphore;

/// Of validators that take no time.
pub(crate) const PERMITS: usize = 1000;

type Auth = Box<dyn Fn(&AuthRequest) -> Authentication + Send + Sync>;
type Validator = Arc<dyn Fn(&ValidateRequest) -> Validation + Send + Sync>;

pub(crate) struct Rules {
    pub(crate) auth: Auth,
    pub(crate) validators: Vec<Validator>,
    /// Without a permit of it, validators take long.
    pub(crate) pace: Arc<Semaphore>,
    pub(crate) samplers: Vec<PolicyName>,
    pub(crate) wants_body_digest: bool,
    pub(crate) keeps_bodies: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            auth: Box::new(|_| AuthOutcome::Allow(Principal::anonymous()).into()),
            validators: Vec::new(),
            pace: Arc::new(Semaphore::new(PERMITS)),
            samplers: vec!["standard".into(), "avoid-words".into()],
            wants_body_digest: false,
            keeps_bodies: false,
        }
    }
}

impl Rules {
    pub(crate) fn validator(
        self,
        validator: impl Fn(&ValidateRequest) -> ValidateOutcome + Send + Sync + 'static,
    ) -> Self {
        self.marking(move |request| validator(request).into())
    }

    /// A validator that also marks requests.
    pub(crate) fn marking(
        mut self,
        validator: impl Fn(&ValidateRequest) -> Validation + Send + Sync + 'static,
    ) -> Self {
        self.validators.push(Arc::new(validator));
        self
    }

    pub(crate) fn auth(self, auth: impl Fn(&AuthRequest) -> AuthOutcome + Send + Sync + 'static) -> Self {
        self.replying(move |request| auth(request).into())
    }

    /// Auth that also says something of the response.
    pub(crate) fn replying(mut self, auth: impl Fn(&AuthRequest) -> Authentication + Send + Sync + 'static) -> Self {
        self.auth = Box::new(auth);
        self
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rules")
    }
}

impl PolicySet for Rules {
    fn generation(&self) -> Generation {
        Generation(7)
    }

    fn has_auth(&self) -> bool {
        true
    }

    fn authenticate<'a>(&'a self, request: &'a Arc<AuthRequest>) -> Answering<'a, Authentication> {
        Box::pin(async { (self.auth)(request) })
    }

    fn wants_body_digest(&self) -> bool {
        self.wants_body_digest
    }

    fn keeps_bodies(&self) -> bool {
        self.keeps_bodies
    }

    fn validators(&self) -> usize {
        self.validators.len()
    }

    fn validate(&self, index: usize, request: &Arc<ValidateRequest>) -> Answering<'static, Validation> {
        let (validator, pace, request) = (self.validators[index].clone(), self.pace.clone(), request.clone());
        Box::pin(async move {
            let _permit = pace.acquire().await;
            validator(&request)
        })
    }

    fn sampler_chain(&self) -> PolicyDigest {
        PolicyDigest::new([7; 32])
    }

    fn filter_chain(&self) -> PolicyDigest {
        PolicyDigest::new([7; 32])
    }

    fn samplers(&self, _: camshaft_core::policy::Target<'_>) -> Vec<PolicyName> {
        self.samplers.clone()
    }
}

#[derive(Debug)]
pub(crate) struct Fixed(pub(crate) Arc<Rules>);

impl Policies for Fixed {
    fn current(&self) -> Arc<dyn PolicySet> {
        self.0.clone()
    }

    fn status(&self) -> Vec<PolicyStatus> {
        vec![PolicyStatus {
            hook: Hook::Sampler,
            name: "avoid-words".into(),
            file: "sampler/10-avoid-words.wasm".into(),
            mode: Mode::Enforce,
            overridden: false,
            state: PolicyState::Active,
            effect: PolicyEffect::Decides,
            serving: Some("ab12".into()),
            generation: Some(Generation(7)),
            error: None,
            health: None,
            canary: None,
        }]
    }
}

pub(crate) fn refusal(status: u16, code: &str) -> Refusal {
    Refusal { status, code: code.into(), message: "not like this".into(), param: Some("model".into()) }
}

pub(crate) fn fault() -> Fault {
    Fault { plugin: "bad".into(), kind: FaultKind::Trap, detail: "unreachable executed at 0x1f".into() }
}
