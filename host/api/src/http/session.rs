//! `POST /v1/session/close`: a conversation is over.
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::{Extension, Json};
use crossbeam_channel::TrySendError;
use serde::Serialize;

use crate::flow::api::Api;
use crate::flow::backend::PoolMessage;
use crate::http::auth::Caller;
use crate::http::body;
use crate::wire::error::ApiError;
use crate::wire::fields::Fields;
use crate::wire::params;

#[derive(Debug, Serialize)]
pub(crate) struct Closed {
    id: String,
    object: &'static str,
    closed: bool,
}

/// `{"model","session_id"}`. Closing a session that is unknown, or closed already, is no error.
pub(crate) async fn close(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Closed>, ApiError> {
    let body = body::parse(&body::read(request, api.limits().body_bytes).await?)?;
    let fields = Fields::of_body(&body);
    let served = api.model_of(&fields, &caller)?;
    let required = || ApiError::param("session_id", "session_id is required");
    let session = params::session(&fields)?.ok_or_else(required)?;
    let id = session.as_str().to_owned();
    let message = PoolMessage::CloseSession { namespace: caller.principal.namespace(), session };
    served.pool()?.try_send(message).map_err(|error| match error {
        TrySendError::Full(_) => ApiError::Overloaded,
        TrySendError::Disconnected(_) => ApiError::PoolGone,
    })?;
    Ok(Json(Closed { id, object: "session.closed", closed: true }))
}
