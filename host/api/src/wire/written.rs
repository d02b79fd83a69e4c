//! A tensor as a client wrote it, until it is known which one the model takes.
use axum::body::Bytes;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camshaft_core::tensor::{Datatype, Number, Tensor, volume};
use serde_json::{Value, json};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::nested::{Nested, Numbers};

/// The parameter of a tensor whose bytes are behind the JSON: how many.
pub(super) const BINARY_SIZE: &str = "binary_data_size";

/// A tensor as a client wrote it.
#[derive(Debug)]
pub(crate) struct Written {
    /// Its path in the body.
    pub(crate) path: String,
    /// `None`: the model takes one.
    pub(crate) name: Option<String>,
    pub(super) shape: Option<Vec<usize>>,
    pub(super) datatype: Option<Datatype>,
    pub(super) data: Data,
}

#[derive(Debug)]
pub(super) enum Data {
    Numbers(Nested),
    /// Little-endian bytes.
    Base64(String),
    /// How many of the bytes behind the JSON are its own.
    Behind(usize),
    Bytes(Bytes),
}

impl Written {
    /// The tensor that a model takes, whose numbers have the type `datatype` unless the client names one.
    ///
    /// # Errors
    /// 400: its numbers are not as many as its shape says, or of another type.
    pub(crate) fn read(self, datatype: Datatype) -> Result<Tensor, RequestError> {
        let Self { path, shape, data, .. } = self;
        let datatype = self.datatype.unwrap_or(datatype);
        let (shape, bytes) = match data {
            Data::Numbers(Nested { shape: nested, numbers }) => {
                let shape = shape.unwrap_or(nested);
                if volume(&shape) != Some(numbers.len()) {
                    let got = numbers.len();
                    let message = format!("{path} must have as many numbers as its shape {shape:?} says, got {got}");
                    return Err(RequestError::field(path, message));
                }
                let mut bytes = Vec::with_capacity(numbers.len() * datatype.bytes());
                if let Err((place, number)) = write(&numbers, datatype, &mut bytes) {
                    let number = Shown(&shown(number)).to_string();
                    let message = format!("number {place} of {path} must be {datatype}, got {number}");
                    return Err(RequestError::field(path, message));
                }
                (shape, bytes)
            }
            Data::Base64(text) => {
                let Some(shape) = shape else {
                    let path = format!("{path}.shape");
                    return Err(RequestError::field(path.clone(), format!("{path} is required beside data in base64")));
                };
                let bytes = STANDARD.decode(text).map_err(|error| {
                    RequestError::field(format!("{path}.data"), format!("{path}.data is not base64: {error}"))
                })?;
                (shape, bytes)
            }
            // Nobody has given it its bytes: there were none.
            Data::Behind(_) => (shape.unwrap_or_default(), Vec::new()),
            Data::Bytes(bytes) => (shape.unwrap_or_default(), bytes.to_vec()),
        };
        Tensor::new(datatype, shape, bytes)
            .map_err(|error| RequestError::field(path.clone(), format!("{path}: {error}")))
    }

    /// What policies see in its place.
    pub(crate) fn summary(&self) -> Value {
        let shape = match (&self.shape, &self.data) {
            (Some(shape), _) => Some(shape),
            (None, Data::Numbers(nested)) => Some(&nested.shape),
            (None, Data::Base64(_) | Data::Behind(_) | Data::Bytes(_)) => None,
        };
        json!({"shape": shape, "datatype": self.datatype})
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

/// Gives the tensors that say so their bytes, which come one after the other behind the JSON of a body.
///
/// # Errors
/// 400: they are not as many as the tensors say together.
pub(crate) fn attach(tensors: &mut [Written], tail: &Bytes) -> Result<(), RequestError> {
    let mut at = 0usize;
    for tensor in tensors {
        let Data::Behind(size) = tensor.data else { continue };
        let (left, begin) = (tail.len() - at, at);
        let Some(end) = at.checked_add(size).filter(|&end| end <= tail.len()) else {
            let path = format!("{}.parameters.{BINARY_SIZE}", tensor.path);
            let message = format!("{path} must be at most {left}, the bytes that are left behind the JSON, got {size}");
            return Err(RequestError::field(path, message));
        };
        at = end;
        tensor.data = Data::Bytes(tail.slice(begin..end));
    }
    match tail.len() - at {
        0 => Ok(()),
        left => {
            let message = format!("{left} bytes behind the JSON belong to no input: {BINARY_SIZE} of all is {at}");
            Err(RequestError::field(BINARY_SIZE, message))
        }
    }
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
