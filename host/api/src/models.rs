//! `GET /v1/models` and `GET /v1/models/{id}`.
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use serde::Serialize;

use crate::api::Api;
use crate::auth::Caller;
use crate::backend::Model;
use crate::error::ApiError;

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

impl From<&Model> for ModelObject {
    fn from(model: &Model) -> Self {
        Self { id: model.id.clone(), object: "model", created: model.created, owned_by: "camshaft" }
    }
}

/// The models that the caller may use.
pub(crate) async fn list(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>) -> Json<ModelList> {
    let allowed = api.models.iter().filter(|model| caller.principal.may_use(&model.id));
    Json(ModelList { object: "list", data: allowed.map(ModelObject::from).collect() })
}

/// Ids may hold slashes, as the names of published models do.
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Result<Json<ModelObject>, ApiError> {
    Ok(Json(ModelObject::from(&api.model_for(&id, &caller)?.model)))
}
