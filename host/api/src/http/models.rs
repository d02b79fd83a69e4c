//! `GET /v1/models` and `GET /v1/models/{id}`.
use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::Method;
use axum::{Extension, Json};
use camshaft_core::engine::{ModelInfo, ModelKind, Reuse};
use camshaft_core::tensor::TensorSpec;
use serde::{Deserialize, Serialize};

use crate::flow::api::{Api, Listed};
use crate::flow::backend::{Backend, Model, PredictBackend};
use crate::flow::caller::Caller;
use crate::flow::catalog::Entry;
use crate::flow::error::FlowError;
use crate::flow::waiting;
use crate::http::error::ApiError;
use crate::http::paths::PREDICT_SUFFIX;
use crate::wire::tensor_objects::SpecObject;

#[derive(Debug, Serialize)]
pub(crate) struct ModelObject {
    id: String,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Of an adapter: its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
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
    /// `null`: nobody knows before it is loaded.
    task: Option<ModelKind>,
    /// As in `/admin/models`.
    state: &'static str,
    /// Of a model in memory.
    #[serde(flatten)]
    facts: Option<Facts>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Facts {
    Text(TextFacts),
    Tensors(TensorFacts),
}

/// Facts about a tensor model.
#[derive(Debug, Serialize)]
struct TensorFacts {
    format: &'static str,
    backend: String,
    inputs: Vec<SpecObject>,
    outputs: Vec<SpecObject>,
    parameters: u64,
    bytes: u64,
}

/// `GET /model/info`.
#[derive(Debug, Serialize)]
pub(crate) struct TensorModelInfo {
    name: String,
    kind: ModelKind,
    #[serde(flatten)]
    facts: TensorFacts,
}

#[derive(Debug, Serialize)]
struct TextFacts {
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

impl ModelDetails {
    fn new(model: &Model, state: &'static str) -> Self {
        let facts = match &model.backend {
            Backend::Generate(generator) => Facts::Text(TextFacts::from(&generator.text.info)),
            Backend::Embed(embedder) => Facts::Text(TextFacts::from(&embedder.text.info)),
            Backend::Predict(predictor) => Facts::Tensors(TensorFacts::from(predictor)),
        };
        Self { object: ModelObject::from(model), task: Some(model.kind()), state, facts: Some(facts) }
    }
}

impl From<&PredictBackend> for TensorFacts {
    fn from(model: &PredictBackend) -> Self {
        let specs = |specs: &[TensorSpec]| specs.iter().map(SpecObject::from).collect();
        Self {
            format: model.info.format,
            backend: model.backend().to_owned(),
            inputs: SpecObject::inputs(&model.signature),
            outputs: specs(&model.signature.outputs),
            parameters: model.info.parameters,
            bytes: model.info.weight_bytes,
        }
    }
}

impl From<&ModelInfo> for TextFacts {
    fn from(info: &ModelInfo) -> Self {
        let prefix_reuse = match (info.kind, info.reuse) {
            (ModelKind::Generate, Reuse::Ranges) => PrefixReuse::Ranges,
            _ => PrefixReuse::None,
        };
        Self {
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
        Self { id: model.id.clone(), object: "model", created: model.created, owned_by: "camshaft", parent: None }
    }
}

impl From<Listed> for ModelObject {
    fn from(Listed { name, created, parent }: Listed) -> Self {
        Self { id: name, object: "model", created, owned_by: "camshaft", parent }
    }
}

/// Lists the models that the caller may use, each before its adapters.
pub(crate) async fn list(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>) -> Json<ModelList> {
    let mut data: Vec<ModelObject> = Vec::new();
    for listed in api.names_for(&caller) {
        if data.iter().all(|other| other.id != listed.name) {
            data.push(ModelObject::from(listed));
        }
    }
    Json(ModelList { object: "list", data })
}

/// Which model `GET /model/info` describes.
#[derive(Debug, Deserialize)]
pub(crate) struct InfoQuery {
    model: Option<String>,
}

/// Describes a tensor model: the one that the query names, or the only one.
pub(crate) async fn info(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<InfoQuery>, QueryRejection>,
) -> Result<Json<TensorModelInfo>, ApiError> {
    let Query(InfoQuery { model }) = query.map_err(ApiError::Query)?;
    let find = || api.model_of_kind(model.as_deref(), ModelKind::Predict, &caller);
    let served = waiting::awake(&api, find).await?.served;
    let facts = TensorFacts::from(served.predictor()?);
    Ok(Json(TensorModelInfo { name: served.model.id.clone(), kind: ModelKind::Predict, facts }))
}

/// Describes one model. Its id may contain slashes, as the names of published models do.
pub(crate) async fn show(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Json<ModelDetails>, ApiError> {
    let Path(id) = id?;
    let found = api.model_for(&id, &caller);
    if let Err(FlowError::Asleep(id) | FlowError::ModelLoading(id) | FlowError::ModelFailed(id)) = &found
        && let Some(entry) = api.catalog().at(id)
    {
        let object = ModelObject::from(Listed { name: id.clone(), created: 0, parent: None });
        return Ok(Json(ModelDetails { object, task: entry.kind(), state: entry.state(), facts: None }));
    }
    let found = found.map_err(|error| {
        let posts = id.strip_suffix(PREDICT_SUFFIX).is_some_and(|id| api.model_for(id, &caller).is_ok());
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if posts { ApiError::MethodNotAllowed { method, path, allowed: Some(Method::POST) } } else { error.into() }
    })?;
    let model = &found.served.model;
    // One that was replaced a moment ago is what it was.
    let state = api.catalog().at(&model.id).map_or("ready", Entry::state);
    let mut details = ModelDetails::new(model, state);
    if let Some(adapter) = &found.adapter {
        details.object = ModelObject::from(Listed::of(&found.served.model.id, adapter));
    }
    Ok(Json(details))
}
