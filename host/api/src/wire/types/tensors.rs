//! Tensors in bodies: `/predict`, and the Open Inference Protocol, version 2, over HTTP (KServe, with Triton's extension for binary tensor
//! data).
use std::fmt;

use camshaft_core::tensor::Datatype;
use garde::Validate;
use garde::rules::length::simple::HasSimpleLength;
use schemars::JsonSchema;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_with::skip_serializing_none;

use crate::wire::nested::{AXES, Element, Nested, Reader};
use crate::wire::read::request;
use crate::wire::read::rules::refused;

/// Tensors of one request.
pub(crate) const TENSORS: usize = 64;
/// Bytes of the name that a client gives a request.
pub(crate) const ID_BYTES: usize = 1024;

request! {
    PredictRequest {
        /// An id from `/v1/models`; the only tensor model where one is served or allowed.
        model: String,
        /// The tensor of a model that takes one.
        #[schemars(with = "Option<Value>")]
        input: InputTensor,
        /// Tensors by their names: an object, or a list of objects that have names.
        #[garde(length(max = TENSORS))]
        #[schemars(with = "Option<Value>")]
        inputs: NamedTensors,
        /// Seconds from arrival to the answer.
        #[garde(range(min = 0.001))]
        timeout: f64,
    }
}

request! {
    /// Of the Open Inference Protocol.
    InferRequest {
        /// As the path has it.
        model: String,
        /// Comes back in the answer.
        #[garde(length(max = ID_BYTES))]
        id: String,
        #[garde(length(max = TENSORS))]
        #[schemars(with = "Option<Value>")]
        inputs: InferInputs,
        /// In the order of the answer; absent or empty: all.
        #[garde(dive)]
        outputs: Vec<InferRequestedOutput>,
        #[garde(dive)]
        parameters: InferParameters,
    }
}

/// Beside the tensors.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
#[serde(default)]
pub(crate) struct InferParameters {
    /// Whether outputs that do not say are bytes.
    pub(crate) binary_data_output: Option<bool>,
    /// Microseconds; 0: none.
    pub(crate) timeout: Option<u64>,
    #[garde(custom(asks_nothing("is not supported: no model keeps anything of a request for the next one")))]
    pub(crate) sequence_id: Option<Value>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
pub(crate) struct InferRequestedOutput {
    pub(crate) name: String,
    #[garde(dive)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parameters: Option<OutputParameters>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
#[serde(default)]
pub(crate) struct OutputParameters {
    pub(crate) binary_data: Option<bool>,
    #[garde(custom(asks_nothing("is not supported: ask for the output itself")))]
    pub(crate) classification: Option<Value>,
    #[garde(custom(refused("is not supported: no memory is shared with clients")))]
    pub(crate) shared_memory_region: Option<Value>,
}

/// As [`refused`], where 0 asks for nothing.
fn asks_nothing(why: &'static str) -> impl FnOnce(&Option<Value>, &()) -> garde::Result {
    move |value, &()| match value {
        Some(value) if value.as_u64() == Some(0) => Ok(()),
        value => refused(why)(value, &()),
    }
}

/// A tensor as a client wrote it: numbers, nested lists of them, or an object. Policies see its shape and its type.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct InputTensor {
    /// In a list of tensors.
    pub(crate) name: Option<String>,
    pub(crate) shape: Option<Vec<usize>>,
    pub(crate) datatype: Option<Datatype>,
    /// `None`: it is behind the JSON, or what policies have seen in its place.
    pub(crate) data: Option<TensorData>,
    pub(crate) parameters: InputParameters,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TensorData {
    Numbers(Nested),
    /// Little-endian bytes.
    Base64(String),
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct InputParameters {
    /// How many of the bytes behind the JSON are its own.
    pub(crate) binary_data_size: Option<usize>,
    /// It lies in memory which the client shares with a server.
    pub(crate) shared_memory_region: Option<String>,
}

impl InputTensor {
    /// Of its numbers, where the client does not say.
    pub(crate) fn shape(&self) -> Option<&Vec<usize>> {
        match (&self.shape, &self.data) {
            (Some(shape), _) => Some(shape),
            (None, Some(TensorData::Numbers(nested))) => Some(&nested.shape),
            (None, _) => None,
        }
    }

    fn seen<'a>(&'a self, name: Option<&'a str>) -> Seen<'a> {
        Seen { name, shape: self.shape(), datatype: self.datatype }
    }
}

impl Serialize for InputTensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.seen(self.name.as_deref()).serialize(serializer)
    }
}

/// What policies see of a tensor.
#[derive(Serialize)]
struct Seen<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    shape: Option<&'a Vec<usize>>,
    datatype: Option<Datatype>,
}

/// Tensors by their names.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NamedTensors {
    pub(crate) tensors: Vec<InputTensor>,
    /// Written as an object.
    pub(crate) is_object: bool,
}

/// Tensors that have names, in a list.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct InferInputs(pub(crate) Vec<InputTensor>);

impl HasSimpleLength for NamedTensors {
    fn length(&self) -> usize {
        self.tensors.len()
    }
}

impl HasSimpleLength for InferInputs {
    fn length(&self) -> usize {
        self.0.len()
    }
}

impl Serialize for NamedTensors {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.is_object {
            false => self.tensors.serialize(serializer),
            true => serializer.collect_map(
                self.tensors.iter().map(|tensor| (tensor.name.as_deref().unwrap_or_default(), tensor.seen(None))),
            ),
        }
    }
}

impl<'de> Deserialize<'de> for NamedTensors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Kinds;

        impl<'de> Visitor<'de> for Kinds {
            type Value = NamedTensors;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by their names, or a list of tensors with names")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<NamedTensors, A::Error> {
                let mut tensors = Vec::new();
                while let Some(tensor) = access.next_element()? {
                    tensors.push(tensor);
                }
                Ok(NamedTensors { tensors, is_object: false })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<NamedTensors, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = access.next_key::<String>()? {
                    // As an absent field.
                    if let Some(tensor) = access.next_value::<Option<InputTensor>>()? {
                        tensors.push(InputTensor { name: Some(name), ..tensor });
                    }
                }
                Ok(NamedTensors { tensors, is_object: true })
            }
        }

        deserializer.deserialize_any(Kinds)
    }
}

/// Numbers that `read` reads.
fn numbers<E: Error>(read: impl FnOnce(Element<'_>) -> Result<(), E>) -> Result<TensorData, E> {
    let mut reader = Reader::default();
    match (read(Element { reader: &mut reader, depth: 0 }), reader.error.take()) {
        (_, Some(why)) => Err(E::custom(format!("is no tensor: {why}"))),
        (Err(error), None) => Err(error),
        (Ok(()), None) => Ok(TensorData::Numbers(reader.finish())),
    }
}

/// What is no object is numbers, or wrong.
macro_rules! bare_numbers {
    ($of:expr, $($visit:ident: $type:ty),*) => {
        $(fn $visit<E: Error>(self, value: $type) -> Result<Self::Value, E> {
            numbers(|element| element.$visit(value)).map($of)
        })*

        fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
            numbers(|element| element.visit_seq(access)).map($of)
        }
    };
}

impl<'de> Deserialize<'de> for InputTensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Kinds;

        fn of_numbers(data: TensorData) -> InputTensor {
            InputTensor { data: Some(data), ..InputTensor::default() }
        }

        impl<'de> Visitor<'de> for Kinds {
            type Value = InputTensor;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a tensor: numbers, nested lists of them, or an object with data")
            }

            bare_numbers!(of_numbers, visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<InputTensor, A::Error> {
                let mut tensor = InputTensor::default();
                while let Some(key) = access.next_key::<String>()? {
                    match key.as_str() {
                        "name" => tensor.name = access.next_value()?,
                        "shape" => tensor.shape = access.next_value()?,
                        "datatype" => tensor.datatype = access.next_value()?,
                        "data" => tensor.data = access.next_value()?,
                        "parameters" => tensor.parameters = access.next_value::<Option<_>>()?.unwrap_or_default(),
                        _ => drop(access.next_value::<IgnoredAny>()?),
                    }
                }
                match tensor.shape.as_ref().is_none_or(|shape| shape.len() <= AXES) {
                    true => Ok(tensor),
                    false => Err(A::Error::custom(format!("shape may have at most {AXES} lengths"))),
                }
            }
        }

        deserializer.deserialize_any(Kinds)
    }
}

impl<'de> Deserialize<'de> for TensorData {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Kinds;

        impl<'de> Visitor<'de> for Kinds {
            type Value = TensorData;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of numbers, or a string in base64")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<TensorData, E> {
                Ok(TensorData::Base64(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<TensorData, A::Error> {
                numbers(|element| element.visit_seq(access))
            }
        }

        deserializer.deserialize_any(Kinds)
    }
}
