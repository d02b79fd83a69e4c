//! Lists sessions, and closes one, so that its KV may be evicted.
use std::time::Duration;

use camshaft_core::ids::SessionId;
use camshaft_core::message::OpenSession;
use camshaft_core::segments::Namespace;
use crossbeam_channel::TrySendError;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::flow::api::ModelWish;
use crate::flow::backend::PoolMessage;
use crate::flow::context;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::served::Served;
use crate::wire::types::tokens::{CloseSessionRequest, ClosedSession, Session, SessionList};

/// Time for a worker to answer, which it does between two steps. Past it, the server counts as overloaded.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Body: `{"model","session_id","lora","prompt_cache_key"}`: a session is one of the adapters and the key that it was used with. Closing an unknown or closed session is no error: `closed` is false then.
///
/// # Errors
/// 400 for a bad body, 503 if no worker answers.
pub(crate) async fn close(mut incoming: Incoming) -> Result<ClosedSession, FlowError> {
    let bytes = incoming.text.len();
    let CloseSessionRequest { model, session_id, lora, prompt_cache_key } = incoming.body().await?.request;
    let session = SessionId::new(session_id.unwrap_or_default());
    let adapted = lora.as_ref().is_some_and(|list| !list.is_empty());
    let wish = ModelWish { name: model.as_deref(), session: Some(session.as_str()), falls_back: !adapted };
    let found = incoming.target(&wish, None, bytes).await?.found;
    let adapters = context::adapters(&incoming.caller, &found, lora.as_deref(), model.as_deref())?.set;
    let id = session.as_str().to_owned();
    let (reply, answer) = oneshot::channel();
    incoming.exchange.set_session(&session);
    let whole = incoming.caller.principal.namespace();
    let namespace = prompt_cache_key.map_or(whole.clone(), |key| whole.keyed(&key)).under(&adapters);
    let message = PoolMessage::CloseSession { namespace, session, reply };
    send(&found.served, message)?;
    let answer = timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| FlowError::Overloaded)?;
    let closed = answer.map_err(|_| FlowError::WorkerLost)?;
    Ok(ClosedSession { id, object: "session.closed".to_owned(), closed })
}

/// The sessions of a whole namespace, the next to expire first. One that several workers have is listed once.
///
/// # Errors
/// 400 for a model that generates nothing, 503 if no worker answers.
pub(crate) async fn list(served: &Served, namespace: Namespace) -> Result<SessionList, FlowError> {
    let (reply, answer) = oneshot::channel();
    let message = PoolMessage::ListSessions { namespace, reply };
    send(served, message)?;
    let answer = timeout(ANSWER_TIMEOUT, answer).await.map_err(|_| FlowError::Overloaded)?;
    let mut open = answer.map_err(|_| FlowError::WorkerLost)?;
    open.sort_by(|one, other| {
        let key = |session: &OpenSession| (session.namespace.clone(), session.session.as_str().to_owned());
        (key(one), other.expires_in).cmp(&(key(other), one.expires_in))
    });
    open.dedup_by(|later, kept| (&later.namespace, &later.session) == (&kept.namespace, &kept.session));
    open.sort_by_key(|session| session.expires_in);
    let one = |open: OpenSession| Session {
        id: open.session.as_str().to_owned(),
        object: "session".to_owned(),
        model: served.model.id.clone(),
        tokens: open.tokens,
        expires_in_seconds: open.expires_in.as_secs(),
        prompt_cache_key: open.namespace.key().map(str::to_owned),
        adapted: open.namespace.is_adapted(),
    };
    Ok(SessionList { object: "list".to_owned(), data: open.into_iter().map(one).collect() })
}

fn send(served: &Served, message: PoolMessage) -> Result<(), FlowError> {
    served.pool()?.try_send(message).map_err(|error| match error {
        TrySendError::Full(_) => FlowError::Overloaded,
        TrySendError::Disconnected(_) => FlowError::PoolGone,
    })
}
