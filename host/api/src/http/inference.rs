//! The endpoints of the Open Inference Protocol, `/v2`.
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::Method;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::flow::api::{self, Api, Caller};
use crate::flow::backend::PredictBackend;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::predict::{self, Protocol};
use crate::http::body;
use crate::http::error::ApiError;
use crate::http::paths::{Asks, ModelPath, PREDICT_SUFFIX};
use crate::wire::open_inference::{IndexedModel, ModelMetadata, ServerMetadata, VERSION};
use crate::wire::tensor_objects::SpecObject;

pub(crate) async fn predict(incoming: Incoming) -> Result<Response, FlowError> {
    predict::respond(incoming, None, Protocol::Own).await
}

/// The path names the model, whose name may contain slashes: `/v1/models/{name}/predict`.
pub(crate) async fn predict_by(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    rest: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let Path(rest) = rest?;
    let Some(model) = rest.strip_suffix(PREDICT_SUFFIX) else {
        // Of no model, there is nothing to get, either.
        api.model_for(&rest, &caller)?;
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        return Err(ApiError::MethodNotAllowed { method, path, allowed: Some(Method::GET) });
    };
    let incoming = Incoming::from_request(request, &api).await?;
    Ok(predict::respond(incoming, Some(model.to_owned()), Protocol::Own).await?)
}

pub(crate) async fn live() -> Json<Value> {
    Json(json!({"live": true}))
}

/// As `/readyz`.
pub(crate) async fn ready(State(api): State<Arc<Api>>) -> Result<Json<Value>, FlowError> {
    api.ready().map(|()| Json(json!({"ready": true})))
}

pub(crate) async fn server() -> Json<ServerMetadata> {
    Json(ServerMetadata::OWN)
}

/// Lists the models that the caller may use. The request's body is not read: all are listed, ready or not.
pub(crate) async fn index(State(api): State<Arc<Api>>, Extension(caller): Extension<Caller>) -> Response {
    let states: Vec<(String, Result<(), FlowError>)> = api.states_for(&caller);
    let model = |(name, serves): &'_ (String, Result<(), FlowError>)| -> Value {
        let state = if serves.is_ok() { "READY" } else { "UNAVAILABLE" };
        let reason = serves.as_ref().err().map_or(String::new(), ToString::to_string);
        json!(IndexedModel { name, version: VERSION, state, reason })
    };
    Json(states.iter().map(model).collect::<Vec<_>>()).into_response()
}

/// What a model takes and gives, or whether it is ready.
pub(crate) async fn describe(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    rest: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let Path(rest) = rest?;
    let path = ModelPath::read(&rest);
    let find = || api.model_for(path.name, &caller);
    let found = match find() {
        Err(FlowError::Asleep(_)) => None,
        found => Some(found?),
    };
    check_version(&path)?;
    match path.asks {
        Asks::Infer => Err(not_allowed(&request, Method::POST)),
        Asks::Ready => {
            // Requests wait for one that sleeps.
            found.map_or(Ok(()), |found| found.served.serves())?;
            Ok(Json(json!({"name": path.name, "ready": true})).into_response())
        }
        Asks::Metadata => {
            let served = api::awake(&api, find).await?.served;
            Ok(Json(metadata(path.name, served.predictor()?)).into_response())
        }
    }
}

pub(crate) async fn infer(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    rest: Result<Path<String>, PathRejection>,
    mut request: Request,
) -> Result<Response, ApiError> {
    let Path(rest) = rest?;
    let path = ModelPath::read(&rest);
    match api.model_for(path.name, &caller) {
        // It is woken once the body has been read.
        Ok(_) | Err(FlowError::Asleep(_)) => {}
        Err(error) => return Err(error.into()),
    }
    check_version(&path)?;
    if path.asks != Asks::Infer {
        return Err(not_allowed(&request, Method::GET));
    }
    let incoming = body::open_inference(&mut request, &api).await?;
    Ok(predict::respond(incoming, Some(path.name.to_owned()), Protocol::OpenInference).await?)
}

fn metadata<'a>(name: &'a str, model: &PredictBackend) -> ModelMetadata<'a> {
    let specs = |specs: &[camshaft_core::tensor::TensorSpec]| specs.iter().map(SpecObject::from).collect();
    ModelMetadata {
        name,
        versions: [VERSION],
        // Without the name of a device, which is in parentheses.
        platform: format!("{}_{}", model.backend().split(' ').next().unwrap_or_default(), model.info.format),
        inputs: SpecObject::inputs(&model.signature),
        outputs: specs(&model.signature.outputs),
    }
}

fn check_version(path: &ModelPath<'_>) -> Result<(), ApiError> {
    match path.version {
        Some(version) if version != VERSION => {
            Err(ApiError::UnknownVersion { model: path.name.to_owned(), version: version.to_owned() })
        }
        _ => Ok(()),
    }
}

fn not_allowed(request: &Request, allowed: Method) -> ApiError {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    ApiError::MethodNotAllowed { method, path, allowed: Some(allowed) }
}
