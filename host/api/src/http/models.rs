//! `GET /v1/models` and `GET /v1/models/{id}`.
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::{Extension, Json};
use camshaft_core::engine::{ModelKind, Reuse};
use serde::Serialize;

use crate::flow::api::Api;
use crate::flow::backend::Model;
use crate::flow::caller::Caller;
use crate::http::error::ApiError;

#[derive(Debug, Serialize)]
pub(crate) struct ModelObject {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
}

#[derive(Debug, Serialize)]
pub(crate) struct ModelList {
    object: &'static str,
    data: Vec<ModelObject>,
}

/// Facts about a model beyond OpenAI's shape.
#[derive(Debug, Serialize)]
pub(crate) struct ModelDetails {
    #[serde(flatten)]
    object: ModelObject,
    task: ModelKind,
    /// Maximum of prompt and output of a request together, or of one input, in tokens.
    context_tokens: u32,
    trained_context_tokens: u32,
    vocabulary_tokens: usize,
    parameters: u64,
    prefix_reuse: PrefixReuse,
    chat_template: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum PrefixReuse {
    /// A prefix that several requests share is computed once.
    Ranges,
    /// Prefixes are not reused: the model's state does not allow it.
    None,
}

impl From<&Model> for ModelDetails {
    fn from(model: &Model) -> Self {
        let info = &model.info;
        let prefix_reuse = match (info.kind, info.reuse) {
            (ModelKind::Generate, Reuse::Ranges) => PrefixReuse::Ranges,
            _ => PrefixReuse::None,
        };
        Self {
            object: ModelObject::from(model),
            task: info.kind,
            context_tokens: info.context_tokens,
            trained_context_tokens: info.trained_context_tokens,
            vocabulary_tokens: info.vocabulary.size(),
            parameters: info.parameters,
            prefix_reuse,
            chat_template: info.chat_template.is_some(),
        }
    }
}

impl From<&Model> for ModelObject {
    fn from(model: &Model) -> Self {
        Self { id: model.id.clone(), object: "model", created: model.created, owned_by: "camshaft" }
    }
}

/// Lists the models that the caller may use.
pub(crate) async fn list(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>) -> Json<ModelList> {
    let allowed = api.models.iter().filter(|model| caller.principal.may_use(&model.id));
    Json(ModelList { object: "list", data: allowed.map(ModelObject::from).collect() })
}

/// Describes one model. Its id may contain slashes, as the names of published models do.
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<ModelDetails>, ApiError> {
    let Path(id) = id?;
    Ok(Json(ModelDetails::from(&api.model_for(&id, &caller)?.model)))
}
