//! Tensors in bodies: read beside the tree of the other fields, and written.
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use camshaft_core::tensor::{Datatype, Number, Tensor, TensorSpec, volume};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeSeq, Serializer};
use serde_json::{Map, Value, json};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::json::{ReadApart, Tree};
use crate::wire::nested::{AXES, Element, Nested, Reader};

/// The tensor of a model that takes one.
pub(crate) const INPUT: &str = "input";
/// Tensors by their names: an object, or a list of objects that have names.
pub(crate) const INPUTS: &str = "inputs";
/// Tensors of one request.
pub(crate) const TENSORS: usize = 64;
/// What a number may take from when it is read until it is part of a tensor, beside what any value of a body takes: its place in a
/// list that has just grown, in the list before, and in the tensor.
const NUMBER_BYTES: usize = 56;

/// Upper bound of what reading the tensors of `text` takes, beside what [`crate::wire::json::parsed_bytes`] says.
pub(crate) fn read_bytes(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b',' || byte == b'[').count().saturating_add(1).saturating_mul(NUMBER_BYTES)
}

/// A tensor as a client wrote it.
#[derive(Debug)]
pub(crate) struct Written {
    /// Its path in the body.
    pub(crate) path: String,
    /// `None`: the model takes one.
    pub(crate) name: Option<String>,
    shape: Option<Vec<usize>>,
    datatype: Option<Datatype>,
    data: Data,
}

#[derive(Debug)]
enum Data {
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

/// The tensors of a body.
#[derive(Debug, Default)]
pub(crate) struct Tensors {
    pub(crate) tensors: Vec<Written>,
    error: Option<RequestError>,
}

impl Tensors {
    fn fail<E: Error>(&mut self, error: RequestError) -> E {
        self.error.get_or_insert(error);
        E::custom("not a tensor")
    }

    fn wrong<E: Error>(&mut self, path: &str, expected: &str) -> E {
        self.fail(RequestError::field(path, format!("{path} must be {expected}")))
    }

    fn add<E: Error>(&mut self, tensor: Written) -> Result<Value, E> {
        if self.tensors.len() == TENSORS {
            let message = format!("a request may have at most {TENSORS} inputs");
            return Err(self.fail(RequestError::field(INPUTS, message)));
        }
        let summary = tensor.summary();
        self.tensors.push(tensor);
        Ok(summary)
    }
}

impl ReadApart for Tensors {
    fn takes(&self, name: &str) -> bool {
        name == INPUT || name == INPUTS
    }

    fn read<'de, D: Deserializer<'de>>(
        &mut self,
        name: &str,
        tree: Tree<'_>,
        deserializer: D,
    ) -> Result<Value, D::Error> {
        // A field that comes twice counts once.
        self.tensors.retain(|tensor| (tensor.path == INPUT) != (name == INPUT));
        match name {
            INPUT => One { path: INPUT.to_owned(), name: None, tree, all: self }.deserialize(deserializer),
            _ => deserializer.deserialize_any(Several { tree, all: self }),
        }
    }

    fn error(&mut self) -> Option<RequestError> {
        self.error.take()
    }
}

/// A tensor: nested lists of numbers, or an object with `shape`, `datatype` and `data`.
struct One<'c, 't> {
    path: String,
    name: Option<String>,
    tree: Tree<'c>,
    all: &'t mut Tensors,
}

impl One<'_, '_> {
    /// The numbers at `path` that `read` reads.
    fn nested<E: Error>(
        all: &mut Tensors,
        path: &str,
        read: impl FnOnce(Element<'_>) -> Result<(), E>,
    ) -> Result<Nested, E> {
        let mut reader = Reader::default();
        match (read(Element { reader: &mut reader, depth: 0 }), reader.error.take()) {
            (_, Some(why)) => Err(all.fail(RequestError::field(path, format!("{path} is no tensor: {why}")))),
            (Err(error), None) => Err(error),
            (Ok(()), None) => Ok(reader.finish()),
        }
    }

    fn add<E: Error>(self, data: Nested) -> Result<Value, E> {
        let Self { path, name, all, .. } = self;
        all.add(Written { path, name, shape: None, datatype: None, data: Data::Numbers(data) })
    }
}

impl<'de> DeserializeSeed<'de> for One<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// What is no object is numbers, or wrong.
macro_rules! numbers {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E: Error>(self, value: $type) -> Result<Value, E> {
            let data = Self::nested(self.all, &self.path, |element| element.$visit(value))?;
            self.add(data)
        })*
    };
}

impl<'de> Visitor<'de> for One<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tensor")
    }

    numbers!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        // As an absent field. There may be as many as of other values.
        self.tree.take(1).map(|()| Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Value, A::Error> {
        let data = Self::nested(self.all, &self.path, |element| element.visit_seq(access))?;
        self.add(data)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let Self { path, mut name, tree, all } = self;
        let (mut shape, mut datatype, mut data) = (None, None, None);
        while let Some(key) = access.next_key::<String>()? {
            let at = format!("{path}.{key}");
            match key.as_str() {
                "data" => {
                    // The text of its bytes, or numbers.
                    data = Some(match access.next_value_seed(DataSeed { path: &at, all })? {
                        Some(data) => data,
                        None => return Err(all.wrong(&at, "a list of numbers, or a string in base64")),
                    });
                }
                "shape" => {
                    let value = access.next_value_seed(tree)?;
                    shape = Some(read_shape(&value).ok_or_else(|| {
                        let expected = format!("a list of at most {AXES} lengths of 0 or more");
                        all.wrong::<A::Error>(&at, &expected)
                    })?);
                }
                "datatype" => {
                    let value = access.next_value_seed(tree)?;
                    datatype = Some(value.as_str().and_then(Datatype::from_name).ok_or_else(|| {
                        let names: Vec<&str> = Datatype::ALL.into_iter().map(Datatype::as_str).collect();
                        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                        let expected = format!("one of {}, got {:?}", names.join(", "), Shown(&text));
                        all.wrong::<A::Error>(&at, &expected)
                    })?);
                }
                "name" if name.is_none() => {
                    let value = access.next_value_seed(tree)?;
                    name = Some(value.as_str().ok_or_else(|| all.wrong::<A::Error>(&at, "a string"))?.to_owned());
                }
                _ => _ = access.next_value_seed(tree)?,
            }
        }
        let Some(data) = data else {
            let at = format!("{path}.data");
            return Err(all.fail(RequestError::field(at.clone(), format!("{at} is required"))));
        };
        all.add(Written { path, name, shape, datatype, data })
    }
}

fn read_shape(value: &Value) -> Option<Vec<usize>> {
    let list = value.as_array().filter(|list| list.len() <= AXES)?;
    list.iter().map(|length| length.as_u64().and_then(|length| usize::try_from(length).ok())).collect()
}

/// The `data` of a tensor. `None`: neither numbers nor a string.
struct DataSeed<'t> {
    path: &'t str,
    all: &'t mut Tensors,
}

impl<'de> DeserializeSeed<'de> for DataSeed<'_> {
    type Value = Option<Data>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for DataSeed<'_> {
    type Value = Option<Data>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the data of a tensor")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Some(Data::Base64(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Self::Value, A::Error> {
        One::nested(self.all, self.path, |element| element.visit_seq(access)).map(|data| Some(Data::Numbers(data)))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Err(self.all.wrong(self.path, "a list of numbers, or a string in base64"))
    }
}

/// The value of `inputs`.
struct Several<'c, 't> {
    tree: Tree<'c>,
    all: &'t mut Tensors,
}

const SEVERAL: &str = "an object of tensors by their names, or a list of tensors with names";

/// What is neither a list nor an object.
macro_rules! no_tensors {
    ($($visit:ident: $type:ty),*) => {
        $(fn $visit<E: Error>(self, _: $type) -> Result<Value, E> {
            Err(self.all.wrong(INPUTS, SEVERAL))
        })*
    };
}

impl<'de> Visitor<'de> for Several<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensors")
    }

    no_tensors!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_str: &str);

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut summary = Map::new();
        while let Some(name) = access.next_key::<String>()? {
            let path = format!("{INPUTS}.{}", Shown(&name));
            self.all.tensors.retain(|tensor| tensor.name.as_ref() != Some(&name));
            let one = One { path, name: Some(name.clone()), tree: self.tree, all: &mut *self.all };
            summary.insert(name, access.next_value_seed(one)?);
        }
        Ok(Value::Object(summary))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut summary = Vec::new();
        loop {
            let path = format!("{INPUTS}[{}]", summary.len());
            let before = self.all.tensors.len();
            let one = One { path: path.clone(), name: None, tree: self.tree, all: &mut *self.all };
            let Some(mut value) = access.next_element_seed(one)? else { return Ok(Value::Array(summary)) };
            let name = match self.all.tensors.get(before).map(|tensor| tensor.name.clone()) {
                Some(Some(name)) => name,
                _ => return Err(self.all.wrong(&path, "an object with name, shape, datatype and data")),
            };
            if let Some(value) = value.as_object_mut() {
                value.insert("name".to_owned(), name.into());
            }
            summary.push(value);
        }
    }
}

/// What a model takes or gives, for clients.
#[derive(Debug, serde::Serialize)]
pub(crate) struct SpecObject {
    name: String,
    /// -1: any length.
    shape: Vec<i64>,
    datatype: Datatype,
}

impl From<&TensorSpec> for SpecObject {
    fn from(spec: &TensorSpec) -> Self {
        Self { name: spec.name.clone(), shape: spec.dimensions(), datatype: spec.datatype }
    }
}

/// A tensor with its shape and its type; its numbers are one list.
#[derive(Debug, serde::Serialize)]
pub(crate) struct TensorObject<'a> {
    shape: &'a [usize],
    datatype: Datatype,
    data: Flat<'a>,
}

impl<'a> From<&'a Tensor> for TensorObject<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self { shape: tensor.shape(), datatype: tensor.datatype(), data: Flat(tensor) }
    }
}

#[derive(Debug)]
struct Flat<'a>(&'a Tensor);

impl Serialize for Flat<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let numbers = self.0.numbers();
        let mut list = serializer.serialize_seq(Some(numbers.len()))?;
        for number in numbers {
            list.serialize_element(&Plain(number))?;
        }
        list.end()
    }
}

/// A tensor as nested lists.
#[derive(Debug)]
pub(crate) struct NestedLists<'a> {
    tensor: &'a Tensor,
}

impl<'a> NestedLists<'a> {
    pub(crate) fn of(tensor: &'a Tensor) -> Self {
        Self { tensor }
    }
}

impl Serialize for NestedLists<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let numbers = std::cell::RefCell::new(self.tensor.numbers());
        let mut next = || numbers.borrow_mut().next();
        Level { shape: self.tensor.shape(), next: std::cell::RefCell::new(&mut next) }.serialize(serializer)
    }
}

/// The lists of one axis and those within.
struct Level<'a, 'n> {
    shape: &'a [usize],
    next: std::cell::RefCell<&'n mut dyn FnMut() -> Option<Number>>,
}

impl Serialize for Level<'_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut next = self.next.borrow_mut();
        let Some((&length, inner)) = self.shape.split_first() else {
            return (next)().map(Plain).serialize(serializer);
        };
        let mut list = serializer.serialize_seq(Some(length))?;
        for _ in 0..length {
            let next = std::cell::RefCell::new(&mut **next as &mut dyn FnMut() -> Option<Number>);
            list.serialize_element(&Level { shape: inner, next })?;
        }
        list.end()
    }
}

/// A number; one that JSON cannot write, as a string, as it is read.
struct Plain(Number);

impl Serialize for Plain {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Number::Bool(number) => serializer.serialize_bool(number),
            Number::Unsigned(number) => serializer.serialize_u64(number),
            Number::Signed(number) => serializer.serialize_i64(number),
            Number::Single(number) if number.is_finite() => serializer.serialize_f32(number),
            Number::Double(number) if number.is_finite() => serializer.serialize_f64(number),
            number => serializer.serialize_str(match number.to_f64() {
                number if number.is_nan() => "NaN",
                number if number > 0.0 => "Infinity",
                _ => "-Infinity",
            }),
        }
    }
}

#[cfg(test)]
#[path = "tensors_tests.rs"]
mod tests;
