//! Writes tensors into bodies, and what a model takes and gives.
use camshaft_core::tensor::{Datatype, Number, Signature, Tensor, TensorSpec};
use serde::ser::{Serialize, SerializeSeq, Serializer};

/// What a model takes or gives, for clients.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub(crate) struct SpecObject {
    name: String,
    /// -1: any length.
    shape: Vec<i64>,
    #[schemars(with = "String")]
    datatype: Datatype,
    /// Clients may leave it out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    optional: bool,
}

impl From<&TensorSpec> for SpecObject {
    fn from(spec: &TensorSpec) -> Self {
        Self { name: spec.name.clone(), shape: spec.dimensions(), datatype: spec.datatype, optional: false }
    }
}

impl SpecObject {
    /// Of all inputs of a model.
    pub(crate) fn inputs(signature: &Signature) -> Vec<Self> {
        let mask = signature.mask.map(|mask| mask.input);
        let inputs = signature.inputs.iter().enumerate();
        inputs.map(|(at, spec)| Self { optional: mask == Some(at), ..Self::from(spec) }).collect()
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
pub(crate) struct Flat<'a>(pub(crate) &'a Tensor);

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
