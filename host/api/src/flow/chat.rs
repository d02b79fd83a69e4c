//! `POST /v1/chat/completions`.
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::response::Response;
use camshaft_core::limits;
use serde_json::{Map, Value};

use crate::flow::api::Api;
use crate::flow::request::{self, Context, Endpoint, GenerationRequest};
use crate::flow::template;
use crate::http::auth::Caller;
use crate::wire::error::ApiError;
use crate::wire::fields::Fields;
use crate::wire::messages;

pub(crate) async fn complete(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Response, ApiError> {
    request::complete(Endpoint::Chat, api, caller, request).await
}

/// # Errors
/// 400, 403 or 404 for what is wrong with the body.
pub(crate) fn parse(context: Context<'_>, body: &Map<String, Value>) -> Result<GenerationRequest, ApiError> {
    let fields = Fields::of_body(body);
    let served = context.api.model_of(&fields, context.caller)?;
    served.pool()?;
    let messages = messages::read(&fields)?;
    let settings = context.settings(&fields, served)?;
    let logprobs = logprobs(&fields)?;
    let no_variables = Map::new();
    let variables = fields.object("chat_template_kwargs")?.unwrap_or(&no_variables);
    let tokens = template::tokens(&served.model, &served.template, &messages, variables)?;
    let prompt = context.prompt(tokens, served, &settings, "messages")?;
    GenerationRequest { endpoint: Endpoint::Chat, served: served.clone(), prompts: vec![prompt], settings, logprobs }
        .check_choices()
}

/// `logprobs` switches them on, `top_logprobs` says how many alternatives come with each token.
fn logprobs(fields: &Fields<'_>) -> Result<Option<u32>, ApiError> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", limits::TOP_LOGPROBS)?;
    match (wanted, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::param("top_logprobs", "top_logprobs is only allowed when logprobs is true")),
    }
}
