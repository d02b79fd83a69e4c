//! Serves a prediction: reads tensors, validates, has the model compute them and answers with tensors.
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use camshaft_core::engine::ModelKind;
use camshaft_core::policy::{Endpoint, Target, ValidateRequest};
use camshaft_core::tensor::Rows;
use serde_json::Value;

use crate::flow::compute::{self, Asked};
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::predicted::{self, Form};
use crate::flow::rows;
use crate::flow::served::Served;
use crate::flow::trace;
use crate::flow::validate::{self, Accepted, Draft, Validated};
use crate::wire::echo::Shown;
use crate::wire::json::{self, Body};
use crate::wire::open_inference;
use crate::wire::params;
use crate::wire::tensors::{INPUT, INPUTS, Tensors, read_bytes};
use crate::wire::written::attach;

const MODEL: &str = "model";
/// What counts as a token.
const ROW: &str = "one for each row";

/// How a request is written, and its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Own,
    /// The Open Inference Protocol.
    OpenInference,
}

/// A checked request.
#[derive(Debug)]
struct PredictRequest {
    served: Arc<Served>,
    rows: Rows,
    /// What stands for the tensors in the body that validators see.
    seen: Vec<Option<Value>>,
    timeout: Option<Duration>,
    protocol: Protocol,
    form: Form,
}

/// Where a request's model and tensors are, beside its text.
#[derive(Debug)]
struct Source {
    /// From the path; then the body need not name it.
    model: Option<String>,
    protocol: Protocol,
    tail: Bytes,
}

/// `model`: from the path; then the body need not name it.
///
/// # Errors
/// Any failure before the tensors are computed.
pub(crate) async fn respond(
    mut incoming: Incoming,
    model: Option<String>,
    protocol: Protocol,
) -> Result<Response, FlowError> {
    let limits = incoming.api.limits();
    let from_header = params::timeout_header(&incoming.headers, limits.max_timeout)?;
    let source = Source { model, protocol, tail: std::mem::take(&mut incoming.tail) };
    // What is behind the text becomes tensors of the same size.
    incoming.share.grow(read_bytes(&incoming.text).saturating_add(source.tail.len()))?;
    let span = trace::validate(incoming.exchange.span());
    let read = move |context: ParseContext<'_>, text: &str| read(context, text, &source);
    let Accepted { request, priority, .. } = incoming.read(from_header, read).await?;
    drop(span);
    let PredictRequest { served, rows, timeout, form, .. } = request;
    let bytes: usize = rows.tensors.iter().map(|tensor| tensor.bytes().len()).sum();
    let predictor = served.predictor()?;
    // As they are, as the runtime has them, and what comes of them: what has no room is not computed.
    let answer = predicted::answer_bytes(predictor, &rows, &form);
    incoming.share.resize(bytes.saturating_mul(2).saturating_add(answer))?;
    let (model, timeout) = (&served.model.id, timeout.or(from_header));
    let (health, jobs) = (&served.model.health, &predictor.jobs);
    let asked = Asked { model, health, jobs, inputs: vec![rows], priority, unit: Some(ROW), timeout };
    let mut computed = compute::compute(&mut incoming, asked).await?;
    let Some(computed) = computed.pop() else { return Err(FlowError::WorkerLost) };
    predicted::render(incoming.share, served.clone(), computed, form).await
}

fn read(context: ParseContext<'_>, text: &str, source: &Source) -> Result<Accepted<PredictRequest>, FlowError> {
    let mut tensors = match source.protocol {
        Protocol::Own => Tensors::default(),
        Protocol::OpenInference => Tensors::open(),
    };
    let mut body = Body::from(json::parse_with(text, &mut tensors)?);
    attach(&mut tensors.tensors, &source.tail)?;
    if let Some(model) = &source.model {
        if body.fields().text(MODEL)?.is_some_and(|named| named != model) {
            return Err(FlowError::field(MODEL, format!("model must be {} as in the path, or left out", Shown(model))));
        }
        body.set(MODEL, model.as_str().into());
    }
    let max_timeout = context.api.limits().max_timeout;
    context.chosen.note_timeout(match source.protocol {
        Protocol::Own => params::timeout(&body.fields(), max_timeout),
        Protocol::OpenInference => open_inference::timeout(&body, max_timeout),
    });
    let served = model_of(context, &body)?.clone();
    let rows = rows::rows(served.predictor()?, tensors.tensors)?;
    let request = parse(context, &body, (served, rows), source.protocol)?;
    validate::run(context, body, request)
}

fn model_of(context: ParseContext<'_>, body: &Body) -> Result<Arc<Served>, FlowError> {
    context.model_of_kind(body.fields().text(MODEL)?, ModelKind::Predict)
}

fn parse(
    context: ParseContext<'_>,
    body: &Body,
    (served, rows): (Arc<Served>, Rows),
    protocol: Protocol,
) -> Result<PredictRequest, FlowError> {
    let (fields, max_timeout) = (body.fields(), context.api.limits().max_timeout);
    let (form, timeout) = match protocol {
        Protocol::Own => (Form::Own, params::timeout(&fields, max_timeout)?),
        Protocol::OpenInference => {
            let mut asked = open_inference::Asked::read(body, max_timeout)?;
            let timeout = asked.timeout.take();
            (Form::open(served.predictor()?, asked)?, timeout)
        }
    };
    let seen = [INPUT, INPUTS].map(|name| fields.get(name).cloned()).to_vec();
    Ok(PredictRequest { served, rows, seen, timeout, protocol, form })
}

impl Validated for PredictRequest {
    fn parse(&self, context: ParseContext<'_>, body: &Body) -> Result<Self, FlowError> {
        let served = model_of(context, body)?.clone();
        served.predictor()?;
        parse(context, body, (served, self.rows.clone()), self.protocol)
    }

    fn target<'a>(&'a self, context: ParseContext<'a>) -> Target<'a> {
        let tenant = &context.caller.principal.tenant;
        Target { tenant, model: &self.served.model.id, endpoint: Endpoint::Prediction }
    }

    fn question(&self, context: ParseContext<'_>, draft: Draft<'_>) -> ValidateRequest {
        validate::question(context, self.target(context), draft, self.rows.rows.into(), 0)
    }

    fn is_same_kind(&self, before: &Self) -> bool {
        // Validators see shapes, not numbers: they cannot write others.
        self.served.model.id == before.served.model.id && self.seen == before.seen
    }
}
