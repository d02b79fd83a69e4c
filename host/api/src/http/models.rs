//! `GET /v1/models`, `GET /v1/models/{id}` and `GET /v1/sessions`.
use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::Method;
use axum::{Extension, Json};
use camshaft_core::engine::{ModelInfo, ModelKind, Reuse};
use camshaft_core::tensor::TensorSpec;
use serde::Deserialize;

use crate::flow::api::{self, Api, Caller, Listed};
use crate::flow::backend::{Backend, GenerateBackend, PredictBackend};
use crate::flow::catalog::{Entry, Served};
use crate::flow::error::FlowError;
use crate::flow::notation::Notation;
use crate::flow::tokens;
use crate::http::error::ApiError;
use crate::http::paths::PREDICT_SUFFIX;
use crate::wire::tensor_objects::SpecObject;
use crate::wire::types::models::{
    Facts, Model, ModelDetails, ModelList, PrefixReuse, TensorFacts, TensorModelInfo, TextFacts,
};
use crate::wire::types::tokens::SessionList;

impl ModelDetails {
    fn of(served: &Served, state: &'static str) -> Self {
        let (model, notation) = (&served.model, served.notation().ok());
        let facts = match &model.backend {
            Backend::Generate(generator) => Facts::Text(TextFacts {
                capabilities: capabilities(generator, notation.is_some_and(Notation::thinks)),
                family: notation.map(|notation| notation.family.name.to_owned()),
                sampling: Some(generator.sampling().into()),
                ..TextFacts::from(&generator.text.info)
            }),
            Backend::Embed(embedder) => Facts::Text(TextFacts::from(&embedder.text.info)),
            Backend::Predict(predictor) => Facts::Tensors(TensorFacts::from(predictor)),
        };
        let object = Model::new(model.id.clone(), model.created, None, model.context());
        Self { model: object, task: Some(model.kind()), state: state.to_owned(), facts: Some(facts) }
    }
}

/// What requests may ask of a model that generates.
fn capabilities(generator: &GenerateBackend, thinks: bool) -> Vec<String> {
    let infill = generator.text.info.infill.is_some();
    let all = [
        ("chat", true),
        ("completions", true),
        ("tools", true),
        ("structured_outputs", true),
        ("reasoning", thinks),
        ("logprobs", true),
        ("infill", infill),
        ("adapters", generator.adapters.can_load()),
        ("sessions", true),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name.to_owned()).collect()
}

impl From<&PredictBackend> for TensorFacts {
    fn from(model: &PredictBackend) -> Self {
        let specs = |specs: &[TensorSpec]| specs.iter().map(SpecObject::from).collect();
        Self {
            format: model.info.format.clone().into_owned(),
            backend: model.backend().into_owned(),
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
            quantization: info.quantization.clone(),
            prefix_reuse,
            chat_template: info.chat_template.is_some(),
            capabilities: vec!["embeddings".to_owned()],
            family: None,
            sampling: None,
        }
    }
}

impl From<Listed> for Model {
    fn from(Listed { name, created, parent, context }: Listed) -> Self {
        Self::new(name, created, parent, context)
    }
}

/// Lists the models that the caller may use, each before its adapters.
pub(crate) async fn list(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>) -> Json<ModelList> {
    let mut data: Vec<Model> = Vec::new();
    for listed in api.names_for(&caller) {
        if data.iter().all(|other| other.id != listed.name) {
            data.push(Model::from(listed));
        }
    }
    Json(ModelList { object: "list".to_owned(), data })
}

/// Which model `GET /model/info` describes, and whose sessions `GET /v1/sessions` lists.
#[derive(Debug, Deserialize)]
pub(crate) struct ModelQuery {
    model: Option<String>,
}

/// Describes a tensor model: the one that the query names, or the only one.
pub(crate) async fn info(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<ModelQuery>, QueryRejection>,
) -> Result<Json<TensorModelInfo>, ApiError> {
    let Query(ModelQuery { model }) = query.map_err(ApiError::Query)?;
    let find = || api.model_of_kind(model.as_deref(), ModelKind::Predict, &caller);
    let served = api::awake(&api, find).await?.served;
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
        let (model, state) = (Model::new(id.clone(), 0, None, None), entry.state().to_owned());
        return Ok(Json(ModelDetails { model, task: entry.kind(), state, facts: None }));
    }
    let found = found.map_err(|error| {
        let posts = id.strip_suffix(PREDICT_SUFFIX).is_some_and(|id| api.model_for(id, &caller).is_ok());
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if posts { ApiError::MethodNotAllowed { method, path, allowed: Some(Method::POST) } } else { error.into() }
    })?;
    let model = &found.served.model;
    // One that was replaced a moment ago is what it was.
    let state = api.catalog().at(&model.id).map_or("ready", Entry::state);
    let mut details = ModelDetails::of(&found.served, state);
    if let Some(adapter) = &found.adapter {
        details.model = Model::from(Listed::of(&model.id, adapter, model.context()));
    }
    Ok(Json(details))
}

/// Lists the sessions of the caller's namespace that a model has: the one that the query names, or the only one.
pub(crate) async fn sessions(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    query: Result<Query<ModelQuery>, QueryRejection>,
) -> Result<Json<SessionList>, ApiError> {
    let Query(ModelQuery { model }) = query.map_err(ApiError::Query)?;
    let served = api.model_of_kind(model.as_deref(), ModelKind::Generate, &caller)?.served;
    Ok(Json(tokens::list(&served, caller.principal.namespace()).await?))
}
