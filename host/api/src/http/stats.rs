//! `GET /server/stats` and `GET /admin/workers`: a snapshot of queues, workers and latencies.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use camshaft_core::ids::Generation;
use camshaft_core::policy::{KvTokens, PolicyStatus};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::flow::api::Api;
use crate::flow::backend::{Backend, PoolMessage};
use crate::flow::caller::Caller;
use crate::flow::readiness;
use crate::flow::recent::Percentiles;
use crate::flow::snapshot::PoolSnapshot;

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

/// The workers of every model.
pub(crate) async fn workers(State(api): State<Arc<Api>>) -> Json<Value> {
    let (mut models, catalog) = (BTreeMap::new(), api.catalog());
    for model in catalog.models() {
        models.insert(model.id.as_str(), snapshot(&model.backend).await.map(|queue| queue.workers));
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
