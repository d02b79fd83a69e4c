//! Tensors as requests and models exchange them: plain data, and what a model says of those it takes.
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::jobs::Input;

/// Type of a tensor's numbers, by its name in the Open Inference Protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Datatype {
    Bool,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Int8,
    Int16,
    Int32,
    Int64,
    Fp16,
    Fp32,
    Fp64,
}

impl Datatype {
    pub const ALL: [Self; 12] = [
        Self::Bool,
        Self::Uint8,
        Self::Uint16,
        Self::Uint32,
        Self::Uint64,
        Self::Int8,
        Self::Int16,
        Self::Int32,
        Self::Int64,
        Self::Fp16,
        Self::Fp32,
        Self::Fp64,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bool => "BOOL",
            Self::Uint8 => "UINT8",
            Self::Uint16 => "UINT16",
            Self::Uint32 => "UINT32",
            Self::Uint64 => "UINT64",
            Self::Int8 => "INT8",
            Self::Int16 => "INT16",
            Self::Int32 => "INT32",
            Self::Int64 => "INT64",
            Self::Fp16 => "FP16",
            Self::Fp32 => "FP32",
            Self::Fp64 => "FP64",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|datatype| datatype.as_str() == name)
    }

    /// Bytes of a number.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::Uint8 | Self::Int8 => 1,
            Self::Uint16 | Self::Int16 | Self::Fp16 => 2,
            Self::Uint32 | Self::Int32 | Self::Fp32 => 4,
            Self::Uint64 | Self::Int64 | Self::Fp64 => 8,
        }
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Numbers in the order of rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Untested")]
pub struct Tensor {
    datatype: Datatype,
    shape: Vec<usize>,
    /// Little-endian. Of a `Bool`, each is 0 or 1.
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

/// What comes from another process.
#[derive(Deserialize)]
struct Untested {
    datatype: Datatype,
    shape: Vec<usize>,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
}

impl TryFrom<Untested> for Tensor {
    type Error = BadTensor;

    fn try_from(Untested { datatype, shape, bytes }: Untested) -> Result<Self, BadTensor> {
        Self::new(datatype, shape, bytes)
    }
}

/// Bytes are not those of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTensor {
    #[error("a shape of {shape:?} has more numbers than can be counted")]
    Uncountable { shape: Vec<usize> },
    #[error("a shape of {shape:?} takes {expected} bytes of {datatype}, got {got}")]
    Length { shape: Vec<usize>, datatype: Datatype, expected: usize, got: usize },
    #[error("a BOOL is the byte 0 or 1, got {0}")]
    NotABool(u8),
}

/// Numbers of a tensor of this shape. `None`: they are more than can be counted.
pub fn volume(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |volume, &axis| volume.checked_mul(axis))
}

impl Tensor {
    /// # Errors
    /// The bytes are not as many as the shape says, or are no numbers of this type.
    pub fn new(datatype: Datatype, shape: Vec<usize>, bytes: Vec<u8>) -> Result<Self, BadTensor> {
        let expected = volume(&shape).and_then(|numbers| numbers.checked_mul(datatype.bytes()));
        match expected {
            None => return Err(BadTensor::Uncountable { shape }),
            Some(expected) if expected != bytes.len() => {
                return Err(BadTensor::Length { shape, datatype, expected, got: bytes.len() });
            }
            Some(_) => {}
        }
        match bytes.iter().find(|&&byte| datatype == Datatype::Bool && byte > 1) {
            Some(&byte) => Err(BadTensor::NotABool(byte)),
            None => Ok(Self { datatype, shape, bytes }),
        }
    }

    /// All numbers are zero.
    ///
    /// # Errors
    /// Its size cannot be counted.
    pub fn zero(datatype: Datatype, shape: Vec<usize>) -> Result<Self, BadTensor> {
        match volume(&shape).and_then(|numbers| numbers.checked_mul(datatype.bytes())) {
            None => Err(BadTensor::Uncountable { shape }),
            Some(bytes) => Ok(Self { datatype, shape, bytes: vec![0; bytes] }),
        }
    }

    /// All numbers are one, or true.
    ///
    /// # Errors
    /// Its size cannot be counted.
    pub fn ones(datatype: Datatype, shape: Vec<usize>) -> Result<Self, BadTensor> {
        let mut one = Vec::with_capacity(datatype.bytes());
        // Each type has it, in one of the two ways.
        let _ = datatype.write(Number::Unsigned(1), &mut one) || datatype.write(Number::Bool(true), &mut one);
        let mut tensor = Self::zero(datatype, shape)?;
        tensor.bytes.chunks_exact_mut(datatype.bytes()).for_each(|number| number.copy_from_slice(&one));
        Ok(tensor)
    }

    pub fn datatype(&self) -> Datatype {
        self.datatype
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// How many numbers it has.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.datatype.bytes()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn numbers(&self) -> impl ExactSizeIterator<Item = Number> {
        let datatype = self.datatype;
        self.bytes.chunks_exact(datatype.bytes()).map(move |bytes| read(datatype, bytes))
    }

    /// Whether no number is infinite or none at all.
    pub fn is_finite(&self) -> bool {
        self.numbers().all(|number| number.to_f64().is_finite())
    }
}

/// A number of a tensor, as exact as its type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Bool(bool),
    Unsigned(u64),
    Signed(i64),
    Single(f32),
    Double(f64),
}

impl Number {
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Bool(number) => f64::from(u8::from(number)),
            Self::Unsigned(number) => number as f64,
            Self::Signed(number) => number as f64,
            Self::Single(number) => f64::from(number),
            Self::Double(number) => number,
        }
    }

    /// `None`: it is no integer of 64 bits.
    fn to_integer(self) -> Option<i128> {
        match self {
            Self::Unsigned(number) => Some(number.into()),
            Self::Signed(number) => Some(number.into()),
            Self::Bool(_) | Self::Single(_) | Self::Double(_) => None,
        }
    }
}

impl Datatype {
    /// Appends the bytes of a number. False, and appends none, if the type has no such number: integers become floating-point
    /// numbers, but nothing else becomes something else.
    pub fn write(self, number: Number, bytes: &mut Vec<u8>) -> bool {
        macro_rules! integer {
            ($type:ty) => {
                match number.to_integer().and_then(|number| <$type>::try_from(number).ok()) {
                    Some(number) => bytes.extend_from_slice(&number.to_le_bytes()),
                    None => return false,
                }
            };
        }
        macro_rules! float {
            ($to:expr) => {{
                let (Number::Unsigned(_) | Number::Signed(_) | Number::Single(_) | Number::Double(_)) = number else {
                    return false;
                };
                let (exact, rounded) = (number.to_f64(), $to(number.to_f64()));
                // Too large for it.
                if exact.is_finite() && !f64::from(rounded).is_finite() {
                    return false;
                }
                bytes.extend_from_slice(&rounded.to_le_bytes());
            }};
        }
        match self {
            Self::Bool => match number {
                Number::Bool(number) => bytes.push(number.into()),
                _ => return false,
            },
            Self::Uint8 => integer!(u8),
            Self::Uint16 => integer!(u16),
            Self::Uint32 => integer!(u32),
            Self::Uint64 => integer!(u64),
            Self::Int8 => integer!(i8),
            Self::Int16 => integer!(i16),
            Self::Int32 => integer!(i32),
            Self::Int64 => integer!(i64),
            Self::Fp16 => float!(half::f16::from_f64),
            Self::Fp32 => float!(|number| number as f32),
            Self::Fp64 => float!(|number| number),
        }
        true
    }
}

/// A number from its bytes, which are as many as its type has.
fn read(datatype: Datatype, bytes: &[u8]) -> Number {
    let mut eight = [0; 8];
    eight.iter_mut().zip(bytes).for_each(|(to, &byte)| *to = byte);
    let bits = u64::from_le_bytes(eight);
    match datatype {
        Datatype::Bool => Number::Bool(bits != 0),
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 | Datatype::Uint64 => Number::Unsigned(bits),
        Datatype::Int8 => Number::Signed((bits as i8).into()),
        Datatype::Int16 => Number::Signed((bits as i16).into()),
        Datatype::Int32 => Number::Signed((bits as i32).into()),
        Datatype::Int64 => Number::Signed(bits as i64),
        Datatype::Fp16 => Number::Single(half::f16::from_bits(bits as u16).to_f32()),
        Datatype::Fp32 => Number::Single(f32::from_bits(bits as u32)),
        Datatype::Fp64 => Number::Double(f64::from_bits(bits)),
    }
}

/// A class that a model finds likely.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Class {
    pub label: Arc<str>,
    /// Its place among the classes.
    pub index: u32,
    pub score: f32,
}

/// What a model made of a request's tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Predicted {
    pub tensors: Vec<Tensor>,
    /// Of a model that classifies: the best classes of each row, the best one first.
    pub classes: Option<Vec<Vec<Class>>>,
    /// How long the batch took in which it was computed.
    pub took: Duration,
}

/// The length of an axis of the tensors that a model takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Axis {
    Fixed(usize),
    /// Any length, but the same for all axes of this name.
    Any(String),
}

/// A tensor that a model takes or gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    pub name: String,
    pub datatype: Datatype,
    pub shape: Vec<Axis>,
}

impl TensorSpec {
    /// The shape as the Open Inference Protocol has it: -1 for an axis of any length.
    pub fn dimensions(&self) -> Vec<i64> {
        let dimension = |axis: &Axis| match axis {
            Axis::Fixed(length) => i64::try_from(*length).unwrap_or(i64::MAX),
            Axis::Any(_) => -1,
        };
        self.shape.iter().map(dimension).collect()
    }
}

/// What a model takes and gives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    pub inputs: Vec<TensorSpec>,
    pub outputs: Vec<TensorSpec>,
    /// The first axis of all of them has the same name and any length: it counts rows.
    pub rows: bool,
    /// What clients may leave out.
    pub mask: Option<MaskInput>,
}

/// An input that says with 1 which numbers of the others are real. A request without it has ones, as all that clients send is real.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskInput {
    /// Its place among the inputs.
    pub input: usize,
    /// The place of another one, whose shape begins with that of the mask and whose bytes are no fewer.
    pub like: usize,
}

/// A tensor is not what a model takes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("input {input} must be {expected}, got {got}")]
    Datatype { input: String, expected: Datatype, got: Datatype },
    #[error("input {input} must have {expected} axes ({shape:?}, -1: any length), got {got}")]
    Rank { input: String, expected: usize, shape: Vec<i64>, got: usize },
    #[error("axis {axis} of input {input} must be {expected}, got {got}")]
    Axis { input: String, axis: usize, expected: usize, got: usize },
    #[error("axis {axis} of input {input} must be 1 or more, got 0")]
    Empty { input: String, axis: usize },
    #[error("axis {axis} of input {input} must be {expected}, as the axis {name} of another input, got {got}")]
    Unequal { input: String, axis: usize, name: String, expected: usize, got: usize },
}

impl Mismatch {
    /// The name of the input at fault.
    pub fn input(&self) -> &str {
        match self {
            Self::Datatype { input, .. }
            | Self::Rank { input, .. }
            | Self::Axis { input, .. }
            | Self::Empty { input, .. }
            | Self::Unequal { input, .. } => input,
        }
    }
}

impl Signature {
    /// The mask of a request that leaves it out, from the tensor of the input that it is like. `None`: that one has fewer axes than
    /// the model takes, or other numbers.
    pub fn mask_of(&self, like: &Tensor) -> Option<Tensor> {
        let MaskInput { input, like: at } = self.mask?;
        let (mask, taken) = (self.inputs.get(input)?, self.inputs.get(at)?);
        let fits = like.datatype == taken.datatype && like.shape.len() == taken.shape.len();
        // The fixed axes of what is wrong may be short, so that its mask takes more than it does.
        let shape = like.shape.get(..mask.shape.len()).filter(|_| fits)?;
        volume(shape)?.checked_mul(mask.datatype.bytes()).filter(|&bytes| bytes <= like.bytes.len())?;
        Tensor::ones(mask.datatype, shape.to_vec()).ok()
    }

    /// Checks one tensor for each input, in their order. Returns the rows that they have.
    ///
    /// # Errors
    /// Says which of them is not what the model takes, and where.
    pub fn check(&self, tensors: &[Tensor]) -> Result<u32, Mismatch> {
        let mut lengths: Vec<(&str, usize)> = Vec::new();
        for (spec, tensor) in self.inputs.iter().zip(tensors) {
            let input = || spec.name.clone();
            if tensor.datatype != spec.datatype {
                return Err(Mismatch::Datatype { input: input(), expected: spec.datatype, got: tensor.datatype });
            }
            let (expected, got) = (spec.shape.len(), tensor.shape.len());
            if expected != got {
                return Err(Mismatch::Rank { input: input(), expected, shape: spec.dimensions(), got });
            }
            for (axis, (expected, &got)) in spec.shape.iter().zip(&tensor.shape).enumerate() {
                match expected {
                    Axis::Fixed(expected) if *expected != got => {
                        return Err(Mismatch::Axis { input: input(), axis, expected: *expected, got });
                    }
                    _ if got == 0 => return Err(Mismatch::Empty { input: input(), axis }),
                    Axis::Fixed(_) => {}
                    Axis::Any(name) => match lengths.iter().find(|(known, _)| known == name) {
                        Some(&(_, expected)) if expected != got => {
                            let name = name.clone();
                            return Err(Mismatch::Unequal { input: input(), axis, name, expected, got });
                        }
                        Some(_) => {}
                        None => lengths.push((name, got)),
                    },
                }
            }
        }
        let first = tensors.first().filter(|_| self.rows).and_then(|tensor| tensor.shape.first());
        Ok(first.map_or(1, |&rows| u32::try_from(rows).unwrap_or(u32::MAX)))
    }
}

/// What computes a model does not say at the moment what that takes: it is gone, or has no time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoAnswer;

/// What computing takes.
pub trait Computing: fmt::Debug + Send + Sync {
    /// Bytes of all tensors that computing inputs of these shapes makes. `None`: more than can be counted.
    ///
    /// # Errors
    /// It cannot be said now.
    fn run_bytes(&self, shapes: &[&[usize]]) -> Result<Option<u64>, NoAnswer>;
    /// Shapes of the outputs. `None`: they cannot be counted.
    ///
    /// # Errors
    /// It cannot be said now.
    fn output_shapes(&self, shapes: &[&[usize]]) -> Result<Option<Vec<Vec<usize>>>, NoAnswer>;
    /// Upper bound of what the classes of these rows take in an answer, in bytes.
    fn class_bytes(&self, _rows: u32) -> usize {
        0
    }
    /// What computes it since the device failed that it was loaded for.
    fn fallback(&self) -> Option<Cow<'static, str>> {
        None
    }
}

/// What a request asks a model to compute: a tensor for each input, and how many rows they have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rows {
    pub tensors: Arc<[Tensor]>,
    pub rows: u32,
}

impl Input for Rows {
    fn size(&self) -> u32 {
        self.rows.max(1)
    }
}

#[cfg(test)]
#[path = "tensor_tests.rs"]
mod tests;
