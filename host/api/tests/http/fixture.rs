//! A server with one model in process, and the requests that tests send it.
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Request, StatusCode};
use camshaft_api::backend::{Backend, ConfiguredSampling, GenerateBackend, Model, Naming, TextModel};
use camshaft_api::{
    AdapterLease, AdapterSource, Adapters, Api, ApiLimits, ApiOptions, Control, FixedModels, LoadedFile, LocalQuotas,
    ModelControl, ModelHealth, PublicAccess, Readiness, Reloaded, admin_router, public_router,
};
use camshaft_core::engine::{Encode, Encoded, InfillTokens, ModelInfo, ModelKind, Reuse, Tokenizer};
use camshaft_core::family::detect::FamilyName;
use camshaft_core::grammar::GrammarStore;
use camshaft_core::ids::{AdapterDigest, Token};
use camshaft_core::message::Start;
use camshaft_core::vocabulary::Vocabulary;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::description::{check_reply, description};
use crate::policies::{Fixed, Rules};
use crate::pool::{Pool, Step, hello};

pub(crate) const BODY_BYTES: usize = 64 << 10;
pub(crate) const CONTEXT: u32 = 200;
pub(crate) const MAX_TOKENS: u32 = 100;
/// Of the model `org/secret`.
pub(crate) const INFILL: InfillTokens = InfillTokens { prefix: Token(1), suffix: Token(2), middle: Token(3) };
const BOS: u32 = 256;
const END: u32 = 257;
const TEMPLATE: &str = "{# <think> #}{{ bos_token }}{% for t in tools or [] %}{{ t.function.name }};{% endfor %}\
    {% for m in messages %}{% if m.content == 'forbidden' %}{{ raise_exception('this template refuses') }}{% endif %}\
    [{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}<|end|>{% endfor %}\
    {% if add_generation_prompt %}[assistant]{% endif %}";

/// Before it, of models that take only ids of calls with nine letters.
const NINE: &str = "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}\
    {{ raise_exception('nine letters') }}{% endif %}{% endfor %}{% endfor %}";

/// What texts begin with that [`Hold`] holds.
pub(crate) const HELD: &str = "hold";

/// Tokenizing of some texts waits here until the test lets it go on.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    /// Texts that wait or have waited.
    held: Mutex<usize>,
    released: (Mutex<bool>, Condvar),
}

impl Hold {
    fn pass(&self) {
        *self.held.lock().unwrap() += 1;
        let (released, told) = &self.released;
        drop(told.wait_while(released.lock().unwrap(), |released| !*released).unwrap());
    }

    pub(crate) fn held(&self) -> usize {
        *self.held.lock().unwrap()
    }

    pub(crate) fn release(&self) {
        *self.released.0.lock().unwrap() = true;
        self.released.1.notify_all();
    }
}

/// Token 0 to 255: the byte; then the control tokens `<|bos|>` and `<|end|>`.
#[derive(Debug)]
struct Bytes {
    hold: Arc<Hold>,
}

impl Tokenizer for Bytes {
    fn encode(&self, encode: Encode<'_>) -> Encoded {
        let Encode { text, add_special, parse_special, .. } = encode;
        if text.starts_with(HELD) {
            self.hold.pass();
        }
        let mut tokens: Vec<Token> = add_special.then_some(Token(BOS)).into_iter().collect();
        let mut offsets: Vec<(u32, u32)> = tokens.iter().map(|_| (0, 0)).collect();
        let mut rest = text.as_bytes();
        while let Some((&byte, tail)) = rest.split_first() {
            let control = [(BOS, "<|bos|>"), (END, "<|end|>")];
            let found = control.iter().find(|(_, text)| parse_special && rest.starts_with(text.as_bytes()));
            let start = (text.len() - rest.len()) as u32;
            (rest, _) = match found {
                Some((token, text)) => (&rest[text.len()..], tokens.push(Token(*token))),
                None => (tail, tokens.push(Token(u32::from(byte)))),
            };
            offsets.push((start, (text.len() - rest.len()) as u32));
        }
        Encoded { tokens, offsets: encode.offsets.then_some(offsets) }
    }
}

/// Adapters without files: the digest is of the path's first letter, and a path that begins with a dot is refused.
#[derive(Debug)]
struct NamedFiles;

#[derive(Debug)]
struct NoLease;

impl AdapterLease for NoLease {}

/// The digest of an adapter with this path.
pub(crate) fn digest(path: &str) -> AdapterDigest {
    AdapterDigest::new([path.as_bytes()[0]; 32])
}

impl AdapterSource for NamedFiles {
    fn load(&self, path: &Path) -> Result<LoadedFile, String> {
        let path = path.to_str().unwrap();
        if path.starts_with('.') {
            return Err(format!("bad LoRA adapter {path}: it is none"));
        }
        Ok(LoadedFile { digest: digest(path), bytes: 7, lease: Arc::new(NoLease) })
    }
}

/// A process that does this at a reload.
#[derive(Debug)]
pub(crate) struct NoControl(pub(crate) fn() -> Reloaded);

impl Control for NoControl {
    fn reload(&self) -> Reloaded {
        (self.0)()
    }
    fn config(&self) -> Value {
        json!({"keys": {}})
    }
}

pub(crate) const LIMITS: ApiLimits = ApiLimits {
    body_bytes: BODY_BYTES,
    bodies_bytes: 64 << 20,
    max_tokens: MAX_TOKENS,
    timeout: Duration::from_secs(60),
    max_timeout: Duration::from_secs(600),
    max_duration: None,
};

/// The models, what holds up their tokenizers, and how they come and go.
type Parts = (Vec<Model>, Arc<Hold>, Arc<dyn ModelControl>);

pub(crate) struct Server {
    pub(crate) api: Arc<Api>,
    pub(crate) pool: Pool,
    pub(crate) public: Router,
    pub(crate) admin: Router,
    pub(crate) hold: Arc<Hold>,
}

pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Server {
    /// Answers every generation with "Hello".
    pub(crate) fn new() -> Self {
        Self::with(Rules::default(), hello)
    }

    pub(crate) fn scripted(script: impl Fn(&Start) -> Vec<Step> + Send + 'static) -> Self {
        Self::with(Rules::default(), script)
    }

    pub(crate) fn with(rules: Rules, script: impl Fn(&Start) -> Vec<Step> + Send + 'static) -> Self {
        Self::over(rules, Pool::run(Box::new(script)))
    }

    pub(crate) fn over(rules: Rules, pool: Pool) -> Self {
        let fine = || Reloaded { changed: vec!["queue".to_owned()], ..Reloaded::default() };
        Self::controlled(rules, pool, NoControl(fine), Arc::new(FixedModels))
    }

    pub(crate) fn reloading(reload: fn() -> Reloaded) -> Self {
        Self::controlled(Rules::default(), Pool::run(Box::new(hello)), NoControl(reload), Arc::new(FixedModels))
    }

    /// As [`Server::new`], with models that come and go as `life` says.
    pub(crate) fn living(life: Arc<dyn ModelControl>, rules: Rules) -> Self {
        Self::controlled(rules, Pool::run(Box::new(hello)), NoControl(Reloaded::default), life)
    }

    /// Serves these models, none of which has the pool.
    pub(crate) fn serving(rules: Rules, models: Vec<Model>) -> Self {
        let pool = Pool::run(Box::new(hello));
        Self::assembled(rules, pool, NoControl(Reloaded::default), (models, Arc::default(), Arc::new(FixedModels)))
    }

    /// As [`Server::scripted`], with a model of this family.
    pub(crate) fn of_family(family: &str, script: impl Fn(&Start) -> Vec<Step> + Send + 'static) -> Self {
        let pool = Pool::run(Box::new(script));
        let (models, hold) = models(family, &pool);
        Self::assembled(Rules::default(), pool, NoControl(Reloaded::default), (models, hold, Arc::new(FixedModels)))
    }

    fn controlled(rules: Rules, pool: Pool, control: NoControl, life: Arc<dyn ModelControl>) -> Self {
        // Its template need not write tools: those of `generic` take more tokens than the context has.
        let (models, hold) = models("hermes", &pool);
        Self::assembled(rules, pool, control, (models, hold, life))
    }

    fn assembled(rules: Rules, pool: Pool, control: NoControl, (models, hold, life): Parts) -> Self {
        let readiness = Arc::new(Readiness::new());
        readiness.set_ready();
        let api = Api::new(ApiOptions {
            models,
            life,
            policies: Arc::new(Fixed(Arc::new(rules))),
            registry: prometheus::Registry::new(),
            limits: LIMITS,
            quotas: Arc::new(LocalQuotas::default()),
            control: Arc::new(control),
            vllm_aliases: true,
            operators: vec!["ops".to_owned()],
            kernels: "built-in".to_owned(),
            readiness,
        });
        let api = api.unwrap();
        let public = public_router(api.clone(), PublicAccess::default());
        Self { public, admin: admin_router(api.clone(), Arc::default()), pool, api, hold }
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(request("POST", path, &body.to_string())).await
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(request("GET", path, "")).await
    }

    /// Whatever is answered is what the description says.
    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let (path, method) = (request.uri().path().to_owned(), request.method().as_str().to_lowercase());
        let reply = self.send_unchecked(request).await;
        check_reply(description(self).await, (&path, &method), &reply);
        reply
    }

    pub(crate) async fn send_unchecked(&self, request: Request<Body>) -> Reply {
        reply(self.public.clone(), request).await
    }

    /// Of a request to the admin listener.
    pub(crate) async fn order(&self, method: &str, path: &str, body: &str) -> Reply {
        reply(self.admin.clone(), request(method, path, body)).await
    }

    pub(crate) async fn admin(&self, path: &str) -> Reply {
        reply(self.admin.clone(), request("GET", path, "")).await
    }

    /// A user's message and whatever `more` adds or replaces.
    pub(crate) async fn chat(&self, more: Value) -> Reply {
        self.post("/v1/chat/completions", chat_body(more)).await
    }

    pub(crate) async fn complete(&self, more: Value) -> Reply {
        self.post("/v1/completions", merged(json!({"model": "demo", "prompt": "ab"}), more)).await
    }

    /// The only generation so far.
    pub(crate) fn start(&self) -> Start {
        let starts = self.pool.starts.lock().unwrap();
        assert_eq!(starts.len(), 1);
        starts[0].clone()
    }

    /// The value of a line of `/metrics` that begins with `series`; 0 without one.
    pub(crate) async fn metric(&self, series: &str) -> f64 {
        let text = self.admin("/metrics").await.text;
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.parse().unwrap())
    }
}

/// The models that tests ask for, with this pool, and what holds up their tokenizers. `family`: of `demo`.
fn models(family: &str, pool: &Pool) -> (Vec<Model>, Arc<Hold>) {
    let hold = Arc::new(Hold::default());
    let adapters = Arc::new(Adapters::of(Box::new(NamedFiles)));
    let sampling = ConfiguredSampling::default();
    let health = ModelHealth::default();
    health.worker().ready();
    let FamilyName(family) = family.parse().unwrap();
    let grammars = Arc::new(GrammarStore::new(info().vocabulary));
    let text = |id: &str| {
        let nine = if family.name.starts_with("mistral") { NINE } else { "" };
        let info = ModelInfo {
            infill: (id != "demo").then_some(INFILL),
            chat_template: Some(format!("{nine}{TEMPLATE}")),
            ..info()
        };
        let named = (id == "demo").then_some(family);
        TextModel::local(info, Arc::new(Bytes { hold: hold.clone() }), grammars.clone(), named)
    };
    let model = |id: &str| Model {
        id: id.into(),
        naming: Naming::of(id),
        health: health.clone(),
        created: 1_700_000_000,
        backend: Backend::Generate(GenerateBackend {
            sampling: if id == "demo" { sampling.clone() } else { Default::default() },
            adapters: if id == "demo" { adapters.clone() } else { Arc::default() },
            family: (id == "demo").then_some(family),
            text: text(id),
            grammars: grammars.clone(),
            pool: pool.sender.clone(),
            accepts: Arc::new(AtomicBool::new(true)),
        }),
    };
    (vec![model("demo"), model("org/secret")], hold)
}

/// The names and the payloads of a stream's events.
pub(crate) fn named(text: &str) -> Vec<(String, Value)> {
    let frames = text.split_terminator("\n\n").filter(|frame| !frame.starts_with(':'));
    let event = |frame: &str| {
        let (name, data) = frame.split_once('\n').expect("two lines");
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        (name, serde_json::from_str(data.strip_prefix("data: ").expect("data")).unwrap())
    };
    frames.map(event).collect()
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("not JSON: {}", self.text))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// Checks status and shape of an error and gives its `type`, `code` and `param` (`-` for null), and the message.
    pub(crate) fn error(&self, status: u16) -> (String, String) {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        let body = self.json();
        let error = body["error"].as_object().unwrap();
        assert_eq!(error.keys().collect::<Vec<_>>(), ["message", "type", "param", "code"]);
        assert_eq!(body.as_object().unwrap().keys().collect::<Vec<_>>(), ["error", "request_id"]);
        assert_eq!(body["request_id"].as_str(), self.header("x-request-id"));
        let text = |name: &str| match &error[name] {
            Value::Null => "-".to_owned(),
            value => value.as_str().expect("a string or null").to_owned(),
        };
        (format!("{} {} {}", text("type"), text("code"), text("param")), text("message"))
    }

    /// The JSON payloads of an event stream, and whether it ends with `[DONE]`.
    pub(crate) fn events(&self) -> (Vec<Value>, bool) {
        let frames: Vec<&str> = self.text.split_terminator("\n\n").filter(|frame| !frame.starts_with(':')).collect();
        let payload = |frame: &&str| frame.strip_prefix("data: ").expect("a data line").to_owned();
        let mut payloads: Vec<String> = frames.iter().map(payload).collect();
        let done = payloads.pop_if(|last| last == "[DONE]").is_some();
        (payloads.iter().map(|payload| serde_json::from_str(payload).unwrap()).collect(), done)
    }
}

/// A model with this [`info`], of this kind.
pub(crate) fn text(kind: ModelKind) -> TextModel {
    let grammars = Arc::new(GrammarStore::new(info().vocabulary));
    TextModel::local(ModelInfo { kind, ..info() }, Arc::new(Bytes { hold: Arc::default() }), grammars, None)
}

pub(crate) fn info() -> ModelInfo {
    let pieces = (0..=255_u8).map(|byte| vec![byte]).chain([Vec::new(), Vec::new()]);
    ModelInfo {
        name: "Demo".into(),
        kind: ModelKind::Generate,
        parameters: 3,
        weight_bytes: 4,
        trained_context_tokens: 1024,
        reuse: Reuse::Ranges,
        context_tokens: CONTEXT,
        sampling: Default::default(),
        quantization: Some("Q4_0".into()),
        infill: None,
        chat_template: Some(TEMPLATE.into()),
        tool_template: None,
        bos_text: "<|bos|>".into(),
        eos_text: "<|end|>".into(),
        sha256: Some("0123456789abcdef".into()),
        vocabulary: Arc::new(Vocabulary::new(pieces, vec![Token(END)])),
    }
}

pub(crate) fn chat_body(more: Value) -> Value {
    merged(json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}]}), more)
}

pub(crate) fn merged(mut body: Value, mut more: Value) -> Value {
    body.as_object_mut().unwrap().append(more.as_object_mut().unwrap());
    body
}

/// With a JSON content type, from a local peer.
pub(crate) fn request(method: &str, path: &str, body: &str) -> Request<Body> {
    Request::builder()
        .method(method)
        .uri(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .extension(ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 40_000))))
        .body(Body::from(body.to_owned()))
        .unwrap()
}

async fn reply(router: Router, request: Request<Body>) -> Reply {
    let response = router.oneshot(request).await.unwrap();
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    Reply { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes.to_vec()).unwrap() }
}
