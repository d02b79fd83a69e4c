//! Liveness, readiness and metrics.
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use prometheus::{TEXT_FORMAT, TextEncoder};
use serde_json::{Value, json};

use crate::flow::api::Api;
use crate::flow::error::FlowError;
use crate::http::aliases;
use crate::http::error::ApiError;

/// 200 as long as the process can answer.
pub(crate) async fn alive() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// 200 only while the server admits requests and every model is up.
pub(crate) async fn ready(State(api): State<Arc<Api>>) -> Result<Json<Value>, FlowError> {
    api.readiness.ready().map(|()| Json(json!({"status": "ready"})))
}

/// Renders the registry in Prometheus' text format.
pub(crate) async fn metrics(State(api): State<Arc<Api>>) -> Result<impl IntoResponse, ApiError> {
    let families = api.registry.gather();
    let mut text = TextEncoder::new().encode_to_string(&families).map_err(ApiError::Metrics)?;
    if api.vllm_aliases {
        aliases::write(&families, &mut text);
    }
    Ok(([(CONTENT_TYPE, TEXT_FORMAT)], text))
}
