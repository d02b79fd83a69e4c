//! Serves a prediction: reads tensors, validates, has the model compute them and answers with tensors.
use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use camshaft_core::engine::ModelKind;
use camshaft_core::limits::RUN_BYTES;
use camshaft_core::policy::{Endpoint, Target, ValidateRequest};
use camshaft_core::tensor::{Class, Predicted, Rows, Tensor, volume};
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::flow::api::Served;
use crate::flow::backend::PredictBackend;
use crate::flow::compute::{self, Asked};
use crate::flow::context::ParseContext;
use crate::flow::error::FlowError;
use crate::flow::incoming::Incoming;
use crate::flow::kept;
use crate::flow::trace;
use crate::flow::validate::{self, Accepted, Draft, Validated};
use crate::wire::echo::Shown;
use crate::wire::json::{self, Body};
use crate::wire::params;
use crate::wire::tensors::{INPUT, INPUTS, NestedLists, TensorObject, Tensors, Written, read_bytes};

const MODEL: &str = "model";
/// What a number of an output takes as text in two places, also while the text grows.
const NUMBER_BYTES: usize = 112;

/// A checked request.
#[derive(Debug)]
struct PredictRequest {
    served: Arc<Served>,
    rows: Rows,
    /// What stands for the tensors in the body that validators see.
    seen: Vec<Option<Value>>,
    timeout: Option<Duration>,
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

/// `model`: from the path; then the body need not name it.
///
/// # Errors
/// Any failure before the tensors are computed.
pub(crate) async fn respond(mut incoming: Incoming, model: Option<String>) -> Result<Response, FlowError> {
    let limits = incoming.api.limits();
    let from_header = params::timeout_header(&incoming.headers, limits.max_timeout)?;
    incoming.share.grow(read_bytes(&incoming.text))?;
    let span = trace::validate(incoming.exchange.span());
    let read = move |context: ParseContext<'_>, text: &str| read(context, text, model.as_deref());
    let Accepted { request, priority, .. } = incoming.read(from_header, read).await?;
    drop(span);
    let PredictRequest { served, rows, timeout, .. } = request;
    let bytes: usize = rows.tensors.iter().map(|tensor| tensor.bytes().len()).sum();
    let predictor = served.predictor()?;
    // As they are, as the runtime has them, and what comes of them: what has no room is not computed.
    incoming.share.resize(bytes.saturating_mul(2).saturating_add(answer_bytes(predictor, &rows)))?;
    let (model, timeout) = (&served.model.id, timeout.or(from_header));
    let asked = Asked { model, jobs: &predictor.jobs, inputs: vec![rows], priority, timeout };
    let mut predicted = compute::compute(&mut incoming, asked).await?;
    let Some(predicted) = predicted.pop() else { return Err(FlowError::WorkerLost) };
    let served = served.clone();
    kept::rendered(incoming.share, move |share| kept::json(&prediction(&served, &predicted)?, share)).await
}

/// Upper bound of what the answer takes.
fn answer_bytes(model: &PredictBackend, rows: &Rows) -> usize {
    let shapes: Vec<&[usize]> = rows.tensors.iter().map(Tensor::shape).collect();
    // Each list of an output may hold one number.
    let bytes = |shape: &Vec<usize>| Some(volume(shape)?.saturating_mul(NUMBER_BYTES + 4 * shape.len()));
    let outputs = model.computing.output_shapes(&shapes);
    let all = outputs
        .and_then(|outputs| outputs.iter().map(bytes).try_fold(0usize, |all, one| Some(all.saturating_add(one?))));
    all.unwrap_or(usize::MAX).saturating_add(model.computing.class_bytes(rows.rows))
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

fn read(context: ParseContext<'_>, text: &str, model: Option<&str>) -> Result<Accepted<PredictRequest>, FlowError> {
    let mut tensors = Tensors::default();
    let mut body = Body::from(json::parse_with(text, &mut tensors)?);
    if let Some(model) = model {
        if body.fields().text(MODEL)?.is_some_and(|named| named != model) {
            return Err(FlowError::field(MODEL, format!("model must be {} as in the path, or left out", Shown(model))));
        }
        body.set(MODEL, model.into());
    }
    let served = model_of(context, &body)?;
    let rows = rows(served.predictor()?, tensors.tensors)?;
    let request = parse(context, &body, rows)?;
    validate::run(context, body, request)
}

fn model_of<'a>(context: ParseContext<'a>, body: &Body) -> Result<&'a Arc<Served>, FlowError> {
    let name = body.fields().text(MODEL)?.map(str::to_owned);
    context.api.model_of_kind(name.as_deref(), ModelKind::Predict, context.caller)
}

fn parse(context: ParseContext<'_>, body: &Body, rows: Rows) -> Result<PredictRequest, FlowError> {
    let fields = body.fields();
    let served = model_of(context, body)?.clone();
    served.predictor()?;
    let timeout = params::timeout(&fields, context.api.limits().max_timeout)?;
    let seen = [INPUT, INPUTS].map(|name| fields.get(name).cloned()).to_vec();
    Ok(PredictRequest { served, rows, seen, timeout })
}

/// The tensors in the order in which the model takes them.
///
/// # Errors
/// 400 that names the input: it is missing, unknown, there twice, not of the shape or the type that the model takes, or too large.
fn rows(model: &PredictBackend, written: Vec<Written>) -> Result<Rows, FlowError> {
    let specs = &model.signature.inputs;
    let names = || specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ");
    let mut tensors: Vec<Option<(String, Tensor)>> = specs.iter().map(|_| None).collect();
    for tensor in written {
        let path = tensor.path.clone();
        let at = match (&tensor.name, specs.len()) {
            (None, 1) => 0,
            (None, _) => {
                let message = format!("{path} is for models with one input; this one takes {}: use {INPUTS}", names());
                return Err(FlowError::field(path, message));
            }
            (Some(name), _) => match specs.iter().position(|spec| spec.name == *name) {
                Some(at) => at,
                None => {
                    let message = format!("{path}: the model has no input {}; it takes {}", Shown(name), names());
                    return Err(FlowError::field(path, message));
                }
            },
        };
        if tensors[at].is_some() {
            return Err(FlowError::field(path.clone(), format!("{path} gives the input {} twice", specs[at].name)));
        }
        tensors[at] = Some((path, tensor.read(specs[at].datatype)?));
    }
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
    match model.computing.run_bytes(&shapes) {
        Some(bytes) if bytes <= RUN_BYTES => Ok(Rows { tensors: tensors.into(), rows }),
        bytes => {
            let bytes = bytes.map_or("more than can be counted".to_owned(), |bytes| format!("{bytes} bytes"));
            let message = format!("computing tensors of these shapes takes {bytes}, a request may take {RUN_BYTES}");
            Err(FlowError::field(paths.into_iter().next().unwrap_or_default(), message))
        }
    }
}

impl Validated for PredictRequest {
    fn parse(&self, context: ParseContext<'_>, body: &Body) -> Result<Self, FlowError> {
        parse(context, body, self.rows.clone())
    }

    fn target<'a>(&'a self, context: ParseContext<'a>) -> Target<'a> {
        let tenant = &context.caller.principal.tenant;
        Target { tenant, model: &self.served.model.id, endpoint: Endpoint::Prediction }
    }

    fn question(&self, context: ParseContext<'_>, draft: Draft<'_>) -> ValidateRequest {
        ValidateRequest {
            endpoint: Endpoint::Prediction,
            model: self.served.model.id.clone(),
            tenant: context.caller.principal.tenant.clone(),
            principal: context.caller.principal.name.clone(),
            marks: draft.marks.clone(),
            estimated_cost: self.rows.rows.into(),
            body: draft.body.to_owned(),
            prompt_tokens: 0,
            max_tokens: 0,
            max_tokens_set: false,
            temperature: 0.0,
            top_p: 1.0,
            n: 1,
            stream: false,
        }
    }

    fn is_same_kind(&self, before: &Self) -> bool {
        // Validators see shapes, not numbers: they cannot write others.
        self.served.model.id == before.served.model.id && self.seen == before.seen
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use camshaft_core::jobs::BatchLimits;
    use camshaft_core::jobs::queue::JobQueue;
    use camshaft_core::pool::Watermarks;
    use camshaft_core::tensor::{Axis, Computing, Datatype, Signature, TensorSpec};

    use super::*;
    use crate::flow::backend::PredictInfo;
    use crate::flow::jobs;

    /// Computing a number takes half of what a run may take.
    #[derive(Debug)]
    struct Halves;

    impl Computing for Halves {
        fn run_bytes(&self, shapes: &[&[usize]]) -> Option<u64> {
            Some(RUN_BYTES / 2 * volume(shapes[0])? as u64)
        }

        fn output_shapes(&self, shapes: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
            Some(vec![shapes[0].to_vec()])
        }
    }

    #[test]
    fn a_request_that_takes_more_memory_than_a_run_may_is_refused() {
        let limits = BatchLimits { size: 1, inputs: 1, window: Duration::ZERO };
        let watermarks = Watermarks { high: 1, low: 1 };
        let (jobs, _work) = jobs::jobs(JobQueue::new(limits, watermarks), move || watermarks);
        let spec =
            TensorSpec { name: "x".to_owned(), datatype: Datatype::Fp32, shape: vec![Axis::Any("n".to_owned())] };
        let model = PredictBackend {
            jobs,
            info: PredictInfo {
                name: String::new(),
                format: "onnx",
                backend: "tract",
                parameters: 0,
                weight_bytes: 0,
                sha256: None,
            },
            signature: Signature { inputs: vec![spec.clone()], outputs: vec![spec], rows: true },
            computing: Arc::new(Halves),
        };
        let asked = |body: &str| {
            let mut tensors = Tensors::default();
            json::parse_with(body, &mut tensors).unwrap();
            rows(&model, tensors.tensors)
        };
        let fits = asked(r#"{"input": [1, 2]}"#).unwrap();
        assert_eq!((fits.rows, answer_bytes(&model, &fits)), (2, 2 * (NUMBER_BYTES + 4)));
        let error = asked(r#"{"input": [1, 2, 3]}"#).unwrap_err().to_string();
        assert!(error.contains("takes 1610612736 bytes, a request may take 1073741824"), "{error}");
    }
}
