//! `/admin/…`: the routes with which operators inspect and change the server.
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use camshaft_core::engine::ModelKind;
use serde::Serialize;
use serde_json::{Value, json};

use crate::flow::api::Api;
use crate::flow::backend::{Backend, EmbedBackend, GenerateBackend, Model, PredictBackend};
use crate::flow::control::{PolicyScan, Reloaded};
use crate::http::error::ApiError;

#[derive(Debug, Serialize)]
pub(crate) struct ModelReport {
    models: Vec<ModelEntry>,
}

#[derive(Debug, Serialize)]
struct ModelEntry {
    id: String,
    name: String,
    kind: ModelKind,
    created: u64,
    sha256: Option<String>,
    parameters: u64,
    weight_bytes: u64,
    #[serde(flatten)]
    text: Option<TextEntry>,
}

/// Of a model that reads texts.
#[derive(Debug, Serialize)]
struct TextEntry {
    context_tokens: u32,
    trained_context_tokens: u32,
    vocabulary_tokens: usize,
    chat_template: bool,
}

impl From<&Model> for ModelEntry {
    fn from(model: &Model) -> Self {
        let (name, sha256, parameters, weight_bytes) = match &model.backend {
            Backend::Generate(GenerateBackend { text, .. }) | Backend::Embed(EmbedBackend { text, .. }) => {
                let info = &text.info;
                (&info.name, &info.sha256, info.parameters, info.weight_bytes)
            }
            Backend::Predict(PredictBackend { info, .. }) => {
                (&info.name, &info.sha256, info.parameters, info.weight_bytes)
            }
        };
        let text = model.text().map(|text| TextEntry {
            context_tokens: text.info.context_tokens,
            trained_context_tokens: text.info.trained_context_tokens,
            vocabulary_tokens: text.info.vocabulary.size(),
            chat_template: text.info.chat_template.is_some(),
        });
        Self {
            id: model.id.clone(),
            name: name.clone(),
            kind: model.kind(),
            created: model.created,
            sha256: sha256.clone(),
            parameters,
            weight_bytes,
            text,
        }
    }
}

pub(crate) async fn models(State(api): State<Arc<Api>>) -> Json<ModelReport> {
    Json(ModelReport { models: api.models.iter().map(ModelEntry::from).collect() })
}

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
