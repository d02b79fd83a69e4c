//! Serves requests over vectors of texts: reads the texts, has validators see the request and the vectors computed.
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::ids::Token;
use camshaft_core::jobs::Input;
use camshaft_core::message::WorkerError;
use camshaft_core::policy::{Endpoint, Priority};
use camshaft_core::quota::Demand;

use crate::flow::api::ModelWish;
use crate::flow::backend::EmbedBackend;
use crate::flow::budget::TOKEN_BYTES;
use crate::flow::catalog::Served;
use crate::flow::error::{FlowError, TokenCount};
use crate::flow::generate::{self, Accepted, Asking};
use crate::flow::incoming::Incoming;
use crate::flow::jobs::{Job, Jobs, NotTaken};
use crate::flow::readiness::ModelHealth;
use crate::flow::request::ReadContext;
use crate::flow::trace;
use crate::wire::read::Fields;
use crate::wire::settings;

/// Of one text.
pub(crate) type Tokens = Arc<[Token]>;

/// Checked texts of one request, for the model that embeds them, and what else its endpoint has read.
#[derive(Debug)]
struct TextsRequest<T> {
    served: Arc<Served>,
    inputs: Vec<Tokens>,
    timeout: Option<Duration>,
    more: T,
}

/// A request that no validator refused, and what it takes.
#[derive(Debug)]
pub(crate) struct Ready<T> {
    accepted: Accepted<TextsRequest<T>>,
}

/// What was computed.
#[derive(Debug)]
pub(crate) struct Computed<T> {
    /// The model's name.
    pub(crate) model: String,
    /// Of each text.
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Of all texts.
    pub(crate) tokens: u64,
    pub(crate) more: T,
}

/// A request over texts, as one endpoint has it.
pub(crate) trait OverTexts: Fields + Send + Sync + 'static {
    /// What its answer needs of it.
    type More: Send + 'static;

    fn wish(&self) -> ModelWish<'_>;

    fn timeout(&self) -> Option<f64>;

    /// Its texts, and what its answer needs.
    ///
    /// # Errors
    /// 400: a text is empty, or longer than the model takes.
    fn read(
        &self,
        context: ReadContext<'_>,
    ) -> impl Future<Output = Result<(Vec<Tokens>, Self::More), FlowError>> + Send;
}

/// Reads a request and asks the validators.
///
/// # Errors
/// 400, 403 or 404: it is malformed, or names a model that is unknown, not allowed, or embeds nothing; a validator refused it.
pub(crate) async fn accept<B: OverTexts>(incoming: &mut Incoming) -> Result<Ready<B::More>, FlowError> {
    let span = trace::validate(incoming.exchange.span());
    let bytes = incoming.text.len();
    let body = Arc::new(incoming.body::<B>().await?);
    let target = incoming.target(&body.request.wish(), body.request.timeout(), bytes).await?;
    let mut accepted = generate::ask_validators(incoming, &target, body, |context, body| {
        Box::pin(async move {
            context.served().embedder()?;
            let (inputs, more) = body.request.read(context).await?;
            let timeout = settings::timeout(body.request.timeout(), context.api.limits().max_timeout)?;
            let longest = inputs.iter().map(|input| input.len()).max().unwrap_or(0);
            let question = generate::question(context, Endpoint::Embedding, cost(&inputs), longest);
            let request = TextsRequest { served: context.served().clone(), inputs, timeout, more };
            Ok(Asking { request, question, fixed: Vec::new() })
        })
    })
    .await?;
    accepted.request.timeout = accepted.request.timeout.or(target.timeout);
    drop(span);
    Ok(Ready { accepted })
}

impl<T> Ready<T> {
    pub(crate) fn more(&self) -> &T {
        &self.accepted.request.more
    }

    pub(crate) fn embedder(&self) -> Result<&EmbedBackend, FlowError> {
        self.accepted.request.served.embedder()
    }

    /// Number of texts.
    pub(crate) fn count(&self) -> usize {
        self.accepted.request.inputs.len()
    }

    /// Computes the vectors. `held`: bytes that the request takes until its end, besides its tokens.
    ///
    /// # Errors
    /// There is no memory for it, or as [`compute`].
    pub(crate) async fn compute(self, incoming: &mut Incoming, held: usize) -> Result<Computed<T>, FlowError> {
        let Self { accepted: Accepted { request, priority, .. } } = self;
        let TextsRequest { served, inputs, timeout, more } = request;
        let (tokens, embedder) = (cost(&inputs), served.embedder()?);
        incoming.share.resize((tokens as usize * TOKEN_BYTES).saturating_add(held))?;
        let model = served.model.id.clone();
        let (health, jobs) = (&served.model.health, &embedder.jobs);
        let asked = Asked { model: &model, health, jobs, inputs, priority, unit: None, timeout };
        let vectors = compute(incoming, asked).await?;
        Ok(Computed { model, vectors, tokens, more })
    }
}

/// The tokens of texts, which are not checked yet. The spelling of a special token stays text, and a text without anything has none.
///
/// # Errors
/// 400: the model embeds nothing.
pub(crate) async fn tokens_of(context: ReadContext<'_>, texts: Vec<String>) -> Result<Vec<Vec<Token>>, FlowError> {
    let empty: Vec<bool> = texts.iter().map(String::is_empty).collect();
    let mut read = context.tokenize((texts, false), context.served().embedder()?.input_tokens).await?;
    read.iter_mut().zip(empty).filter(|(_, is_empty)| *is_empty).for_each(|(tokens, _)| tokens.clear());
    Ok(read)
}

/// # Errors
/// 400: there are no tokens, or more than the embedder takes.
pub(crate) fn check(
    context: ReadContext<'_>,
    path: &str,
    mut tokens: Vec<Token>,
    kept: Option<u32>,
) -> Result<Arc<[Token]>, FlowError> {
    let max = context.served().embedder()?.input_tokens;
    if let Some(kept) = kept {
        tokens.truncate(kept as usize);
    }
    match tokens.len() {
        0 => Err(FlowError::field(path, format!("{path} is empty"))),
        tokens if tokens > max as usize => {
            Err(FlowError::InputLength { tokens: TokenCount::of(tokens, max), max, param: path.to_owned() })
        }
        _ => Ok(Arc::from(tokens)),
    }
}

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
