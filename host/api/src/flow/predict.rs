//! Serves a prediction: reads tensors, validates, has the model compute them and answers with tensors.
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use camshaft_core::engine::ModelKind;
use camshaft_core::policy::{Endpoint, Target, ValidateRequest};
use camshaft_core::tensor::Rows;
use serde_json::Value;

use crate::flow::backend::PredictBackend;
use crate::flow::caller::Caller;
use crate::flow::compute::{self, Asked};
use crate::flow::context::ReadContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::predicted::{self, Form};
use crate::flow::rows;
use crate::flow::served::Served;
use crate::flow::trace;
use crate::flow::validate::{self, Accepted, Draft, Validated};
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::read::Fields;
use crate::wire::settings;
use crate::wire::tensors::{self, RequestTensor};
use crate::wire::types::tensors::{InferRequest, PredictRequest};

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

/// A request over tensors, as one protocol has it.
trait OverTensors: Fields + Send + Sync + 'static {
    fn model(&mut self) -> &mut Option<String>;

    /// # Errors
    /// 400: it is longer than a client may ask for.
    fn timeout(&self, max: Duration) -> Result<Option<Duration>, RequestError>;

    /// `tail`: what is behind the JSON.
    ///
    /// # Errors
    /// 400 that names the tensor.
    fn tensors(&self, tail: &Bytes) -> Result<Vec<RequestTensor<'_>>, RequestError>;

    /// What policies see of the tensors.
    fn seen(&self) -> Vec<Value>;

    /// # Errors
    /// 400: the model has no such output.
    fn form(&self, model: &PredictBackend) -> Result<Form, FlowError>;
}

impl OverTensors for PredictRequest {
    fn model(&mut self) -> &mut Option<String> {
        &mut self.model
    }

    fn timeout(&self, max: Duration) -> Result<Option<Duration>, RequestError> {
        settings::timeout(self.timeout, max)
    }

    fn tensors(&self, _: &Bytes) -> Result<Vec<RequestTensor<'_>>, RequestError> {
        tensors::of_predict(self)
    }

    fn seen(&self) -> Vec<Value> {
        vec![
            serde_json::to_value(&self.input).unwrap_or_default(),
            serde_json::to_value(&self.inputs).unwrap_or_default(),
        ]
    }

    fn form(&self, _: &PredictBackend) -> Result<Form, FlowError> {
        Ok(Form::Own)
    }
}

impl OverTensors for InferRequest {
    fn model(&mut self) -> &mut Option<String> {
        &mut self.model
    }

    fn timeout(&self, max: Duration) -> Result<Option<Duration>, RequestError> {
        let micros = self.parameters.as_ref().and_then(|parameters| parameters.timeout).unwrap_or(0);
        match Duration::from_micros(micros) {
            Duration::ZERO => Ok(None),
            timeout if timeout <= max => Ok(Some(timeout)),
            _ => {
                let (path, max) = ("parameters.timeout", max.as_micros());
                Err(RequestError::field(path, format!("{path} must be at most {max} microseconds, got {micros}")))
            }
        }
    }

    fn tensors(&self, tail: &Bytes) -> Result<Vec<RequestTensor<'_>>, RequestError> {
        tensors::of_infer(self, tail)
    }

    fn seen(&self) -> Vec<Value> {
        vec![serde_json::to_value(&self.inputs).unwrap_or_default()]
    }

    fn form(&self, model: &PredictBackend) -> Result<Form, FlowError> {
        Form::open(model, self)
    }
}

/// A checked request.
#[derive(Debug)]
struct Checked {
    served: Arc<Served>,
    rows: Rows,
    /// What stands for the tensors in the body that validators see.
    seen: Vec<Value>,
    form: Form,
    timeout: Option<Duration>,
}

/// `model`: from the path; then the body need not name it.
///
/// # Errors
/// Any failure before the tensors are computed.
pub(crate) async fn respond(
    incoming: Incoming,
    model: Option<String>,
    protocol: Protocol,
) -> Result<Response, FlowError> {
    match protocol {
        Protocol::Own => serve::<PredictRequest>(incoming, model).await,
        Protocol::OpenInference => serve::<InferRequest>(incoming, model).await,
    }
}

async fn serve<B: OverTensors>(mut incoming: Incoming, model: Option<String>) -> Result<Response, FlowError> {
    let max_timeout = incoming.api.limits().max_timeout;
    let from_header = settings::timeout_header(&incoming.headers, max_timeout)?;
    let (tail, bytes) = (std::mem::take(&mut incoming.tail), incoming.text.len());
    // What is behind the text becomes tensors of the same size.
    incoming.share.grow(tail.len())?;
    let span = trace::validate(incoming.exchange.span());
    let mut body = incoming.body::<B>().await?;
    let named = body.request.model();
    if let Some(model) = model {
        if named.as_ref().is_some_and(|named| *named != model) {
            return Err(FlowError::field(
                MODEL,
                format!("model must be {} as in the path, or left out", Shown(&model)),
            ));
        }
        *named = Some(model);
    }
    let (name, timeout) = (named.clone(), body.request.timeout(max_timeout)?.or(from_header));
    let find = || incoming.api.model_of_kind(name.as_deref(), ModelKind::Predict, &incoming.caller);
    let target = incoming.target_by(find, timeout, bytes).await?;
    // Validators see shapes, not numbers: they cannot write others.
    let first: Arc<OnceLock<Rows>> = Arc::default();
    let read = move |context: ReadContext<'_>, request: &B| {
        let served = context.served().clone();
        let predictor = served.predictor()?;
        let rows = match first.get() {
            Some(rows) => rows.clone(),
            None => {
                let rows = rows::rows(predictor, request.tensors(&tail)?)?;
                first.get_or_init(|| rows).clone()
            }
        };
        let (seen, form) = (request.seen(), request.form(predictor)?);
        Ok(Checked { served, rows, seen, form, timeout: request.timeout(max_timeout)? })
    };
    let Accepted { request, priority, .. } = validate::accept(&mut incoming, &target, Arc::new(body), read).await?;
    drop(span);
    let Checked { served, rows, form, timeout: own, .. } = request;
    let timeout = own.or(timeout);
    let bytes: usize = rows.tensors.iter().map(|tensor| tensor.bytes().len()).sum();
    let predictor = served.predictor()?;
    // As they are, as the runtime has them, and what comes of them: what has no room is not computed.
    let answer = predicted::answer_bytes(predictor, &rows, &form);
    incoming.share.resize(bytes.saturating_mul(2).saturating_add(answer))?;
    let (model, health, jobs) = (&served.model.id, &served.model.health, &predictor.jobs);
    let asked = Asked { model, health, jobs, inputs: vec![rows], priority, unit: Some(ROW), timeout };
    let mut computed = compute::compute(&mut incoming, asked).await?;
    let Some(computed) = computed.pop() else { return Err(FlowError::WorkerLost) };
    predicted::render(incoming.share, served.clone(), computed, form).await
}

impl Validated for Checked {
    fn target<'a>(&'a self, caller: &'a Caller) -> Target<'a> {
        Target { tenant: &caller.principal.tenant, model: &self.served.model.id, endpoint: Endpoint::Prediction }
    }

    fn question(&self, caller: &Caller, draft: Draft<'_>) -> ValidateRequest {
        validate::question(caller, self.target(caller), draft, self.rows.rows.into(), 0)
    }

    fn is_same_kind(&self, before: &Self) -> bool {
        self.seen == before.seen
    }
}
