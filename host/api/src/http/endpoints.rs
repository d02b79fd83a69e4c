//! The endpoints that read a body. Each passes it to the flow and sends the flow's response.
use axum::Json;
use axum::response::Response;

use crate::flow::embeddings;
use crate::flow::generate;
use crate::flow::incoming::Incoming;
use crate::flow::request::Endpoint;
use crate::flow::session::{self, Closed};
use crate::flow::tokenize::{self, Detokenized, Tokenized};
use crate::http::error::ApiError;
use crate::wire::embeddings::Embeddings;

pub(crate) async fn chat(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(generate::respond(Endpoint::Chat, incoming).await?)
}

pub(crate) async fn complete(incoming: Incoming) -> Result<Response, ApiError> {
    Ok(generate::respond(Endpoint::Completion, incoming).await?)
}

pub(crate) async fn embed(incoming: Incoming) -> Result<Json<Embeddings>, ApiError> {
    Ok(Json(embeddings::respond(incoming).await?))
}

pub(crate) async fn tokenize(incoming: Incoming) -> Result<Json<Tokenized>, ApiError> {
    Ok(Json(tokenize::tokenize(incoming).await?))
}

pub(crate) async fn detokenize(mut incoming: Incoming) -> Result<Json<Detokenized>, ApiError> {
    Ok(Json(tokenize::detokenize(&mut incoming)?))
}

pub(crate) async fn close_session(incoming: Incoming) -> Result<Json<Closed>, ApiError> {
    Ok(Json(session::close(&incoming).await?))
}
