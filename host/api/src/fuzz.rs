//! Entry points of the fuzz targets: the parsers of everything that clients send.
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use camshaft_core::answering::Answering;
use camshaft_core::engine::EngineLimits;
use camshaft_core::fake::{ByteTokenizer, FakeEngine};
use camshaft_core::grammar::GrammarStore;
use camshaft_core::ids::{Generation, PolicyDigest, PolicyName};
use camshaft_core::policy::{
    AuthOutcome, AuthRequest, Authentication, Policies, PolicySet, PolicyStatus, Principal, ValidateOutcome,
    ValidateRequest, Validation,
};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use crate::flow::api::{Api, ApiLimits, ApiOptions, Caller, StartError};
use crate::flow::backend::{Backend, Control, GenerateBackend, Model, Naming, Reloaded, TextModel};
use crate::flow::error::FlowError;
use crate::flow::generate::Generates;
use crate::flow::life::FixedModels;
use crate::flow::quota::LocalQuotas;
use crate::flow::readiness::{ModelHealth, Readiness};
use crate::flow::request::{GenerationRequest, ReadContext};
use crate::http::access::PublicAccess;
use crate::http::routes::public_router;
use crate::wire::dialect::{Dialect, Framing, Served};
use crate::wire::sse;

/// Policies that decide nothing.
#[derive(Debug)]
struct Nothing;

impl PolicySet for Nothing {
    fn generation(&self) -> Generation {
        Generation(0)
    }
    fn has_auth(&self) -> bool {
        false
    }
    fn authenticate<'a>(&'a self, _: &'a Arc<AuthRequest>) -> Answering<'a, Authentication> {
        Box::pin(ready(AuthOutcome::Allow(Principal::anonymous()).into()))
    }
    fn validators(&self) -> usize {
        0
    }
    fn validate(&self, _: usize, _: &Arc<ValidateRequest>) -> Answering<'static, Validation> {
        Box::pin(ready(ValidateOutcome::Accept.into()))
    }
    fn sampler_chain(&self) -> PolicyDigest {
        PolicyDigest::NATIVE
    }

    fn filter_chain(&self) -> PolicyDigest {
        PolicyDigest::NATIVE
    }
    fn samplers(&self, _: camshaft_core::policy::Target<'_>) -> Vec<PolicyName> {
        vec![PolicyName::from("standard")]
    }
}

impl Policies for Nothing {
    fn current(&self) -> Arc<dyn PolicySet> {
        Arc::new(Nothing)
    }
    fn status(&self) -> Vec<PolicyStatus> {
        Vec::new()
    }
}

impl Control for Nothing {
    fn reload(&self) -> Reloaded {
        Reloaded::default()
    }
    fn config(&self) -> Value {
        Value::Null
    }
}

/// The parsers, with a model whose tokens are bytes.
#[derive(Debug)]
pub struct Parsers {
    api: Arc<Api>,
    caller: Caller,
    runtime: Runtime,
}

impl Parsers {
    /// # Errors
    /// None, unless a test of this package fails, too.
    pub fn new() -> Result<Self, StartError> {
        let limits = EngineLimits { sequences: 4, kv_tokens: 4096, batch_tokens: 64, context_tokens: 1024 };
        let (pool, _) = crossbeam_channel::bounded(1);
        let grammars = Arc::new(GrammarStore::new(FakeEngine::info(limits).vocabulary));
        let model = Model {
            id: "fuzz".to_owned(),
            naming: Naming::of("fuzz"),
            health: ModelHealth::default(),
            created: 0,
            backend: Backend::Generate(GenerateBackend {
                adapters: Default::default(),
                sampling: Default::default(),
                family: None,
                text: TextModel::local(FakeEngine::info(limits), Arc::new(ByteTokenizer), grammars.clone(), None),
                grammars,
                pool,
                accepts: Arc::new(AtomicBool::new(true)),
            }),
        };
        let second = Duration::from_secs(1);
        let readiness = Arc::new(Readiness::new());
        model.health.worker().ready();
        readiness.set_ready();
        let api = Api::new(ApiOptions {
            models: vec![model],
            life: Arc::new(FixedModels),
            policies: Arc::new(Nothing),
            registry: prometheus::Registry::new(),
            limits: ApiLimits {
                body_bytes: 1 << 20,
                bodies_bytes: 1 << 30,
                max_tokens: 512,
                timeout: second,
                max_timeout: 60 * second,
                max_duration: None,
            },
            readiness,
            quotas: Arc::new(LocalQuotas::default()),
            control: Arc::new(Nothing),
            vllm_aliases: false,
            operators: Vec::new(),
            kernels: "built-in".to_owned(),
        })?;
        let caller =
            Caller { principal: Arc::new(Principal::anonymous()), policies: Arc::new(Nothing), operator: false };
        #[allow(clippy::expect_used, reason = "a tool of tests")]
        let runtime = Builder::new_current_thread().build().expect("a runtime without a reactor");
        Ok(Self { api, caller, runtime })
    }

    /// The public routes. Nobody takes what they submit.
    pub fn router(&self) -> axum::Router {
        let cors_origins = vec!["https://example.org".to_owned()];
        public_router(self.api.clone(), PublicAccess { host: None, cors_origins })
    }

    fn read<B: Generates>(&self, request: &B) -> Result<GenerationRequest, FlowError> {
        let found = &self.api.model_of(&request.wish(), &self.caller)?;
        let context = ReadContext { api: &self.api, caller: &self.caller, found, bytes: 0 };
        self.runtime.block_on(request.generation(context))
    }

    /// # Errors
    /// 400, 403 or 404: the body is malformed, or names another model.
    pub(crate) fn parse(&self, dialect: Dialect, text: &str) -> Result<GenerationRequest, FlowError> {
        match dialect.read(text)? {
            Served::Chat(converted) => self.read(&converted.body.request),
            Served::Completion(converted) => self.read(&converted.body.request),
        }
    }

    /// Reads a body as a request of each API, and checks the bounds of what it accepts.
    ///
    /// # Panics
    /// If an accepted request is out of bounds.
    pub fn request(&self, bytes: &[u8]) {
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        let native = Dialect::Native(Framing::Lines);
        for dialect in [Dialect::Chat, Dialect::Completions, Dialect::Responses, Dialect::Messages, native] {
            // A validator that changes nothing changes nothing.
            let patched = dialect.read(text).map(|served| match served {
                Served::Chat(converted) => converted.body.patched("{}").map(drop),
                Served::Completion(converted) => converted.body.patched("{}").map(drop),
            });
            assert!(!matches!(patched, Ok(Err(_))), "{patched:?}");
            match self.parse(dialect, text) {
                Ok(request) => {
                    assert!(!request.prompts.is_empty() && request.choices().count() <= 128);
                    for prompt in &request.prompts {
                        assert!(!prompt.tokens.is_empty() && prompt.max_tokens >= 1);
                        assert!(prompt.tokens.len() + prompt.max_tokens as usize <= 1024);
                    }
                    let sampling = &request.settings.sampling;
                    assert!(sampling.temperature.is_finite() && sampling.top_p > 0.0 && sampling.top_p <= 1.0);
                }
                Err(error) => {
                    let status = error.answer().status().as_u16();
                    assert!((400..500).contains(&status), "{status}: {error}");
                }
            }
        }
    }
}

/// Checks that any text makes exactly one event in a stream.
///
/// # Panics
/// If it does not.
pub fn event(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut out = Vec::new();
    sse::write(&mut out, &serde_json::json!({"text": text, "again": [text]}));
    let frame = out.strip_prefix(b"data: ").and_then(|rest| rest.strip_suffix(b"\n\n"));
    let Some(frame) = frame else { panic!("a frame that is none") };
    assert!(!frame.contains(&b'\n') && !frame.contains(&b'\r'));
    let value: Value = serde_json::from_slice(frame).unwrap_or_default();
    assert_eq!(value["text"], text.as_ref());
}
