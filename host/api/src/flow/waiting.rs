//! Waits within a request's deadline; wakes sleeping models.
use std::time::Instant;

use camshaft_core::message::WorkerError;
use tokio::time::timeout_at;

use crate::flow::api::{Api, Found};
use crate::flow::error::FlowError;

/// # Errors
/// 504: the deadline passes first.
pub(crate) async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Result<T, FlowError> {
    match deadline {
        Some(deadline) => Ok(timeout_at(deadline.into(), work).await.map_err(|_| WorkerError::DeadlineExceeded)?),
        None => Ok(work.await),
    }
}

/// Waits until a model that sleeps is in memory.
///
/// # Errors
/// It cannot be loaded, or the deadline passes.
pub(crate) async fn wake(api: &Api, model: String, deadline: Option<Instant>) -> Result<(), FlowError> {
    let refused = |why: String| FlowError::NotWoken { model: model.clone(), why };
    let woken = api.life.wake(&model).map_err(|refusal| refused(refusal.to_string()))?;
    within(deadline, woken).await?.map_err(|_| FlowError::PoolGone)?.map_err(refused)
}

/// Has a model load that another one stands in for, if it sleeps. Nobody waits for it.
pub(crate) fn wake_meanwhile(api: &Api, model: &str) {
    if api.catalog().at(model).is_some_and(|entry| entry.wakes())
        && let Err(refusal) = api.life.wake(model)
    {
        tracing::debug!(model, %refusal, "the model is not woken");
    }
}

/// What `find` finds, once it is in memory if it sleeps.
///
/// # Errors
/// Those of `find`; it cannot be loaded, or not in the time that requests have.
pub(crate) async fn awake(api: &Api, find: impl Fn() -> Result<Found, FlowError>) -> Result<Found, FlowError> {
    let deadline = Instant::now().checked_add(api.limits().timeout);
    loop {
        match find() {
            Err(FlowError::Asleep(model)) => wake(api, model, deadline).await?,
            found => return found,
        }
    }
}
