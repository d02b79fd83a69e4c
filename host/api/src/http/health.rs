//! Liveness, readiness and metrics, and what both listeners answer while the server loads or has no memory for a request.
use std::fmt::Write as _;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Json, Router};
use prometheus::proto::MetricFamily;
use prometheus::{TEXT_FORMAT, TextEncoder};
use serde_json::{Map, Value, json};

use crate::flow::api::{Api, Caller};
use crate::flow::error::FlowError;
use crate::flow::readiness::Readiness;
use crate::http::error::{ApiError, ErrorShape};
use crate::http::{head, inference, paths, routes};

/// 200 as long as the process can answer, with the time since it began and the state of each model.
pub(crate) async fn alive(State(api): State<Arc<Api>>) -> Json<Value> {
    let models: Map<String, Value> = api.catalog().entries().map(|entry| (entry.id(), entry.state().into())).collect();
    Json(json!({"status": "ok", "uptime_seconds": api.readiness.uptime().as_secs(), "models": models}))
}

/// The same while the server loads, and nobody knows its models yet.
pub(crate) async fn alive_loading(State(readiness): State<Arc<Readiness>>) -> Json<Value> {
    Json(json!({"status": "ok", "uptime_seconds": readiness.uptime().as_secs(), "models": {}}))
}

/// 200 only while the server admits requests, has memory for more, and every model is up.
pub(crate) async fn ready(State(api): State<Arc<Api>>) -> Result<Json<Value>, FlowError> {
    api.ready().map(|()| Json(json!({"status": "ready"})))
}

/// Renders the registry in Prometheus' text format.
///
/// # Errors
/// 403 for a caller on the public listener who is no operator: figures name other tenants, models and policies.
pub(crate) async fn metrics(
    State(api): State<Arc<Api>>,
    caller: Option<Extension<Caller>>,
) -> Result<impl IntoResponse, ApiError> {
    if caller.is_some_and(|caller| !caller.operator) {
        return Err(ApiError::OperatorsOnly);
    }
    let families = api.registry.gather();
    let mut text = TextEncoder::new().encode_to_string(&families).map_err(ApiError::Metrics)?;
    if api.vllm_aliases {
        write_aliases(&families, &mut text);
    }
    Ok(([(CONTENT_TYPE, TEXT_FORMAT)], text))
}

/// For clients that look whether there is a server before they ask it anything.
pub(crate) async fn root() -> &'static str {
    "Camshaft\n"
}

/// The server is alive, so that nobody ends it for being slow; everything else may come again, and is told how far it is.
/// Pages of these origins are told, too.
pub fn loading_router(readiness: Arc<Readiness>, cors_origins: &[String]) -> Router {
    let alive = |router: Router<_>, path: &&str| {
        let handler = if paths::is_under(path) { get(inference::live) } else { get(alive_loading) };
        router.route(path, handler.fallback(not_ready))
    };
    let routes = routes::ALIVE.iter().fold(Router::new(), alive).fallback(not_ready);
    head::allow_origins(routes, cors_origins).layer(from_fn(name)).with_state(readiness)
}

async fn not_ready(State(readiness): State<Arc<Readiness>>) -> FlowError {
    FlowError::NotReady(readiness.loading())
}

/// Gives the response its request's id, and an error the shape of its protocol.
async fn name(request: Request, next: Next) -> Response {
    let id = head::request_id(request.headers());
    let shape = ErrorShape::of(request.uri().path());
    let mut response = next.run(request).await;
    shape.finish(&id, &mut response);
    response
}

/// Our name, vLLM's name, and the help text.
const ALIASES: [(&str, &str, &str); 3] = [
    ("camshaft_requests_waiting", "vllm:num_requests_waiting", "Requests in the queue."),
    ("camshaft_requests_running", "vllm:num_requests_running", "Requests on a worker."),
    ("camshaft_kv_usage_ratio", "vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1."),
];

/// Appends the aliases of the gathered metrics, in Prometheus' text format.
pub(crate) fn write_aliases(families: &[MetricFamily], out: &mut String) {
    for (ours, theirs, help) in ALIASES {
        let Some(family) = families.iter().find(|family| family.name() == ours) else { continue };
        // Writing into a string never fails.
        let _ = writeln!(out, "# HELP {theirs} {help}\n# TYPE {theirs} gauge");
        for metric in family.get_metric() {
            let model = metric.get_label().iter().find(|label| label.name() == "model");
            let model = model.map_or("", |label| label.value()).replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(out, "{theirs}{{model_name=\"{model}\"}} {}", metric.get_gauge().get_value());
        }
    }
}
