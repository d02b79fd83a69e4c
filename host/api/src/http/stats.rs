//! `GET /server/stats` and `GET /admin/workers`: a snapshot of queues, workers and latencies.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use camshaft_core::ids::Generation;
use camshaft_core::policy::{KvTokens, PolicyStatus};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::flow::api::Api;
use crate::flow::backend::{Backend, PoolMessage, PoolSnapshot};
use crate::flow::readiness;
use crate::flow::recent::Percentiles;

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
}

pub(crate) async fn stats(State(api): State<Arc<Api>>) -> Json<Stats> {
    let now = Instant::now();
    let mut models = BTreeMap::new();
    for model in &api.models {
        let queue = snapshot(&model.backend).await;
        let workers = || queue.iter().flat_map(|queue| &queue.workers);
        // The free KV in a worker's facts is lower than the actual one while a request waits inside the worker.
        let latencies = api.metrics.latencies(&model.id);
        let stats = ModelStats {
            tokens_per_second: workers().map(|worker| worker.tokens_per_second).sum(),
            kv_tokens: KvTokens::of(workers()),
            time_to_first_token_seconds: latencies.first_token.percentiles(now),
            inter_token_latency_seconds: latencies.between_tokens.percentiles(now),
            queue,
        };
        models.insert(model.id.clone(), stats);
    }
    Json(Stats {
        state: api.readiness.state(),
        models,
        policy_generation: api.policies.current().generation(),
        policies: api.policies.status(),
        version: env!("CARGO_PKG_VERSION"),
    })
}

/// The workers of every model.
pub(crate) async fn workers(State(api): State<Arc<Api>>) -> Json<Value> {
    let mut models = BTreeMap::new();
    for model in &api.models {
        models.insert(model.id.as_str(), snapshot(&model.backend).await.map(|queue| queue.workers));
    }
    Json(json!({ "models": models }))
}

async fn snapshot(backend: &Backend) -> Option<PoolSnapshot> {
    let Backend::Generate(pool) = backend else { return None };
    let (reply, answer) = oneshot::channel();
    pool.try_send(PoolMessage::Snapshot(reply)).ok()?;
    timeout(ANSWER_TIMEOUT, answer).await.ok()?.ok()
}
