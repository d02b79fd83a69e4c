//! The endpoints that read a body. Each passes it to the flow and sends the flow's response.
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequest, Path, Request, State};
use axum::http::Method;
use axum::response::Response;
use axum::{Extension, Json};

use crate::flow::api::Api;
use crate::flow::caller::Caller;
use crate::flow::embeddings;
use crate::flow::generate;
use crate::flow::incoming::Incoming;
use crate::flow::predict::{self as predictions, Protocol};
use crate::flow::ranking;
use crate::flow::rendered;
use crate::flow::session;
use crate::flow::tokenize;
use crate::http::error::ApiError;
use crate::http::paths::PREDICT_SUFFIX;
use crate::wire::dialect::{Dialect, Framing};
use crate::wire::types::tokens::ClosedSession;

pub(crate) async fn chat(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(generate::respond(Dialect::Chat, incoming).await?)
}

pub(crate) async fn complete(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(generate::respond(Dialect::Completions, incoming).await?)
}

/// OpenAI's Responses API.
pub(crate) async fn respond(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(generate::respond(Dialect::Responses, incoming).await?)
}

/// Anthropic's Messages API.
pub(crate) async fn message(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(generate::respond(Dialect::Messages, incoming).await?)
}

pub(crate) async fn generate(incoming: Incoming) -> Result<Response, ApiError> {
    let framing = Framing::of(&incoming.headers);
    Ok(generate::respond(Dialect::Native(framing), incoming).await?)
}

pub(crate) async fn rerank(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(ranking::rank(incoming).await?)
}

pub(crate) async fn score(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(ranking::score(incoming).await?)
}

pub(crate) async fn template(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(rendered::template(incoming).await?)
}

/// Anthropic's.
pub(crate) async fn count_message(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(rendered::count_message(incoming).await?)
}

/// OpenAI's.
pub(crate) async fn count_response(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(rendered::count_response(incoming).await?)
}

pub(crate) async fn embed(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(embeddings::respond(incoming).await?)
}

pub(crate) async fn predict(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(predictions::respond(incoming, None, Protocol::Own).await?)
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
    Ok(predictions::respond(incoming, Some(model.to_owned()), Protocol::Own).await?)
}

pub(crate) async fn tokenize(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(tokenize::tokenize(incoming).await?)
}

pub(crate) async fn detokenize(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(tokenize::detokenize(incoming).await?)
}

pub(crate) async fn close_session(incoming: Incoming) -> Result<Json<ClosedSession>, ApiError> {
    Ok(Json(session::close(incoming).await?))
}
