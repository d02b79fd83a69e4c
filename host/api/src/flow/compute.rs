//! Has a model compute a request's inputs in batches, under the caller's quota and until the deadline.
use std::time::{Duration, Instant};

use camshaft_core::jobs::Input;
use camshaft_core::message::WorkerError;
use camshaft_core::policy::Priority;
use camshaft_core::quota::Demand;

use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::jobs::{Job, Jobs, NotTaken};
use crate::flow::readiness::ModelHealth;

/// Checked inputs of one request.
#[derive(Debug)]
pub(crate) struct Asked<'a, I, O> {
    /// The model's name.
    pub(crate) model: &'a str,
    pub(crate) health: &'a ModelHealth,
    pub(crate) jobs: &'a Jobs<I, O>,
    pub(crate) inputs: Vec<I>,
    pub(crate) priority: Priority,
    /// What a token of their cost is, if it is none of a text.
    pub(crate) unit: Option<&'static str>,
    /// The client's own, from the body or a header. Without one, the server's holds.
    pub(crate) timeout: Option<Duration>,
}

/// What the caller's account is charged, in tokens.
pub(crate) fn cost<I: Input>(inputs: &[I]) -> u64 {
    inputs.iter().map(|input| u64::from(input.size())).sum()
}

/// Computes an output for each input, in order: takes their cost from the caller's quota, gives it back if nothing was computed,
/// and counts.
///
/// # Errors
/// The quota does not hold it, the model takes no job or failed, the deadline passed, or the server ends.
pub(crate) async fn compute<I: Input, O>(incoming: &mut Incoming, asked: Asked<'_, I, O>) -> Result<Vec<O>, FlowError> {
    let Asked { model, timeout, unit, .. } = asked;
    incoming.exchange.set_model(model);
    let cost = cost(&asked.inputs);
    incoming.exchange.set_prompt_tokens(cost);
    incoming.reserve(Demand { choices: 1, tokens: cost, read: cost }).map_err(|error| match error {
        FlowError::QuotaExceeded(exceeded) => FlowError::InputQuotaExceeded { exceeded, unit },
        error => error,
    })?;
    let mut grant = incoming.grant.take();
    let (api, exchange) = (&incoming.api, &incoming.exchange);
    if let Some(grant) = &mut grant {
        // A client that leaves pays, too: most of the work is done by then.
        grant.set_used(cost);
    }
    let deadline = exchange.started().checked_add(timeout.unwrap_or(api.limits().timeout));
    let computed = wait(incoming, asked, deadline).await;
    // What was refused was computed, too, as far as it could be.
    let pays =
        |error: &FlowError| matches!(error, FlowError::Worker(WorkerError::DeadlineExceeded | WorkerError::Refused(_)));
    if let (Err(error), Some(grant)) = (&computed, &mut grant)
        && !pays(error)
    {
        grant.set_used(0);
    }
    drop(grant);
    let outputs = computed?;
    api.metrics.of_model(model).prompt_tokens.inc_by(cost);
    Ok(outputs)
}

/// Puts the inputs into the model's queue and waits for their outputs.
async fn wait<I: Input, O>(
    incoming: &Incoming,
    Asked { model, health, jobs, inputs, priority, .. }: Asked<'_, I, O>,
    deadline: Option<Instant>,
) -> Result<Vec<O>, FlowError> {
    health.serves(model)?;
    let principal = &incoming.caller.principal;
    let job = Job {
        inputs,
        tenant: principal.tenant.clone(),
        priority,
        weight: principal.weight,
        queue_share: principal.quotas.queue_share,
        deadline,
        span: incoming.exchange.span().clone(),
    };
    let mut ticket = jobs.submit(job).map_err(|not_taken| match not_taken {
        NotTaken::Full => FlowError::Worker(WorkerError::QueueFull),
        NotTaken::Gone => FlowError::PoolGone,
    })?;
    let mut cut = incoming.api.cut();
    let outputs = tokio::select! {
        biased;
        answer = ticket.answer() => answer.ok_or(FlowError::WorkerLost)?,
        Ok(_) = cut.wait_for(|&cut| cut) => return Err(FlowError::Draining),
        // Needed here, too: while the thread is being restarted, nobody else checks the job's deadline.
        () = passed(deadline) => return Err(WorkerError::DeadlineExceeded.into()),
    };
    Ok(outputs?)
}

/// Waits for the deadline, or for ever without one.
async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
