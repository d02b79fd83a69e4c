//! `GET /server/stats`: what is going on, for people and scripts.
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::flow::api::Api;
use crate::flow::backend::{Backend, PoolMessage, PoolSnapshot};

/// How far back percentiles look, and how many values they look at.
const SPAN: Duration = Duration::from_secs(60);
const VALUES: usize = 8192;
/// A pool that does not answer by then is left out.
const PATIENCE: Duration = Duration::from_millis(500);

/// The latest values of a latency.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recent(Arc<Mutex<VecDeque<(Instant, f32)>>>);

/// Over the last minute, of at most the last 8192 values, in seconds; `null` without any.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Percentiles {
    count: usize,
    p50: Option<f32>,
    p90: Option<f32>,
    p99: Option<f32>,
}

impl Recent {
    pub(crate) fn note(&self, at: Instant, seconds: f64) {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if values.len() == VALUES {
            values.pop_front();
        }
        values.push_back((at, seconds as f32));
    }

    fn percentiles(&self, now: Instant) -> Percentiles {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = values.iter().filter(|(at, _)| now.saturating_duration_since(*at) <= SPAN);
        let mut sorted: Vec<f32> = fresh.map(|(_, seconds)| *seconds).collect();
        drop(values);
        sorted.sort_by(f32::total_cmp);
        let at =
            |share: f64| sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().max(1) - 1)).copied();
        Percentiles { count: sorted.len(), p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}

#[derive(Debug, Serialize)]
struct ModelStats {
    queue: Option<PoolSnapshot>,
    tokens_per_second: f32,
    kv_tokens: BTreeMap<&'static str, u64>,
    time_to_first_token_seconds: Percentiles,
    inter_token_latency_seconds: Percentiles,
}

pub(crate) async fn stats(State(api): State<Arc<Api>>) -> Json<Value> {
    let now = Instant::now();
    let mut models = BTreeMap::new();
    for model in &api.models {
        let queue = snapshot(&model.backend).await;
        let workers = || queue.iter().flat_map(|queue| &queue.workers);
        let free: u64 = workers().map(|worker| u64::from(worker.kv_free)).sum();
        let total: u64 = workers().map(|worker| u64::from(worker.kv_total)).sum();
        let (first, between) = api.metrics.recent(&model.id);
        let stats = ModelStats {
            tokens_per_second: workers().map(|worker| worker.tokens_per_second).sum(),
            kv_tokens: BTreeMap::from([("free", free), ("held", total - free), ("total", total)]),
            time_to_first_token_seconds: first.percentiles(now),
            inter_token_latency_seconds: between.percentiles(now),
            queue,
        };
        models.insert(model.id.as_str(), stats);
    }
    let policies = api.policies.status();
    Json(json!({
        "state": format!("{:?}", api.readiness.state()).to_lowercase(),
        "models": models,
        "policy_generation": api.policies.current().generation(),
        "policies": policies,
        "version": env!("CARGO_PKG_VERSION"),
    }))
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
    timeout(PATIENCE, answer).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_last_minute_and_bounded() {
        let recent = Recent::default();
        let begun = Instant::now();
        assert_eq!(recent.percentiles(begun).p50, None);
        recent.note(begun, 1000.0);
        let later = begun + SPAN + Duration::from_millis(1);
        (1..=100).for_each(|n| recent.note(later, f64::from(n)));
        let found = recent.percentiles(later);
        assert_eq!((found.count, found.p50, found.p90, found.p99), (100, Some(51.0), Some(91.0), Some(100.0)));
        (0..VALUES).for_each(|_| recent.note(later, 7.0));
        let found = recent.percentiles(later);
        assert_eq!((found.count, found.p99), (VALUES, Some(7.0)));
    }
}
