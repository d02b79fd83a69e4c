//! `/admin/…`: the routes with which operators inspect and change the server.
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::flow::api::Api;
use crate::flow::control::{PolicyScan, Reloaded};
use crate::http::error::ApiError;

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
