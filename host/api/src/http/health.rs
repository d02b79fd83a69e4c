//! Liveness, readiness and metrics.
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use prometheus::{TEXT_FORMAT, TextEncoder};
use serde_json::{Map, Value, json};

use crate::flow::api::Api;
use crate::flow::caller::Caller;
use crate::flow::error::FlowError;
use crate::flow::readiness::Readiness;
use crate::http::aliases;
use crate::http::error::ApiError;

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
        aliases::write(&families, &mut text);
    }
    Ok(([(CONTENT_TYPE, TEXT_FORMAT)], text))
}

/// For clients that look whether there is a server before they ask it anything.
pub(crate) async fn root() -> &'static str {
    "Camshaft\n"
}
