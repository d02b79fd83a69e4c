//! Serves an embedding request: parses, validates, sends it to the embedder and renders the vectors.
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camshaft_core::embed::normalize;
use camshaft_core::ids::Token;
use camshaft_core::limits::{self, Range};
use camshaft_core::message::WorkerError;
use camshaft_core::policy::{Endpoint, ValidateRequest};
use crossbeam_channel::TrySendError;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::flow::api::Served;
use crate::flow::backend::EmbedJob;
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::quota::QuotaGrant;
use crate::flow::trace;
use crate::flow::validate::{self, Validated};
use crate::wire::fields::Fields;
use crate::wire::input::{self, BodyInput, InputContent};
use crate::wire::{json, params};

const INPUT: &str = "input";

/// A checked request.
#[derive(Debug)]
struct EmbedRequest {
    served: Arc<Served>,
    inputs: Vec<Arc<[Token]>>,
    encoding: Encoding,
    /// Length of a vector.
    dimensions: u32,
    timeout: Option<Duration>,
}

/// `encoding_format`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Float,
    Base64,
}

#[derive(Debug, Serialize)]
pub(crate) struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize)]
struct Embedding {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Vector {
    Numbers(Vec<f32>),
    /// Little-endian 32-bit floats.
    Base64(String),
}

#[derive(Debug, Serialize)]
struct EmbeddingUsage {
    prompt_tokens: u64,
    total_tokens: u64,
}

/// # Errors
/// Any failure before the vectors are computed.
pub(crate) async fn respond(mut incoming: Incoming) -> Result<Embeddings, FlowError> {
    let limits = incoming.api.limits();
    let from_header = params::timeout_header(&incoming.headers, limits.max_timeout)?;
    let exchange = incoming.exchange.clone();
    let span = trace::validate(exchange.span());
    // Tokenizing many long inputs takes a while.
    let request = incoming.read_aside(read).await?;
    drop(span);
    exchange.set_model(&request.served.model.id);
    let prompt_tokens = request.inputs.iter().map(|input| input.len() as u64).sum();
    exchange.set_prompt_tokens(prompt_tokens);
    let mut grant = QuotaGrant::take(&incoming.api.quotas, &incoming.caller.principal, prompt_tokens)?;
    if let Some(grant) = &mut grant {
        exchange.set_standings(grant.standings());
        // A client that leaves pays, too: most of the work is done by then.
        grant.set_used(prompt_tokens);
    }
    let timeout = request.timeout.or(from_header).unwrap_or(limits.timeout);
    let computed = compute(&incoming, &request, exchange.started().checked_add(timeout)).await;
    if let (Err(error), Some(grant)) = (&computed, &mut grant)
        && !matches!(error, FlowError::Worker(WorkerError::DeadlineExceeded))
    {
        grant.set_used(0);
    }
    drop(grant);
    let vectors = computed?;
    incoming.api.metrics.of_model(&request.served.model.id).prompt_tokens.inc_by(prompt_tokens);
    Ok(request.render(vectors, prompt_tokens))
}

fn read(context: ParseContext<'_>, text: &str) -> Result<EmbedRequest, FlowError> {
    let body = json::parse(text)?;
    let request = parse(context, &body)?;
    validate::run(context, body, request)
}

fn parse(context: ParseContext<'_>, body: &Map<String, Value>) -> Result<EmbedRequest, FlowError> {
    let fields = Fields::of_body(body);
    let served = context.api.model_of(&fields, context.caller)?;
    let embedder = served.embedder()?;
    let encoding = match fields.text("encoding_format")? {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(other) => {
            let message = format!("encoding_format must be float or base64, got {other:?}");
            return Err(FlowError::field("encoding_format", message));
        }
    };
    let full = embedder.dimensions;
    let dimensions = match fields.integer("dimensions", Range { min: 1.0, max: f64::from(full) })? {
        None => full,
        Some(wanted) if wanted == full || embedder.shorter_dimensions.contains(&wanted) => wanted,
        Some(wanted) => {
            let mut possible = embedder.shorter_dimensions.clone();
            possible.push(full);
            let message = format!("this model was not trained for {wanted} dimensions; possible are {possible:?}");
            return Err(FlowError::field("dimensions", message));
        }
    };
    let inputs = inputs(&fields, served, embedder.input_tokens)?;
    let timeout = params::timeout(&fields, context.api.limits().max_timeout)?;
    Ok(EmbedRequest { served: served.clone(), inputs, encoding, dimensions, timeout })
}

fn inputs(fields: &Fields<'_>, served: &Served, max_tokens: u32) -> Result<Vec<Arc<[Token]>>, FlowError> {
    let one = |input: BodyInput| {
        let tokens = match input.content {
            InputContent::Text(text) if text.is_empty() => Vec::new(),
            // The spelling of a special token stays text.
            InputContent::Text(text) => served.model.tokenizer.tokenize(&text, true, false),
            InputContent::Tokens(tokens) => tokens,
        };
        match tokens.len() {
            0 => Err(FlowError::field(input.path.clone(), format!("{} is empty", input.path))),
            tokens if tokens > max_tokens as usize => {
                Err(FlowError::InputLength { tokens, max: max_tokens, param: input.path })
            }
            _ => Ok(Arc::from(tokens)),
        }
    };
    let inputs = input::read(fields, INPUT, limits::EMBED_INPUTS, &served.model.info.vocabulary)?;
    inputs.into_iter().map(one).collect()
}

/// Sends the inputs to the embedder and waits for their vectors.
async fn compute(
    incoming: &Incoming,
    request: &EmbedRequest,
    deadline: Option<Instant>,
) -> Result<Vec<Vec<f32>>, FlowError> {
    incoming.api.readiness.serves(&request.served.model.id)?;
    let (reply, answer) = oneshot::channel();
    let priority = incoming.caller.principal.priority;
    let job = EmbedJob { inputs: request.inputs.clone(), priority, deadline, reply };
    request.served.embedder()?.jobs.try_send(job).map_err(|error| match error {
        TrySendError::Full(_) => FlowError::Overloaded,
        TrySendError::Disconnected(_) => FlowError::PoolGone,
    })?;
    let mut cut = incoming.api.cut();
    let vectors = tokio::select! {
        biased;
        answer = answer => answer.map_err(|_| FlowError::WorkerLost)?,
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

impl EmbedRequest {
    fn render(self, vectors: Vec<Vec<f32>>, prompt_tokens: u64) -> Embeddings {
        let one = |(index, mut vector): (usize, Vec<f32>)| {
            vector.truncate(self.dimensions as usize);
            normalize(&mut vector);
            let embedding = match self.encoding {
                Encoding::Base64 => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                    Vector::Base64(STANDARD.encode(bytes))
                }
                Encoding::Float => Vector::Numbers(vector),
            };
            Embedding { object: "embedding", index, embedding }
        };
        Embeddings {
            object: "list",
            data: vectors.into_iter().enumerate().map(one).collect(),
            model: self.served.model.id.clone(),
            usage: EmbeddingUsage { prompt_tokens, total_tokens: prompt_tokens },
        }
    }
}

impl Validated for EmbedRequest {
    fn parse(&self, context: ParseContext<'_>, body: &Map<String, Value>) -> Result<Self, FlowError> {
        parse(context, body)
    }

    fn question(&self, context: ParseContext<'_>, body: String) -> ValidateRequest {
        let longest = self.inputs.iter().map(|input| input.len()).max().unwrap_or(0);
        ValidateRequest {
            endpoint: Endpoint::Embedding,
            model: self.served.model.id.clone(),
            tenant: context.caller.principal.tenant.clone(),
            body,
            prompt_tokens: u32::try_from(longest).unwrap_or(u32::MAX),
            max_tokens: 0,
            max_tokens_set: false,
            temperature: 0.0,
            top_p: 1.0,
            n: 1,
            stream: false,
        }
    }

    fn is_same_kind(&self, before: &Self) -> bool {
        self.served.model.id == before.served.model.id
    }
}
