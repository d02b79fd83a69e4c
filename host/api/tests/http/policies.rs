//! Policies written out by hand: what each hook answers is a closure.
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::ids::{Generation, PolicyDigest, PolicyName};
use camshaft_core::policy::{
    AuthOutcome, AuthRequest, Fault, FaultKind, Hook, Mode, Policies, PolicySet, PolicyState, PolicyStatus, Principal,
    Refusal, ValidateOutcome, ValidateRequest, Validation,
};

type Auth = Box<dyn Fn(&AuthRequest) -> AuthOutcome + Send + Sync>;
type Validator = Box<dyn Fn(&ValidateRequest) -> Validation + Send + Sync>;

pub(crate) struct Rules {
    pub(crate) auth: Auth,
    pub(crate) validators: Vec<Validator>,
    pub(crate) validators_deadline: Duration,
    pub(crate) samplers: Vec<PolicyName>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            auth: Box::new(|_| AuthOutcome::Allow(Principal::anonymous())),
            validators: Vec::new(),
            validators_deadline: Duration::from_millis(5),
            samplers: vec!["standard".into(), "avoid-words".into()],
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
        self.validators.push(Box::new(validator));
        self
    }

    pub(crate) fn auth(mut self, auth: impl Fn(&AuthRequest) -> AuthOutcome + Send + Sync + 'static) -> Self {
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

    fn authenticate(&self, request: &Arc<AuthRequest>) -> AuthOutcome {
        (self.auth)(request)
    }

    fn validators(&self) -> usize {
        self.validators.len()
    }

    fn validators_deadline(&self) -> Duration {
        self.validators_deadline
    }

    fn validate(&self, index: usize, request: &Arc<ValidateRequest>) -> Validation {
        (self.validators[index])(request)
    }

    fn sampler_chain(&self) -> PolicyDigest {
        PolicyDigest::new([7; 32])
    }

    fn filter_chain(&self) -> PolicyDigest {
        PolicyDigest::new([7; 32])
    }

    fn samplers(&self) -> Vec<PolicyName> {
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
            serving: Some("ab12".into()),
            generation: Some(Generation(7)),
            error: None,
            health: None,
        }]
    }
}

pub(crate) fn refusal(status: u16, code: &str) -> Refusal {
    Refusal { status, code: code.into(), message: "not like this".into(), param: Some("model".into()) }
}

pub(crate) fn fault() -> Fault {
    Fault { plugin: "bad".into(), kind: FaultKind::Trap, detail: "unreachable executed at 0x1f".into() }
}
