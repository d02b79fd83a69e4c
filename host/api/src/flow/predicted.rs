//! Answers with the tensors that a model gave, in the form that the request asks for.
use std::sync::Arc;

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use camshaft_core::tensor::{Class, Predicted, Rows, Tensor, volume};
use serde::{Serialize, Serializer};

use crate::flow::backend::PredictBackend;
use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::kept;
use crate::flow::served::Served;
use crate::wire::echo::Shown;
use crate::wire::open_inference::{self, JSON_LENGTH};
use crate::wire::tensor_objects::{NestedLists, TensorObject};
use crate::wire::types::tensors::{ID_BYTES, InferRequest};

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
pub(crate) fn answer_bytes(model: &PredictBackend, rows: &Rows, form: &Form) -> usize {
    let shapes: Vec<&[usize]> = rows.tensors.iter().map(Tensor::shape).collect();
    let Some(outputs) = model.computing.output_shapes(&shapes) else { return usize::MAX };
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
    all.map_or(usize::MAX, |all| all.saturating_add(beside))
}

/// # Errors
/// The answer cannot be written.
pub(crate) async fn render(
    share: Share,
    served: Arc<Served>,
    computed: Predicted,
    form: Form,
) -> Result<Response, FlowError> {
    kept::rendered(share, move |share| match &form {
        Form::Own => kept::json(&prediction(&served, &computed)?, share),
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
    let mut response = ([(header::CONTENT_TYPE, content_type)], kept::body(body, share)).into_response();
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
