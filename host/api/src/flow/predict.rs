//! Serves a prediction: reads tensors, validates, has the model compute them and answers with tensors.
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use camshaft_core::engine::ModelKind;
use camshaft_core::limits::RUN_BYTES;
use camshaft_core::policy::Endpoint;
use camshaft_core::tensor::{Class, MaskInput, NoAnswer, Predicted, Rows, Signature, Tensor, volume};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::flow::backend::PredictBackend;
use crate::flow::budget::{self, Share};
use crate::flow::catalog::Served;
use crate::flow::error::FlowError;
use crate::flow::generate::{self, Accepted, Asking};
use crate::flow::incoming::{Incoming, off_thread};
use crate::flow::trace;
use crate::flow::vectors::{self, Asked};
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::open_inference::{self, JSON_LENGTH};
use crate::wire::read::Fields;
use crate::wire::settings;
use crate::wire::tensor_objects::{NestedLists, TensorObject};
use crate::wire::tensors::{self, INPUT, INPUTS, RequestTensor};
use crate::wire::types::tensors::{ID_BYTES, InferRequest, PredictRequest};

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
    let (body, served) = (Arc::new(body), target.found.served.clone());
    // Validators see shapes, not numbers: they cannot write others.
    let rows = off_thread(bytes + tail.len(), {
        let body = body.clone();
        move || rows(served.predictor()?, body.request.tensors(&tail)?)
    });
    let rows = incoming.read(&target, rows).await?;
    let asked = generate::ask_validators(&mut incoming, &target, body, |context, body| {
        let (rows, served) = (rows.clone(), context.served().clone());
        Box::pin(async move {
            let form = body.request.form(served.predictor()?)?;
            let question = generate::question(context, Endpoint::Prediction, rows.rows.into(), 0);
            let request = Checked { served, rows, form, timeout: body.request.timeout(max_timeout)? };
            let fixed = off_thread(context.bytes, move || Ok(body.request.seen())).await?;
            Ok(Asking { request, question, fixed })
        })
    });
    let Accepted { request, priority, .. } = asked.await?;
    drop(span);
    let Checked { served, rows, form, timeout: own, .. } = request;
    let timeout = own.or(timeout);
    let bytes: usize = rows.tensors.iter().map(|tensor| tensor.bytes().len()).sum();
    let predictor = served.predictor()?;
    // As they are, as the runtime has them, and what comes of them: what has no room is not computed.
    let written = answer_bytes(predictor, &rows, &form)?;
    incoming.share.resize(bytes.saturating_mul(2).saturating_add(written))?;
    let (model, health, jobs) = (&served.model.id, &served.model.health, &predictor.jobs);
    let asked = Asked { model, health, jobs, inputs: vec![rows], priority, unit: Some(ROW), timeout };
    let mut computed = vectors::compute(&mut incoming, asked).await?;
    let Some(computed) = computed.pop() else { return Err(FlowError::WorkerLost) };
    answer(incoming.share, served.clone(), computed, form).await
}

/// What a number of an output takes as text in two places, also while the text grows.
const NUMBER_BYTES: usize = 112;
/// What an answer takes beside its tensors: names, shapes, and the client's own name of the request, of which an escape in JSON
/// makes up to six bytes of one, also while the text grows.
const HEAD_BYTES: usize = 1024 + 12 * ID_BYTES;
const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The form of an answer.
#[derive(Debug, Clone)]
pub(crate) enum Form {
    Own,
    /// The Open Inference Protocol's.
    Open {
        id: Option<String>,
        outputs: Vec<Wanted>,
    },
}

/// An output that a request asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Its place among those of the model.
    place: usize,
    /// Its bytes, behind the JSON.
    binary: bool,
}

impl Form {
    /// # Errors
    /// 400: the model has no output of a name, or one is asked for twice.
    pub(crate) fn open(model: &PredictBackend, request: &InferRequest) -> Result<Self, FlowError> {
        let (id, specs) = (request.id.clone(), &model.signature.outputs);
        let binary = request.parameters.as_ref().and_then(|parameters| parameters.binary_data_output).unwrap_or(false);
        let mut outputs: Vec<Wanted> = Vec::new();
        for (at, output) in request.outputs.iter().flatten().enumerate() {
            let path = format!("outputs[{at}].name");
            let Some(place) = specs.iter().position(|spec| spec.name == output.name) else {
                let names = specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
                let message = format!("{path}: the model has no output {}; it gives {names}", Shown(&output.name));
                return Err(FlowError::field(path, message));
            };
            if outputs.iter().any(|wanted| wanted.place == place) {
                return Err(FlowError::field(path.clone(), format!("{path}: {} comes twice", Shown(&output.name))));
            }
            let own = output.parameters.as_ref().and_then(|parameters| parameters.binary_data);
            outputs.push(Wanted { place, binary: own.unwrap_or(binary) });
        }
        if outputs.is_empty() {
            outputs = (0..specs.len()).map(|place| Wanted { place, binary }).collect();
        }
        Ok(Self::Open { id, outputs })
    }
}

/// Upper bound of what the outputs and the answer take. What cannot be counted has no room.
///
/// # Errors
/// 503: it cannot be said now.
fn answer_bytes(model: &PredictBackend, rows: &Rows, form: &Form) -> Result<usize, FlowError> {
    let shapes: Vec<&[usize]> = rows.tensors.iter().map(Tensor::shape).collect();
    let Some(outputs) = model.computing.output_shapes(&shapes).map_err(|NoAnswer| FlowError::Overloaded)? else {
        return Ok(usize::MAX);
    };
    let names: usize = model.signature.outputs.iter().map(|spec| 12 * spec.name.len() + 512).sum();
    let bytes = |(place, shape): (usize, &Vec<usize>)| {
        let numbers = volume(shape)?;
        let size = model.signature.outputs.get(place)?.datatype.bytes();
        let written = match form {
            // Each list of an output may hold one number.
            Form::Own => NUMBER_BYTES + 4 * shape.len(),
            Form::Open { outputs, .. } => match outputs.iter().find(|wanted| wanted.place == place) {
                None => 0,
                Some(Wanted { binary: true, .. }) => size,
                Some(Wanted { binary: false, .. }) => NUMBER_BYTES,
            },
        };
        numbers.checked_mul(written.checked_add(size)?)
    };
    let all = outputs.iter().enumerate().map(bytes).try_fold(0usize, |all, one| all.checked_add(one?));
    // The Open Inference Protocol's form leaves classes out, but the model gives them all the same.
    let beside = names.saturating_add(HEAD_BYTES).saturating_add(model.computing.class_bytes(rows.rows));
    Ok(all.map_or(usize::MAX, |all| all.saturating_add(beside)))
}

/// # Errors
/// The answer cannot be written.
async fn answer(share: Share, served: Arc<Served>, computed: Predicted, form: Form) -> Result<Response, FlowError> {
    budget::rendered(share, move |share| match &form {
        Form::Own => budget::json(&prediction(&served, &computed)?, share),
        Form::Open { id, outputs } => open(&served, &computed, (id.as_deref(), outputs), share),
    })
    .await
}

fn open(
    served: &Served,
    computed: &Predicted,
    (id, outputs): (Option<&str>, &[Wanted]),
    share: Share,
) -> Result<Response, FlowError> {
    let specs = &served.predictor()?.signature.outputs;
    let output = |wanted: &Wanted| {
        let (spec, tensor) = (specs.get(wanted.place)?, computed.tensors.get(wanted.place)?);
        Some(open_inference::Output { name: &spec.name, tensor, binary: wanted.binary })
    };
    let outputs: Vec<_> = outputs.iter().filter_map(output).collect();
    let (body, length) = open_inference::answer(&served.model.id, id, &outputs).map_err(FlowError::Serialize)?;
    let content_type = if length.is_some() { BYTES } else { JSON };
    let mut response = ([(header::CONTENT_TYPE, content_type)], budget::body(body, share)).into_response();
    if let Some(length) = length {
        response.headers_mut().insert(JSON_LENGTH, length.into());
    }
    Ok(response)
}

#[derive(Debug, Serialize)]
struct Prediction<'a> {
    model: &'a str,
    outputs: Outputs<'a>,
    /// Of a model that gives one tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<NestedLists<'a>>,
    /// Of a model that classifies, for each row.
    #[serde(skip_serializing_if = "Option::is_none")]
    classes: Option<&'a [Vec<Class>]>,
    inference_ms: f64,
}

/// In the order in which the model gives them.
#[derive(Debug)]
struct Outputs<'a>(Vec<(&'a str, TensorObject<'a>)>);

impl Serialize for Outputs<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, tensor)| (name, tensor)))
    }
}

fn prediction<'a>(served: &'a Served, predicted: &'a Predicted) -> Result<Prediction<'a>, FlowError> {
    let Predicted { tensors, classes, took } = predicted;
    let names = served.predictor()?.signature.outputs.iter().map(|output| output.name.as_str());
    Ok(Prediction {
        model: &served.model.id,
        outputs: Outputs(names.zip(tensors.iter().map(TensorObject::from)).collect()),
        output: match &tensors[..] {
            [only] => Some(NestedLists::of(only)),
            _ => None,
        },
        classes: classes.as_deref(),
        inference_ms: took.as_micros() as f64 / 1e3,
    })
}

/// The tensors in the order in which the model takes them.
///
/// # Errors
/// 400 that names the input: it is missing, unknown, there twice, not of the shape or the type that the model takes, or too large.
pub(crate) fn rows(model: &PredictBackend, written: Vec<RequestTensor<'_>>) -> Result<Rows, FlowError> {
    let specs = &model.signature.inputs;
    let names = || specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut tensors: Vec<Option<(String, Tensor)>> = specs.iter().map(|_| None).collect();
    for tensor in written {
        let path = tensor.path.clone();
        let at = match (tensor.name(), specs.len()) {
            (None, 1) => 0,
            (None, _) => {
                let message = format!("{path} is for models with one input; this one takes {}: use {INPUTS}", names());
                return Err(FlowError::field(path, message));
            }
            (Some(name), _) => match specs.iter().position(|spec| spec.name == name) {
                Some(at) => at,
                None => {
                    let is_output = model.signature.outputs.iter().any(|spec| spec.name == name);
                    let is = if is_output { "which is an output; " } else { "" };
                    let message = format!("{path}: the model has no input {}; {is}it takes {}", Shown(name), names());
                    return Err(FlowError::field(path, message));
                }
            },
        };
        if tensors[at].is_some() {
            return Err(FlowError::field(path.clone(), format!("{path} gives the input {} twice", specs[at].name)));
        }
        tensors[at] = Some((path, tensor.read(specs[at].datatype)?));
    }
    add_mask(model, &mut tensors)?;
    if let Some(missing) = tensors.iter().position(Option::is_none) {
        let path = match specs.len() {
            1 => INPUT.to_owned(),
            _ => format!("{INPUTS}.{}", specs[missing].name),
        };
        return Err(FlowError::field(path.clone(), format!("{path} is required: the model takes {}", names())));
    }
    let (paths, tensors): (Vec<String>, Vec<Tensor>) = tensors.into_iter().flatten().unzip();
    let rows = model.signature.check(&tensors).map_err(|mismatch| {
        let at = specs.iter().position(|spec| spec.name == mismatch.input()).unwrap_or(0);
        FlowError::field(paths.get(at).cloned().unwrap_or_default(), mismatch.to_string())
    })?;
    let shapes: Vec<&[usize]> = tensors.iter().map(Tensor::shape).collect();
    match model.computing.run_bytes(&shapes).map_err(|NoAnswer| FlowError::Overloaded)? {
        Some(bytes) if bytes <= RUN_BYTES => Ok(Rows { tensors: tensors.into(), rows }),
        bytes => {
            let bytes = bytes.map_or("more than can be counted".to_owned(), |bytes| format!("{bytes} bytes"));
            let message = format!("computing tensors of these shapes takes {bytes}, a request may take {RUN_BYTES}");
            Err(FlowError::field(paths.into_iter().next().unwrap_or_default(), message))
        }
    }
}

/// Adds the mask that clients may leave out, if this one did.
fn add_mask(model: &PredictBackend, tensors: &mut [Option<(String, Tensor)>]) -> Result<(), FlowError> {
    let signature = &model.signature;
    let Some(MaskInput { input, like: at }) = signature.mask else { return Ok(()) };
    let (Some(None), Some(Some((path, like)))) = (tensors.get(input), tensors.get(at)) else { return Ok(()) };
    match signature.mask_of(like) {
        Some(mask) => tensors[input] = Some((path.clone(), mask)),
        None => {
            let inputs = signature.inputs.get(at).cloned().into_iter().collect();
            let alone = Signature { inputs, outputs: Vec::new(), rows: false, mask: None };
            let checked = alone.check(std::slice::from_ref(like));
            checked.map_err(|mismatch| FlowError::field(path.clone(), mismatch.to_string()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use camshaft_core::jobs::BatchLimits;
    use camshaft_core::pool::Watermarks;
    use camshaft_core::tensor::{Axis, Computing, Datatype, TensorSpec, volume};

    use std::sync::Arc;

    use super::*;
    use crate::flow::backend::PredictInfo;
    use crate::flow::jobs;
    use crate::wire::{read, tensors};

    /// Computing a number takes half of what a run may take.
    #[derive(Debug)]
    struct Halves;

    impl Computing for Halves {
        fn run_bytes(&self, shapes: &[&[usize]]) -> Result<Option<u64>, NoAnswer> {
            if shapes[0] == [4] {
                return Err(NoAnswer);
            }
            Ok(volume(shapes[0]).map(|numbers| RUN_BYTES / 2 * numbers as u64))
        }

        fn output_shapes(&self, shapes: &[&[usize]]) -> Result<Option<Vec<Vec<usize>>>, NoAnswer> {
            Ok(Some(vec![shapes[0].to_vec()]))
        }
    }

    #[test]
    fn a_request_that_takes_more_memory_than_a_run_may_is_refused() {
        let limits = BatchLimits { size: 1, inputs: 1, window: Duration::ZERO };
        let watermarks = Watermarks { high: 1, low: 1 };
        let (jobs, _work) = jobs::jobs(move || jobs::QueueBounds { watermarks, batch: limits });
        let spec =
            TensorSpec { name: "x".to_owned(), datatype: Datatype::Fp32, shape: vec![Axis::Any("n".to_owned())] };
        let model = PredictBackend {
            jobs,
            info: PredictInfo {
                name: String::new(),
                format: "onnx".into(),
                backend: "tract".into(),
                parameters: 0,
                weight_bytes: 0,
                sha256: None,
            },
            signature: Signature { inputs: vec![spec.clone()], outputs: vec![spec], rows: true, mask: None },
            computing: Arc::new(Halves),
        };
        let asked = |body: &str| {
            let request = read::read(body).unwrap().request;
            rows(&model, tensors::of_predict(&request).unwrap())
        };
        let fits = asked(r#"{"input": [1, 2]}"#).unwrap();
        assert_eq!(fits.rows, 2);
        let error = asked(r#"{"input": [1, 2, 3]}"#).unwrap_err().to_string();
        assert!(error.contains("takes 1610612736 bytes, a request may take 1073741824"), "{error}");
        let busy = asked(r#"{"input": [1, 2, 3, 4]}"#);
        assert!(matches!(busy, Err(FlowError::Overloaded)), "it is not the client's fault");
    }
}
