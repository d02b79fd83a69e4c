//! `/admin/…` and statistics: the routes with which operators inspect and change the server, and who may call them.
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{ConnectInfo, Path, Query, RawQuery, Request, State};
use axum::http::{Extensions, HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use camshaft_core::ids::Generation;
use camshaft_core::policy::{
    Hook, KvTokens, ModeError, PolicyAction, PolicyChange, PolicyCheck, PolicyHistory, PolicyOrder, PolicyStatus,
    WorkerFacts,
};
use http_body_util::{BodyExt, Limited};
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::flow::api::{Api, Caller};
use crate::flow::backend::{Backend, PolicyScan, PoolMessage, PoolSnapshot, Reloaded};
use crate::flow::error::FlowError;
use crate::flow::metrics::Percentiles;
use crate::flow::readiness::{self, WorkerState};
use crate::http::access;
use crate::http::error::ApiError;
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;

pub(crate) async fn config(State(api): State<Arc<Api>>) -> Json<Value> {
    Json(api.control.config())
}

/// Reloads configuration and policies: 200 if both happened, 422 with the reason if the configuration is rejected, and 503
/// or 500 if the policies were not scanned.
///
/// # Errors
/// 500 if the reload panics.
pub(crate) async fn reload(State(api): State<Arc<Api>>) -> Result<(StatusCode, Json<Reloaded>), ApiError> {
    let report = tokio::task::spawn_blocking(move || api.control.reload()).await.map_err(ApiError::ReloadTask)?;
    let status = match (report.policies, &report.error) {
        (PolicyScan::Busy, _) => StatusCode::SERVICE_UNAVAILABLE,
        (PolicyScan::Unanswered, _) => StatusCode::INTERNAL_SERVER_ERROR,
        (PolicyScan::Done, Some(_)) => StatusCode::UNPROCESSABLE_ENTITY,
        (PolicyScan::Done, None) => StatusCode::OK,
    };
    Ok((status, Json(report)))
}

/// Drains the server: it admits no new request, running ones continue, and the process stays.
pub(crate) async fn drain(State(api): State<Arc<Api>>) -> Json<Value> {
    api.readiness.hold();
    tracing::info!("an operator began a drain");
    Json(json!({"state": "draining"}))
}

/// Undoes a drain. Does not stop a shutdown.
pub(crate) async fn resume(State(api): State<Arc<Api>>) -> Json<Value> {
    api.readiness.release();
    let state = api.readiness.state();
    tracing::info!(?state, "an operator ended a drain");
    Json(json!({"state": state}))
}

/// What the admin listener asks of its callers.
#[derive(Debug, Default)]
pub struct AdminAccess {
    /// The host name that the listener is configured with, if it is one.
    host: Option<String>,
    token: ArcSwapOption<String>,
}

impl AdminAccess {
    /// `host`: a name by which the listener may be addressed, besides `localhost` and IP addresses.
    pub fn new(host: Option<String>) -> Self {
        Self { host, token: ArcSwapOption::empty() }
    }

    /// Asks every later request for this token: `Authorization: Bearer TOKEN`.
    pub fn set_token(&self, token: String) {
        self.token.store(Some(Arc::new(token)));
    }

    /// A page can make its own name point to this listener (DNS rebinding), but it cannot know the token, nor send
    /// another name.
    fn allows_host(&self, request: &Request) -> bool {
        if self.token.load().is_some() {
            return true;
        }
        // HTTP/1.0 names none; no browser speaks it.
        access::host_of_request(request).is_none_or(|host| access::is_own_host(host, self.host.as_deref()))
    }

    /// Compares in a time that says nothing about the token but its length.
    fn allows_token(&self, headers: &HeaderMap) -> bool {
        let token = self.token.load();
        let Some(token) = token.as_ref() else { return true };
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(7));
        sent.is_some_and(|(scheme, sent)| {
            scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(sent.ct_eq(token.as_bytes()))
        })
    }
}

/// Middleware of the whole listener. A browser sends the origin of a post; other clients send none.
pub(crate) async fn check_host(
    State(access): State<Arc<AdminAccess>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if !access.allows_host(&request) {
        return Err(ApiError::ForeignHost);
    }
    if request.method() == Method::POST && request.headers().contains_key(header::ORIGIN) {
        return Err(ApiError::WebPage);
    }
    Ok(next.run(request).await)
}

/// Middleware of its routes that are not open.
pub(crate) async fn check_token(
    State(access): State<Arc<AdminAccess>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    // Somebody on the way may have read the other one.
    if request.headers().get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
        return Err(ApiError::TwoTokens);
    }
    match access.allows_token(request.headers()) {
        true => Ok(next.run(request).await),
        false => Err(ApiError::NoToken),
    }
}

/// Time for a pool to answer. Past it, the pool is left out.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(Debug, Serialize)]
struct ModelStats {
    queue: Option<PoolSnapshot>,
    tokens_per_second: f32,
    kv_tokens: KvTokens,
    time_to_first_token_seconds: Percentiles,
    inter_token_latency_seconds: Percentiles,
}

#[derive(Debug, Serialize)]
pub(crate) struct Stats {
    state: readiness::ServerState,
    models: BTreeMap<String, ModelStats>,
    policy_generation: Generation,
    policies: Vec<PolicyStatus>,
    version: &'static str,
    kernels: String,
}

/// What a caller sees who is no operator.
#[derive(Debug, Serialize)]
pub(crate) struct OwnStats {
    state: readiness::ServerState,
    tenant: String,
    /// The models that it may use.
    models: BTreeMap<String, OwnModelStats>,
    version: &'static str,
}

#[derive(Debug, Serialize)]
struct OwnModelStats {
    /// Its tenant's waiting requests; `null` if the pool has not said.
    waiting: Option<usize>,
}

/// On the public listener, everything for operators, and for others what concerns their own tenant.
pub(crate) async fn stats(State(api): State<Arc<Api>>, caller: Option<Extension<Caller>>) -> Response {
    match caller {
        Some(Extension(caller)) if !caller.operator => Json(own_stats(&api, &caller).await).into_response(),
        _ => Json(all_stats(&api).await).into_response(),
    }
}

async fn own_stats(api: &Api, caller: &Caller) -> OwnStats {
    let tenant = caller.principal.tenant.as_str();
    let mut models = BTreeMap::new();
    for model in api.catalog().models().filter(|model| caller.principal.may_use(&model.id)) {
        let queue = snapshot(&model.backend).await;
        // Of very many tenants the pool lists those with the most waiting requests.
        let waiting = queue.and_then(|queue| match queue.waiting_by_tenant.get(tenant) {
            None if queue.waiting_by_tenant.len() < PoolSnapshot::TENANTS => Some(0),
            waiting => waiting.copied(),
        });
        models.insert(model.id.clone(), OwnModelStats { waiting });
    }
    OwnStats { state: api.readiness.state(), tenant: tenant.to_owned(), models, version: env!("CARGO_PKG_VERSION") }
}

async fn all_stats(api: &Api) -> Stats {
    let now = Instant::now();
    let mut models = BTreeMap::new();
    for model in api.catalog().models() {
        let queue = snapshot(&model.backend).await;
        let workers = || queue.iter().flat_map(|queue| &queue.workers);
        // The free KV in a worker's facts is lower than the actual one while a request waits inside the worker.
        let latencies = api.metrics.latencies(&model.id);
        let stats = ModelStats {
            tokens_per_second: workers().fold(0.0, |sum, worker| sum + worker.tokens_per_second),
            kv_tokens: KvTokens::of(workers()),
            time_to_first_token_seconds: latencies.first_token.percentiles(now),
            inter_token_latency_seconds: latencies.between_tokens.percentiles(now),
            queue,
        };
        models.insert(model.id.clone(), stats);
    }
    Stats {
        state: api.readiness.state(),
        models,
        policy_generation: api.policies.current().generation(),
        policies: api.policies.status(),
        version: env!("CARGO_PKG_VERSION"),
        kernels: api.kernels.clone(),
    }
}

/// One worker.
#[derive(Debug, Serialize)]
struct WorkerReport {
    /// As schedulers know it; nothing while the pool does not answer.
    #[serde(flatten)]
    facts: Option<WorkerFacts>,
    state: WorkerState,
    restarts: u64,
}

/// The workers of every model.
pub(crate) async fn workers(State(api): State<Arc<Api>>) -> Json<Value> {
    let (mut models, catalog) = (BTreeMap::new(), api.catalog());
    for model in catalog.models() {
        let facts = snapshot(&model.backend).await.map(|queue| queue.workers).unwrap_or_default();
        let state = |(number, (state, restarts)): (usize, _)| WorkerReport {
            facts: facts.iter().find(|one| one.worker.0 as usize == number).cloned(),
            state,
            restarts,
        };
        let workers: Vec<WorkerReport> = model.health.states().into_iter().enumerate().map(state).collect();
        models.insert(model.id.as_str(), workers);
    }
    Json(json!({ "models": models }))
}

async fn snapshot(backend: &Backend) -> Option<PoolSnapshot> {
    let pool = match backend {
        Backend::Generate(generator) => &generator.pool,
        Backend::Embed(embedder) => return Some(embedder.jobs.snapshot()),
        Backend::Predict(predictor) => return Some(predictor.jobs.snapshot()),
    };
    let (reply, answer) = oneshot::channel();
    pool.try_send(PoolMessage::Snapshot(reply)).ok()?;
    timeout(ANSWER_TIMEOUT, answer).await.ok()?.ok()
}

/// Bytes of a component that is examined; a file may have as many.
const COMPONENT_MAX_BYTES: usize = 64 << 20;
/// Maximum time for a whole component to arrive. Past it: 408.
const BODY_TIME: Duration = Duration::from_secs(120);

#[derive(Debug, Serialize)]
pub(crate) struct PolicyReport {
    /// The published set of policies.
    generation: Generation,
    policies: Vec<PolicyStatus>,
    /// The newest changes, the oldest first.
    history: Vec<PolicyChange>,
    /// How many are kept.
    history_max: usize,
}

/// What comes with a component that is examined.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckQuery {
    /// A whole settings file.
    settings: Option<String>,
}

pub(crate) async fn policies(State(api): State<Arc<Api>>) -> Json<PolicyReport> {
    let (generation, policies) = (api.policies.current().generation(), api.policies.status());
    Json(PolicyReport { generation, policies, history: api.policies.history(), history_max: PolicyHistory::MAX })
}

/// Sets a policy to `enforce`, `monitor` or `off` until its files change; `rollback` goes back to the version before, and
/// `promote` loads again what was rolled back.
///
/// # Errors
/// 404 for an unknown policy, 400 for a hook or action that does not exist or cannot be combined, 409 where there is nothing
/// to go back to or to promote.
pub(crate) async fn change(
    State(api): State<Arc<Api>>,
    extensions: Extensions,
    names: Result<Path<(String, String, String)>, PathRejection>,
) -> Result<Json<PolicyStatus>, ApiError> {
    let Path((hook, name, action)) = names?;
    let hook =
        Hook::ALL.into_iter().find(|known| known.as_str() == hook).ok_or(ApiError::UnknownHook { name: hook })?;
    let action = PolicyAction::parse(&action).ok_or(ApiError::UnknownAction { name: action })?;
    let order = PolicyOrder { hook, name, action, who: who(&extensions) };
    // The call waits for the thread that loads policies.
    let done = tokio::task::spawn_blocking(move || api.policies.change(order)).await;
    let done = done.map_err(ApiError::PolicyTask)?.map_err(|error| match error {
        ModeError::NoPolicy { hook, name } => ModeError::NoPolicy { hook, name: Shown(&name).to_string() },
        error => error,
    });
    done.map(Json).map_err(ApiError::Policy)
}

/// Examines the component in the body as a load would. Nothing changes.
///
/// # Errors
/// 400 with the reason for which it would be rejected, 409 while another one is examined, 413 past 64 MiB.
pub(crate) async fn check(
    State(api): State<Arc<Api>>,
    extensions: Extensions,
    query: Result<Query<CheckQuery>, QueryRejection>,
    RawQuery(raw): RawQuery,
    body: Body,
) -> Result<Json<PolicyCheck>, ApiError> {
    let Query(CheckQuery { settings }) = query.map_err(ApiError::Query)?;
    // The extractor replaces what is not UTF-8, and a file that has it is rejected.
    if percent_decode_str(&raw.unwrap_or_default()).decode_utf8().is_err() {
        return Err(ApiError::QueryText);
    }
    // Also the memory of the body is one component's at a time.
    let one = api.policy_checks.clone().try_acquire_owned().map_err(|_| ApiError::Policy(ModeError::Checking))?;
    let limit = COMPONENT_MAX_BYTES;
    let read = timeout(BODY_TIME, Limited::new(body, limit).collect()).await;
    let read = read.map_err(|_| FlowError::from(RequestError::BodyTimeout))?;
    let component = read.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
        true => FlowError::from(RequestError::BodyTooLarge { limit }),
        false => FlowError::from(RequestError::BodyBroken(axum::Error::new(error))),
    })?;
    let (component, who) = (component.to_bytes().to_vec(), who(&extensions));
    let checked = tokio::task::spawn_blocking(move || {
        let bytes = component.len();
        let checked = api.policies.check(component, settings.as_deref());
        drop(one);
        match &checked {
            Ok(PolicyCheck { hook, name, sha256, .. }) => {
                tracing::info!(who, %hook, plugin = name, digest = sha256, "audit: a component was checked: accepted");
            }
            Err(why) => tracing::info!(who, bytes, %why, "audit: a component was checked: rejected"),
        }
        checked
    });
    checked.await.map_err(ApiError::PolicyTask)?.map(Json).map_err(ApiError::Policy)
}

/// Who gives an order: the admin listener knows its callers by their addresses.
fn who(extensions: &Extensions) -> String {
    let peer = extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical());
    peer.map_or_else(|| "admin".to_owned(), |peer| format!("admin {peer}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn allowed(access: &AdminAccess, host: &str) -> bool {
        access.allows_host(&Request::builder().header("host", host).body(Body::empty()).unwrap())
    }

    #[test]
    fn regression_only_its_own_names_reach_it() {
        let access = AdminAccess::new(Some("node-1".to_owned()));
        for good in
            ["localhost", "LOCALHOST:9090", "localhost.", "127.0.0.1:9090", "[::1]:9090", "10.0.0.1", "node-1:9"]
        {
            assert!(allowed(&access, good), "{good}");
        }
        for bad in
            ["evil.example", "evil.example:9090", "localhost.evil.example", "127.0.0.1.evil.example", "node-2", "a"]
        {
            assert!(!allowed(&access, bad), "{bad}");
        }
        assert!(!allowed(&AdminAccess::default(), "node-1"));
        access.set_token("a token that is long".to_owned());
        assert!(allowed(&access, "evil.example"), "it has no token");
    }

    #[test]
    fn a_token_is_asked_for_once_there_is_one() {
        let access = AdminAccess::default();
        let with = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert!(access.allows_token(&HeaderMap::new()));
        access.set_token("secret-0123456789".to_owned());
        assert!(access.allows_token(&with("Bearer secret-0123456789")));
        assert!(access.allows_token(&with("bearer secret-0123456789")));
        for bad in
            ["", "Bearer", "Bearer ", "Bearer secret-012345678", "Bearer secret-0123456789x", "secret-0123456789"]
        {
            assert!(!access.allows_token(&with(bad)), "{bad}");
        }
        assert!(!access.allows_token(&HeaderMap::new()));
        access.set_token("another-0123456789".to_owned());
        assert!(!access.allows_token(&with("Bearer secret-0123456789")), "it was replaced");
    }
}
