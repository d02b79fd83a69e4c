//! Liveness, readiness and metrics.
use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::{Extension, Json};
use prometheus::{TEXT_FORMAT, TextEncoder};
use serde_json::{Value, json};

use crate::flow::api::Api;
use crate::flow::caller::Caller;
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
