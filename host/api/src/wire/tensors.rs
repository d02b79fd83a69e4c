//! The tensors of a request, each with its path in the body, as the model takes them.
use axum::body::Bytes;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camshaft_core::tensor::{Datatype, Number, Tensor, volume};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::nested::{Nested, Numbers};
use crate::wire::types::tensors::{InferRequest, InputTensor, PredictRequest, TensorData};

/// The tensor of a model that takes one.
pub(crate) const INPUT: &str = "input";
/// Tensors by their names.
pub(crate) const INPUTS: &str = "inputs";
/// The parameter of a tensor whose bytes are behind the JSON: how many.
const BINARY_SIZE: &str = "binary_data_size";

/// A tensor of a request.
#[derive(Debug)]
pub(crate) struct RequestTensor<'a> {
    /// Its path in the body.
    pub(crate) path: String,
    tensor: &'a InputTensor,
    /// Its bytes, where they are behind the JSON.
    bytes: Option<Bytes>,
}

/// Those of a request to predict.
///
/// # Errors
/// 400: one in a list has no name.
pub(crate) fn of_predict(request: &PredictRequest) -> Result<Vec<RequestTensor<'_>>, RequestError> {
    let one = |path: String, tensor| RequestTensor { path, tensor, bytes: None };
    let mut all: Vec<_> = request.input.iter().map(|tensor| one(INPUT.to_owned(), tensor)).collect();
    for (at, tensor) in request.inputs.iter().flat_map(|inputs| inputs.tensors.iter().enumerate()) {
        let is_object = request.inputs.as_ref().is_some_and(|inputs| inputs.is_object);
        let path = match &tensor.name {
            Some(name) if is_object => format!("{INPUTS}.{}", Shown(name)),
            Some(_) => format!("{INPUTS}[{at}]"),
            None => return Err(required(&format!("{INPUTS}[{at}].name"))),
        };
        all.push(one(path, tensor));
    }
    Ok(all)
}

/// Those of a request of the Open Inference Protocol. `tail`: what is behind its JSON, one tensor's bytes after the other's.
///
/// # Errors
/// 400: something of a tensor is missing or not supported, or the bytes are not as many as the tensors say together.
pub(crate) fn of_infer<'a>(request: &'a InferRequest, tail: &Bytes) -> Result<Vec<RequestTensor<'a>>, RequestError> {
    let Some(inputs) = &request.inputs else { return Err(required(INPUTS)) };
    let (mut all, mut at) = (Vec::with_capacity(inputs.0.len()), 0usize);
    for (i, tensor) in inputs.0.iter().enumerate() {
        let path = format!("{INPUTS}[{i}]");
        let absent = [
            ("name", tensor.name.is_none()),
            ("shape", tensor.shape.is_none()),
            ("datatype", tensor.datatype.is_none()),
        ];
        if let Some((absent, _)) = absent.into_iter().find(|(_, is_absent)| *is_absent) {
            return Err(required(&format!("{path}.{absent}")));
        }
        if tensor.parameters.shared_memory_region.is_some() {
            let path = format!("{path}.parameters.shared_memory_region");
            let message = format!("{path} is not supported: no memory is shared with clients");
            return Err(RequestError::field(path, message));
        }
        let refuse = |why: &str| {
            let path = format!("{path}.data");
            Err(RequestError::field(path.clone(), format!("{path} {why}")))
        };
        let bytes = match (&tensor.data, tensor.parameters.binary_data_size) {
            (Some(_), Some(_)) => return refuse("may not come together with parameters.binary_data_size"),
            (Some(TensorData::Base64(_)), None) => return refuse("must be a list of numbers"),
            (Some(TensorData::Numbers(_)), None) => None,
            (None, None) => return refuse("is required, or the parameter binary_data_size"),
            (None, Some(size)) => {
                let (left, begin) = (tail.len() - at, at);
                let Some(end) = at.checked_add(size).filter(|&end| end <= tail.len()) else {
                    let path = format!("{path}.parameters.{BINARY_SIZE}");
                    let message =
                        format!("{path} must be at most {left}, the bytes that are left behind the JSON, got {size}");
                    return Err(RequestError::field(path, message));
                };
                at = end;
                Some(tail.slice(begin..end))
            }
        };
        all.push(RequestTensor { path, tensor, bytes });
    }
    match tail.len() - at {
        0 => Ok(all),
        left => {
            let message = format!("{left} bytes behind the JSON belong to no input: {BINARY_SIZE} of all is {at}");
            Err(RequestError::field(BINARY_SIZE, message))
        }
    }
}

fn required(path: &str) -> RequestError {
    RequestError::field(path, format!("{path} is required"))
}

impl RequestTensor<'_> {
    /// `None`: the model takes one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.tensor.name.as_deref()
    }

    /// The tensor that a model takes, whose numbers have the type `datatype` unless the client names one.
    ///
    /// # Errors
    /// 400: its numbers are not as many as its shape says, or of another type.
    pub(crate) fn read(&self, datatype: Datatype) -> Result<Tensor, RequestError> {
        let Self { path, tensor, bytes } = self;
        let datatype = tensor.datatype.unwrap_or(datatype);
        let shape = tensor.shape().cloned();
        let (shape, bytes) = match (&tensor.data, bytes) {
            (_, Some(bytes)) => (shape.unwrap_or_default(), bytes.to_vec()),
            (None, None) if path == INPUT => {
                let why = "input.data is required; tensors by their names are in inputs: {\"inputs\": {…}}";
                return Err(RequestError::field("input.data", why));
            }
            (None, None) => return Err(required(&format!("{path}.data"))),
            (Some(TensorData::Numbers(Nested { numbers, .. })), None) => {
                let shape = shape.unwrap_or_default();
                if volume(&shape) != Some(numbers.len()) {
                    let got = numbers.len();
                    let message = format!("{path} must have as many numbers as its shape {shape:?} says, got {got}");
                    return Err(RequestError::field(path, message));
                }
                let mut bytes = Vec::with_capacity(numbers.len() * datatype.bytes());
                if let Err((place, number)) = write(numbers, datatype, &mut bytes) {
                    let number = Shown(&shown(number)).to_string();
                    let message = format!("number {place} of {path} must be {datatype}, got {number}");
                    return Err(RequestError::field(path, message));
                }
                (shape, bytes)
            }
            (Some(TensorData::Base64(text)), None) => {
                let Some(shape) = shape else {
                    let path = format!("{path}.shape");
                    return Err(RequestError::field(path.clone(), format!("{path} is required beside data in base64")));
                };
                let bytes = STANDARD.decode(text).map_err(|error| {
                    RequestError::field(format!("{path}.data"), format!("{path}.data is not base64: {error}"))
                })?;
                (shape, bytes)
            }
        };
        Tensor::new(datatype, shape, bytes)
            .map_err(|error| RequestError::field(path.clone(), format!("{path}: {error}")))
    }
}

/// Appends all numbers. Fails with the place of one that the type does not have.
fn write(numbers: &Numbers, datatype: Datatype, bytes: &mut Vec<u8>) -> Result<(), (usize, Number)> {
    let mut wrong = None;
    numbers.all(|place, number| {
        if !datatype.write(number, bytes) {
            wrong = Some((place, number));
        }
        wrong.is_none()
    });
    let Some((place, number)) = wrong else { return Ok(()) };
    // Beside one with a fraction, whole numbers are read as floating-point ones: that one is at fault.
    let mut fraction = None;
    if let Numbers::Floats(floats) = numbers
        && number.to_f64().fract() == 0.0
    {
        fraction =
            floats.iter().position(|number| number.fract() != 0.0).map(|place| (place, Number::Double(floats[place])));
    }
    Err(fraction.unwrap_or((place, number)))
}
/// As JSON writes it: floating-point numbers with a point or an exponent, so that they differ from integers.
fn shown(number: Number) -> String {
    match number {
        Number::Bool(number) => number.to_string(),
        Number::Unsigned(number) => number.to_string(),
        Number::Signed(number) => number.to_string(),
        Number::Single(number) => format!("{number:?}"),
        Number::Double(number) => format!("{number:?}"),
    }
}

#[cfg(test)]
#[path = "tensors_tests.rs"]
mod tests;
