//! Reads the tensors of a body, beside the tree of its other fields.
use std::fmt;

use camshaft_core::tensor::Datatype;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::{Fields, wrong_type};
use crate::wire::json::{ReadApart, Tree};
use crate::wire::nested::{AXES, Element, Nested, Reader};
use crate::wire::written::{BINARY_SIZE, Data, Written};

/// The tensor of a model that takes one.
pub(crate) const INPUT: &str = "input";
/// Tensors by their names: an object, or a list of objects that have names.
pub(crate) const INPUTS: &str = "inputs";
/// Beginning of the parameters of a tensor that lies in memory which a client shares with a server.
const SHARED_MEMORY: &str = "shared_memory_";
/// Tensors of one request.
pub(crate) const TENSORS: usize = 64;
/// What a number may take from when it is read until it is part of a tensor, beside what any value of a body takes: its place in a
/// list that has just grown, in the list before, and in the tensor.
const NUMBER_BYTES: usize = 56;

/// Upper bound of what reading the tensors of `text` takes, beside what [`crate::wire::json::parsed_bytes`] says.
pub(crate) fn read_bytes(text: &str) -> usize {
    text.bytes().filter(|&byte| byte == b',' || byte == b'[').count().saturating_add(1).saturating_mul(NUMBER_BYTES)
}

/// The tensors of a body.
#[derive(Debug, Default)]
pub(crate) struct Tensors {
    pub(crate) tensors: Vec<Written>,
    /// As the Open Inference Protocol writes them: a list, each with its shape and its type.
    is_open: bool,
    error: Option<RequestError>,
}

impl Tensors {
    /// For a body of the Open Inference Protocol.
    pub(crate) fn open() -> Self {
        Self { is_open: true, ..Self::default() }
    }

    fn fail<E: Error>(&mut self, error: RequestError) -> E {
        self.error.get_or_insert(error);
        E::custom("not a tensor")
    }

    fn expected_data(&self) -> &'static str {
        if self.is_open { "a list of numbers" } else { "a list of numbers, or a string in base64" }
    }

    fn expected(&self) -> &'static str {
        if self.is_open { "a list of objects with name, shape, datatype and data" } else { SEVERAL }
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
        name == INPUTS || name == INPUT && !self.is_open
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
        let is_open = all.is_open;
        let mut other = None;
        let (mut shape, mut datatype, mut data, mut behind) = (None, None, None, None);
        while let Some(key) = access.next_key::<String>()? {
            let at = format!("{path}.{key}");
            match key.as_str() {
                "data" => {
                    // The text of its bytes, or numbers.
                    data = Some(match access.next_value_seed(DataSeed { path: &at, all })? {
                        Some(data) => data,
                        None => return Err(all.wrong(&at, all.expected_data())),
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
                "parameters" if is_open => {
                    let value = access.next_value_seed(tree)?;
                    behind = read_parameters(&value, &at).map_err(|error| all.fail::<A::Error>(error))?;
                }
                _ => {
                    access.next_value_seed(tree)?;
                    other.get_or_insert(key);
                }
            }
        }
        let missing = |name: &str, beside: &str| {
            let at = format!("{path}.{name}");
            RequestError::field(at.clone(), format!("{at} is required{beside}"))
        };
        let data = match (data, behind) {
            (Some(_), Some(_)) => {
                let at = format!("{path}.data");
                let message = format!("{at} and {path}.parameters.{BINARY_SIZE} are there, of which one is right");
                return Err(all.fail(RequestError::field(at, message)));
            }
            (Some(data), None) => data,
            (None, Some(bytes)) => Data::Behind(bytes),
            (None, None) if is_open => {
                return Err(all.fail(missing("data", &format!(", or its parameter {BINARY_SIZE}"))));
            }
            (None, None) => {
                // The form for several inputs, under the name for one.
                let meant = other.filter(|_| path == INPUT).map(|name| {
                    format!("; tensors by their names are in {INPUTS}: {{\"{INPUTS}\": {{{:?}: …}}}}", Shown(&name))
                });
                return Err(all.fail(missing("data", &meant.unwrap_or_default())));
            }
        };
        let absent = [("name", name.is_none()), ("shape", shape.is_none()), ("datatype", datatype.is_none())];
        if let Some((absent, _)) = absent.into_iter().find(|(_, is_absent)| is_open && *is_absent) {
            return Err(all.fail(missing(absent, "")));
        }
        all.add(Written { path, name, shape, datatype, data })
    }
}

fn read_shape(value: &Value) -> Option<Vec<usize>> {
    let list = value.as_array().filter(|list| list.len() <= AXES)?;
    list.iter().map(|length| length.as_u64().and_then(|length| usize::try_from(length).ok())).collect()
}

/// The size of a tensor that is behind the JSON, if the parameters of an input at `path` have one.
fn read_parameters(value: &Value, path: &str) -> Result<Option<usize>, RequestError> {
    if value.is_null() {
        return Ok(None);
    }
    let fields = Fields::of(value, path)?;
    if let Some(shared) = value.as_object().and_then(|map| map.keys().find(|name| name.starts_with(SHARED_MEMORY))) {
        let path = fields.path(&Shown(shared).to_string());
        return Err(RequestError::field(
            path.clone(),
            format!("{path} is not supported: no memory is shared with clients"),
        ));
    }
    let Some(size) = fields.get(BINARY_SIZE) else { return Ok(None) };
    match size.as_u64().and_then(|size| usize::try_from(size).ok()) {
        Some(size) => Ok(Some(size)),
        None => Err(wrong_type(&fields.path(BINARY_SIZE), "a number of bytes", size)),
    }
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
        Ok((!self.all.is_open).then(|| Data::Base64(value.to_owned())))
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
        Err(self.all.wrong(self.path, self.all.expected_data()))
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
            Err(self.all.wrong(INPUTS, self.all.expected()))
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
        if self.all.is_open {
            return Err(self.all.wrong(INPUTS, self.all.expected()));
        }
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

#[cfg(test)]
#[path = "tensors_tests.rs"]
mod tests;
