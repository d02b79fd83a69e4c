//! Serves an embedding request: parses, validates, has the vectors computed and answers with them.
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use camshaft_core::ids::Token;
use camshaft_core::limits::Range;
use camshaft_core::policy::{Endpoint, Target, ValidateRequest};

use crate::flow::budget::TOKEN_BYTES;
use crate::flow::compute::{self, Asked};
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::served::Served;
use crate::flow::trace;
use crate::flow::validate::{self, Accepted, Draft, Validated};
use crate::flow::vectors;
use crate::wire::adapters::wanted;
use crate::wire::embeddings::{Embeddings, Encoding};
use crate::wire::json::{self, Body};
use crate::wire::params;
use crate::wire::types::known;

const INPUT: &str = "input";
/// What a number of a vector takes: as it is, and as text.
const NUMBER_BYTES: usize = 24;

/// A checked request.
#[derive(Debug)]
struct EmbedRequest {
    served: Arc<Served>,
    inputs: Vec<Arc<[Token]>>,
    encoding: Encoding,
    /// Length of a vector.
    dimensions: u32,
    timeout: Option<Duration>,
    /// The end user, for the log.
    user: Option<String>,
}

/// # Errors
/// Any failure before the vectors are computed.
pub(crate) async fn respond(mut incoming: Incoming) -> Result<Response, FlowError> {
    let limits = incoming.api.limits();
    let from_header = params::timeout_header(&incoming.headers, limits.max_timeout)?;
    let span = trace::validate(incoming.exchange.span());
    // Tokenizing many long inputs takes a while.
    let Accepted { request, priority, .. } = incoming.read(from_header, read).await?;
    drop(span);
    request.user.iter().for_each(|user| incoming.exchange.set_user(user));
    // A vector takes its numbers, and their text in the answer.
    let (tokens, embedder) = (compute::cost(&request.inputs), request.served.embedder()?);
    let numbers = request.inputs.len() * embedder.dimensions as usize;
    incoming.share.resize(tokens as usize * TOKEN_BYTES + numbers * NUMBER_BYTES)?;
    let timeout = request.timeout.or(from_header);
    let model = request.served.model.id.clone();
    let (health, jobs) = (&request.served.model.health, &embedder.jobs);
    let asked = Asked { model: &model, health, jobs, inputs: request.inputs, priority, unit: None, timeout };
    let vectors = compute::compute(&mut incoming, asked).await?;
    let render = move |share| {
        let answer = Embeddings::new(model, vectors, request.dimensions, request.encoding, tokens);
        kept::json(&answer, share)
    };
    kept::rendered(incoming.share, render).await
}

fn read(context: ParseContext<'_>, text: &str) -> Result<Accepted<EmbedRequest>, FlowError> {
    let body = json::parse(text)?;
    let request = parse(context, &body)?;
    validate::run(context, body, request)
}

fn parse(context: ParseContext<'_>, body: &Body) -> Result<EmbedRequest, FlowError> {
    let fields = body.fields();
    context.known(&fields, &known::EMBEDDINGS);
    let served = &context.model(&fields)?;
    let embedder = served.embedder()?;
    if !wanted(&fields)?.is_empty() {
        return Err(FlowError::field("lora", "lora is only for models that generate"));
    }
    if fields.get("truncate_prompt_tokens").is_some() {
        let message = "truncate_prompt_tokens is not supported for embeddings: a part of a text has another vector";
        return Err(FlowError::field("truncate_prompt_tokens", message));
    }
    let encoding = Encoding::read(&fields)?;
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
    let inputs = vectors::inputs(context, &fields, INPUT, served)?;
    let timeout = params::timeout(&fields, context.api.limits().max_timeout)?;
    let user = params::user(&fields);
    Ok(EmbedRequest { served: served.clone(), inputs, encoding, dimensions, timeout, user })
}

impl Validated for EmbedRequest {
    fn parse(&self, context: ParseContext<'_>, body: &Body) -> Result<Self, FlowError> {
        parse(context, body)
    }

    fn target<'a>(&'a self, context: ParseContext<'a>) -> Target<'a> {
        let tenant = &context.caller.principal.tenant;
        Target { tenant, model: &self.served.model.id, endpoint: Endpoint::Embedding }
    }

    fn question(&self, context: ParseContext<'_>, draft: Draft<'_>) -> ValidateRequest {
        let longest = self.inputs.iter().map(|input| input.len()).max().unwrap_or(0);
        let longest = u32::try_from(longest).unwrap_or(u32::MAX);
        validate::question(context, self.target(context), draft, compute::cost(&self.inputs), longest)
    }

    fn is_same_kind(&self, before: &Self) -> bool {
        self.served.model.id == before.served.model.id
    }
}
