//! A tensor as a client wrote it, until it is known which one the model takes.
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camshaft_core::tensor::{Datatype, Number, Tensor, volume};
use serde_json::{Value, json};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::nested::Nested;

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
                let mut wrong = None;
                let fine = numbers.all(|place, number| {
                    let is_one = datatype.write(number, &mut bytes);
                    if !is_one {
                        wrong = Some((place, number));
                    }
                    is_one
                });
                if !fine && let Some((place, number)) = wrong {
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
        };
        Tensor::new(datatype, shape, bytes)
            .map_err(|error| RequestError::field(path.clone(), format!("{path}: {error}")))
    }

    /// What policies see in its place.
    pub(crate) fn summary(&self) -> Value {
        let shape = match (&self.shape, &self.data) {
            (Some(shape), _) => Some(shape),
            (None, Data::Numbers(nested)) => Some(&nested.shape),
            (None, Data::Base64(_)) => None,
        };
        json!({"shape": shape, "datatype": self.datatype})
    }
}

fn shown(number: Number) -> String {
    match number {
        Number::Bool(number) => number.to_string(),
        Number::Unsigned(number) => number.to_string(),
        Number::Signed(number) => number.to_string(),
        Number::Single(number) => number.to_string(),
        Number::Double(number) => number.to_string(),
    }
}
