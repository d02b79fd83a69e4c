//! The endpoints that read a body. Each passes it to the flow and sends the flow's response.
use axum::Json;
use axum::response::Response;

use crate::flow::embeddings;
use crate::flow::generate;
use crate::flow::incoming::Incoming;
use crate::flow::request::Endpoint;
use crate::flow::session::{self, Closed};
use crate::flow::tokenize;
use crate::http::error::ApiError;

pub(crate) async fn chat(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(generate::respond(Endpoint::Chat, incoming).await?)
}

pub(crate) async fn complete(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(generate::respond(Endpoint::Completion, incoming).await?)
}

pub(crate) async fn embed(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(embeddings::respond(incoming).await?)
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
