//! The endpoints that read a body. Each passes it to the flow and sends the flow's response.
use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, Path, Request, State};
use axum::response::Response;

use crate::flow::api::Api;
use crate::flow::embeddings;
use crate::flow::generate;
use crate::flow::incoming::Incoming;
use crate::flow::predict as predictions;
use crate::flow::request::Endpoint;
use crate::flow::session::{self, Closed};
use crate::flow::tokenize;
use crate::http::error::ApiError;
use crate::http::paths::PREDICT_SUFFIX;

pub(crate) async fn chat(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(generate::respond(Endpoint::Chat, incoming).await?)
}

pub(crate) async fn complete(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(generate::respond(Endpoint::Completion, incoming).await?)
}

pub(crate) async fn embed(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(embeddings::respond(incoming).await?)
}

pub(crate) async fn predict(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(predictions::respond(incoming, None).await?)
}

/// The path names the model, whose name may contain slashes: `/v1/models/{name}/predict`.
pub(crate) async fn predict_by(
    State(api): State<Arc<Api>>,
    rest: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Response, ApiError> {
    let Path(rest) = rest?;
    let Some(model) = rest.strip_suffix(PREDICT_SUFFIX) else {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        return Err(ApiError::MethodNotAllowed { method, path });
    };
    let incoming = Incoming::from_request(request, &api).await?;
    Ok(predictions::respond(incoming, Some(model.to_owned())).await?)
}

pub(crate) async fn tokenize(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(tokenize::tokenize(incoming).await?)
}

pub(crate) async fn detokenize(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(tokenize::detokenize(incoming).await?)
}

pub(crate) async fn close_session(incoming: Incoming) -> Result<Json<Closed>, ApiError> {
    Ok(Json(session::close(incoming).await?))
}
