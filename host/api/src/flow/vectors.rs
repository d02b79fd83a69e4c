//! Has an embedder compute vectors, under the caller's quota and until the deadline. For every endpoint over vectors.
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::ids::Token;
use camshaft_core::limits;
use camshaft_core::message::WorkerError;
use camshaft_core::policy::Priority;
use camshaft_core::quota::Demand;

use crate::flow::api::Served;
use crate::flow::context::ParseContext;
use crate::flow::embed_jobs::{EmbedJob, NotTaken};
use crate::flow::error::{FlowError, TokenCount};
use crate::flow::incoming::Incoming;
use crate::wire::fields::Fields;
use crate::wire::input::{self, BodyInput, InputContent};

/// Checked inputs of one request.
#[derive(Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) served: &'a Served,
    pub(crate) inputs: Vec<Arc<[Token]>>,
    pub(crate) priority: Priority,
    /// The client's own, from the body or a header. Without one, the server's holds.
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct Computed {
    /// One for each input, in order.
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs, which the caller's quota has paid.
    pub(crate) prompt_tokens: u64,
}

/// Reads the field `name`: one or several texts or lists of token ids.
///
/// # Errors
/// 400: the model embeds nothing, or an input is malformed, empty or longer than the embedder takes.
pub(crate) fn inputs(
    context: ParseContext<'_>,
    fields: &Fields<'_>,
    name: &str,
    served: &Served,
) -> Result<Vec<Arc<[Token]>>, FlowError> {
    let max = served.embedder()?.input_tokens;
    let one = |input: BodyInput| {
        context.check()?;
        let tokens = match input.content {
            InputContent::Text(text) if text.is_empty() => Vec::new(),
            // The spelling of a special token stays text.
            InputContent::Text(text) => context.tokenize(served, (&text, false), max)?,
            InputContent::Tokens(tokens) => tokens,
        };
        match tokens.len() {
            0 => Err(FlowError::field(input.path.clone(), format!("{} is empty", input.path))),
            tokens if tokens > max as usize => {
                Err(FlowError::InputLength { tokens: TokenCount::of(tokens, max), max, param: input.path })
            }
            _ => Ok(Arc::from(tokens)),
        }
    };
    let inputs = input::read(fields, name, limits::EMBED_INPUTS, &served.model.info.vocabulary)?;
    inputs.into_iter().map(one).collect()
}

/// Tokens that the caller's account is charged.
pub(crate) fn cost(inputs: &[Arc<[Token]>]) -> u64 {
    inputs.iter().map(|input| input.len() as u64).sum()
}

/// Computes the vectors: takes the tokens from the caller's quota, gives them back if nothing was computed, and counts.
///
/// # Errors
/// The quota does not hold them, the embedder takes no job or failed, the deadline passed, or the server ends.
pub(crate) async fn compute(incoming: &mut Incoming, asked: Asked<'_>) -> Result<Computed, FlowError> {
    let Asked { served, inputs, priority, timeout } = asked;
    let model = &served.model.id;
    incoming.exchange.set_model(model);
    let prompt_tokens = cost(&inputs);
    incoming.exchange.set_prompt_tokens(prompt_tokens);
    incoming.reserve(Demand { choices: 1, tokens: prompt_tokens, read: prompt_tokens })?;
    let mut grant = incoming.grant.take();
    let (api, exchange) = (&incoming.api, &incoming.exchange);
    if let Some(grant) = &mut grant {
        // A client that leaves pays, too: most of the work is done by then.
        grant.set_used(prompt_tokens);
    }
    let deadline = exchange.started().checked_add(timeout.unwrap_or(api.limits().timeout));
    let computed = embed(incoming, served, (inputs, priority), deadline).await;
    if let (Err(error), Some(grant)) = (&computed, &mut grant)
        && !matches!(error, FlowError::Worker(WorkerError::DeadlineExceeded))
    {
        grant.set_used(0);
    }
    drop(grant);
    let vectors = computed?;
    api.metrics.of_model(model).prompt_tokens.inc_by(prompt_tokens);
    Ok(Computed { vectors, prompt_tokens })
}

/// Puts the inputs into the embedder's queue and waits for their vectors.
async fn embed(
    incoming: &Incoming,
    served: &Served,
    (inputs, priority): (Vec<Arc<[Token]>>, Priority),
    deadline: Option<Instant>,
) -> Result<Vec<Vec<f32>>, FlowError> {
    incoming.api.readiness.serves(&served.model.id)?;
    let principal = &incoming.caller.principal;
    let job = EmbedJob {
        inputs,
        tenant: principal.tenant.clone(),
        priority,
        weight: principal.weight,
        queue_share: principal.quotas.queue_share,
        deadline,
    };
    let mut ticket = served.embedder()?.jobs.submit(job).map_err(|not_taken| match not_taken {
        NotTaken::Full => FlowError::Worker(WorkerError::QueueFull),
        NotTaken::Gone => FlowError::PoolGone,
    })?;
    let mut cut = incoming.api.cut();
    let vectors = tokio::select! {
        biased;
        answer = ticket.answer() => answer.ok_or(FlowError::WorkerLost)?,
        Ok(_) = cut.wait_for(|&cut| cut) => return Err(FlowError::Draining),
        // Needed here, too: while the embedder is being restarted, nobody else checks the job's deadline.
        () = passed(deadline) => return Err(WorkerError::DeadlineExceeded.into()),
    };
    Ok(vectors?)
}

/// Waits for the deadline, or for ever without one.
async fn passed(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
