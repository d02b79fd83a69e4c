//! `POST /v1/embeddings`.
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::{Extension, Json};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camshaft_core::embed::normalize;
use camshaft_core::ids::Token;
use camshaft_core::limits::{self, Range};
use camshaft_core::message::WorkerError;
use camshaft_core::policy::ValidateRequest;
use crossbeam_channel::TrySendError;
use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::flow::api::{Api, Served};
use crate::flow::backend::EmbedJob;
use crate::flow::quota::Grant;
use crate::flow::request::Context;
use crate::flow::validate::{self, Judged};
use crate::flow::{completions, trace};
use crate::http::auth::Caller;
use crate::http::body;
use crate::http::observe::Exchange;
use crate::wire::error::ApiError;
use crate::wire::fields::{self, Fields};
use crate::wire::params;

const INPUT: &str = "input";

/// A checked request.
#[derive(Debug)]
struct EmbedRequest {
    served: Arc<Served>,
    inputs: Vec<Arc<[Token]>>,
    base64: bool,
    /// Numbers of a vector.
    dimensions: u32,
    timeout: Option<Duration>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Embeddings {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: Usage,
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
struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
}

pub(crate) async fn embed(
    State(api): State<Arc<Api>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Result<Json<Embeddings>, ApiError> {
    let exchange = request.extensions().get::<Arc<Exchange>>().cloned();
    let exchange = exchange.ok_or_else(|| ApiError::Internal("a request without an exchange".to_owned()))?;
    api.readiness.admit()?;
    let from_header = params::timeout_header(request.headers(), api.limits().max_timeout)?;
    let text = body::read(request, api.limits().body_bytes).await?;
    let span = trace::validate(exchange.span());
    let reading = {
        let (api, caller) = (api.clone(), caller.clone());
        // Many long inputs take a while to tokenize.
        tokio::task::spawn_blocking(move || read(Context { api: &api, caller: &caller }, &text))
    };
    let request =
        reading.await.map_err(|error| ApiError::Internal(format!("a request could not be read: {error}")))??;
    drop(span);
    exchange.set_model(&request.served.model.id);
    let prompt_tokens = request.inputs.iter().map(|input| input.len() as u64).sum();
    exchange.set_prompt_tokens(prompt_tokens);
    let mut grant = Grant::take(&api.quotas, &caller.principal, prompt_tokens)?.map(|(mut grant, standings)| {
        exchange.set_standings(standings);
        // Also if the client leaves: by then most of it is computed.
        grant.set_used(prompt_tokens);
        grant
    });
    let timeout = request.timeout.or(from_header).unwrap_or(api.limits().timeout);
    let computed = compute(&api, &caller, &request, exchange.started().checked_add(timeout)).await;
    if let (Err(error), Some(grant)) = (&computed, &mut grant)
        && !matches!(error, ApiError::Worker(WorkerError::DeadlineExceeded))
    {
        grant.set_used(0);
    }
    drop(grant);
    let vectors = computed?;
    api.metrics.of_model(&request.served.model.id).prompt_tokens.inc_by(prompt_tokens);
    Ok(Json(request.render(vectors, prompt_tokens)))
}

fn read(context: Context<'_>, text: &str) -> Result<EmbedRequest, ApiError> {
    let body = body::parse(text)?;
    let request = parse(context, &body)?;
    validate::judge(context, body, request)
}

fn parse(context: Context<'_>, body: &Map<String, Value>) -> Result<EmbedRequest, ApiError> {
    let fields = Fields::of_body(body);
    let served = context.api.model_of(&fields, context.caller)?;
    let embedder = served.embedder()?;
    let base64 = match fields.text("encoding_format")? {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            let message = format!("encoding_format must be float or base64, got {other:?}");
            return Err(ApiError::param("encoding_format", message));
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
            return Err(ApiError::param("dimensions", message));
        }
    };
    let inputs = inputs(&fields, served, embedder.input_tokens)?;
    let timeout = params::timeout(&fields, context.api.limits().max_timeout)?;
    Ok(EmbedRequest { served: served.clone(), inputs, base64, dimensions, timeout })
}

/// A string, a list of strings, a list of token ids, or a list of such lists.
fn inputs(fields: &Fields<'_>, served: &Served, most_tokens: u32) -> Result<Vec<Arc<[Token]>>, ApiError> {
    let vocabulary = &served.model.info.vocabulary;
    // Special tokens that a text spells out stay text.
    let text = |text: &str| served.model.tokenizer.tokenize(text, true, false);
    let check = |path: &str, tokens: Vec<Token>| match tokens.len() {
        0 => Err(ApiError::param(path, format!("{path} is empty"))),
        len if len > most_tokens as usize => {
            let message = format!("{path} has {len} tokens, this model takes at most {most_tokens}");
            Err(ApiError::Invalid { message, param: Some(path.to_owned()), code: Some("context_length_exceeded") })
        }
        _ => Ok(Arc::from(tokens)),
    };
    let list = match fields.require(INPUT)? {
        Value::String(string) if string.is_empty() => {
            return Err(ApiError::param(INPUT, "input must not be an empty string"));
        }
        Value::String(string) => return Ok(vec![check(INPUT, text(string))?]),
        Value::Array(list) if !list.is_empty() => list,
        Value::Array(_) => return Err(ApiError::param(INPUT, "input must not be an empty list")),
        other => return Err(fields::wrong_type(INPUT, "a string, a list of strings or a list of token ids", other)),
    };
    if list[0].is_number() {
        return Ok(vec![check(INPUT, completions::token_ids(list, INPUT, vocabulary)?)?]);
    }
    if list.len() > limits::EMBED_INPUTS {
        let most = limits::EMBED_INPUTS;
        return Err(ApiError::param(INPUT, format!("input may hold at most {most} inputs, got {}", list.len())));
    }
    let one = |(i, value): (usize, &Value)| {
        let path = format!("{INPUT}[{i}]");
        let tokens = match value {
            Value::String(string) if string.is_empty() => Vec::new(),
            Value::String(string) => text(string),
            Value::Array(ids) => completions::token_ids(ids, &path, vocabulary)?,
            other => return Err(fields::wrong_type(&path, "a string or a list of token ids", other)),
        };
        check(&path, tokens)
    };
    list.iter().enumerate().map(one).collect()
}

async fn compute(
    api: &Api,
    caller: &Caller,
    request: &EmbedRequest,
    deadline: Option<Instant>,
) -> Result<Vec<Vec<f32>>, ApiError> {
    let (reply, answer) = oneshot::channel();
    let job = EmbedJob { inputs: request.inputs.clone(), priority: caller.principal.priority, deadline, reply };
    request.served.embedder()?.jobs.try_send(job).map_err(|error| match error {
        TrySendError::Full(_) => ApiError::Overloaded,
        TrySendError::Disconnected(_) => ApiError::PoolGone,
    })?;
    let mut cut = api.cut();
    let vectors = tokio::select! {
        biased;
        answer = answer => answer.map_err(|_| ApiError::PoolGone)?,
        Ok(_) = cut.wait_for(|&cut| cut) => return Err(ApiError::Draining),
    };
    vectors.map_err(|error: WorkerError| error.into())
}

impl EmbedRequest {
    fn render(self, vectors: Vec<Vec<f32>>, prompt_tokens: u64) -> Embeddings {
        let one = |(index, mut vector): (usize, Vec<f32>)| {
            vector.truncate(self.dimensions as usize);
            normalize(&mut vector);
            let embedding = match self.base64 {
                true => {
                    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                    Vector::Base64(STANDARD.encode(bytes))
                }
                false => Vector::Numbers(vector),
            };
            Embedding { object: "embedding", index, embedding }
        };
        Embeddings {
            object: "list",
            data: vectors.into_iter().enumerate().map(one).collect(),
            model: self.served.model.id.clone(),
            usage: Usage { prompt_tokens, total_tokens: prompt_tokens },
        }
    }
}

impl Judged for EmbedRequest {
    fn parse(&self, context: Context<'_>, body: &Map<String, Value>) -> Result<Self, ApiError> {
        parse(context, body)
    }

    fn question(&self, context: Context<'_>, body: String) -> ValidateRequest {
        let longest = self.inputs.iter().map(|input| input.len()).max().unwrap_or(0);
        ValidateRequest {
            endpoint: "embedding",
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
