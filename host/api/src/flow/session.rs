//! Closes a session, so that its KV may be evicted.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::adapters::AdapterSet;
use camshaft_core::ids::SessionId;
use crossbeam_channel::TrySendError;
use serde::Serialize;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::flow::backend::PoolMessage;
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::served::Served;
use crate::wire::error::RequestError;
use crate::wire::{json, params};

/// Time for a worker to answer, which it does between two steps. Past it, the server counts as overloaded.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Serialize)]
pub(crate) struct Closed {
    id: String,
    object: &'static str,
    /// Whether there was such a session.
    closed: bool,
}

/// Body: `{"model","session_id","lora"}`: a session is one of the adapters that it was used with. Closing an unknown or closed session is no error: `closed` is false then.
///
/// # Errors
/// 400 for a bad body, 503 if no worker answers.
pub(crate) async fn close(mut incoming: Incoming) -> Result<Closed, FlowError> {
    let (served, session, adapters) = incoming.read(None, read).await?;
    let id = session.as_str().to_owned();
    let (reply, answer) = oneshot::channel();
    let namespace = incoming.caller.principal.namespace().under(&adapters);
    let message = PoolMessage::CloseSession { namespace, session, reply };
    served.pool()?.try_send(message).map_err(|error| match error {
        TrySendError::Full(_) => FlowError::Overloaded,
        TrySendError::Disconnected(_) => FlowError::PoolGone,
    })?;
    let answer = timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| FlowError::Overloaded)?;
    let closed = answer.map_err(|_| FlowError::WorkerLost)?;
    Ok(Closed { id, object: "session.closed", closed })
}

fn read(context: ParseContext<'_>, text: &str) -> Result<(Arc<Served>, SessionId, AdapterSet), FlowError> {
    let body = json::parse(text)?;
    let fields = body.fields();
    let served = &context.model(&fields)?;
    let required = || RequestError::field("session_id", "session_id is required");
    let adapters = context.adapters(&fields, served)?;
    Ok((served.clone(), params::session(&fields)?.ok_or_else(required)?, adapters.set))
}
