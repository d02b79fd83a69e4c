//! An ONNX model that tract computes, and the memory that this takes.
use std::borrow::Cow;
use std::sync::Arc;

use camshaft_core::tensor::{Datatype, Tensor};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::{Symbol, SymbolValues, TDim, TypedFact};
use tract_onnx::tract_core::ops::scan::OptScan;

use crate::joined::{self, Requests};
use crate::quiet::{OUT_OF_RANGE, quietly};

/// A prepared model. Workers share it.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) plan: Arc<TypedRunnableModel>,
    /// The symbols of the inputs' axes: those with an axis of any length, in the order of the inputs.
    pub(crate) symbols: Vec<Vec<Option<Symbol>>>,
}

impl Plan {
    /// See [`TensorModel`](crate::TensorModel).
    pub(crate) fn run_bytes(&self, shapes: &[&[usize]]) -> Option<u64> {
        let values = self.values(shapes)?;
        model_bytes(self.plan.model(), &values)
    }

    /// See [`TensorModel`](crate::TensorModel).
    pub(crate) fn output_shapes(&self, shapes: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
        let (values, model) = (self.values(shapes)?, self.plan.model());
        let length = |axis: &TDim| usize::try_from(axis.eval(&values).to_i64().ok()?).ok();
        let outlets = model.output_outlets().ok()?.iter();
        let shape = |outlet: &OutletId| model.outlet_fact(*outlet).ok()?.shape.iter().map(length).collect();
        outlets.map(shape).collect()
    }
}

/// Bytes of all tensors of a model, with what its operations repeat.
fn model_bytes(model: &TypedModel, values: &SymbolValues) -> Option<u64> {
    model.nodes().iter().try_fold(0u64, |bytes, node| {
        let inner = match node.op_as::<OptScan>() {
            Some(scan) => model_bytes(scan.plan.model(), values)?,
            None => 0,
        };
        // Constants are there already.
        let facts = node.outputs.iter().map(|output| &output.fact).filter(|fact| fact.konst.is_none());
        let own = facts.map(|fact| fact_bytes(fact, values)).sum::<Option<u64>>()?;
        bytes.checked_add(inner)?.checked_add(own)
    })
}

fn fact_bytes(fact: &TypedFact, values: &SymbolValues) -> Option<u64> {
    let length = |axis: &TDim| u64::try_from(axis.eval(values).to_i64().ok()?).ok();
    let numbers = fact.shape.iter().try_fold(1u64, |numbers, axis| numbers.checked_mul(length(axis)?))?;
    match fact.exotic_fact() {
        None => numbers.checked_mul(fact.datum_type.size_of() as u64),
        // Numbers in the order of a kernel: the shape counts the pieces.
        Some(packed) => {
            let piece = packed.buffer_sizes().iter().map(length).sum::<Option<u64>>()?;
            numbers.checked_mul(piece)
        }
    }
}

impl Plan {
    /// The lengths of the inputs' axes by their symbols.
    fn values(&self, shapes: &[&[usize]]) -> Option<SymbolValues> {
        let mut values = SymbolValues::default();
        for (symbols, shape) in self.symbols.iter().zip(shapes) {
            for (symbol, &length) in symbols.iter().zip(*shape) {
                if let Some(symbol) = symbol {
                    values.set(symbol, i64::try_from(length).ok()?);
                }
            }
        }
        Some(values)
    }

    /// Computes one tensor for each input, of the shapes that the model takes.
    ///
    /// # Errors
    /// The runtime says why it cannot compute these numbers.
    pub(crate) fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let inputs = inputs.iter().map(|input| to_runtime(&[input])).collect::<Result<_, _>>()?;
        self.compute(inputs)?.iter().map(from_runtime).collect()
    }

    /// Computes several requests at once. Returns what each of them gets.
    ///
    /// # Errors
    /// As [`Plan::run`]; one of them is at fault, perhaps.
    pub(crate) fn run_together(&self, requests: &Requests<'_>) -> Result<Vec<Vec<Tensor>>, String> {
        let inputs = requests.inputs()?.iter().map(|parts| to_runtime(parts)).collect::<Result<_, _>>()?;
        let outputs = self.compute(inputs)?;
        requests.answers(outputs.iter().map(|output| split(output, requests)))
    }

    fn compute(&self, inputs: TVec<TValue>) -> Result<TVec<TValue>, String> {
        // Numbers that index something may have it panic. Each run has a state of its own, which is gone then.
        let run = quietly(|| self.plan.run(inputs)).ok_or_else(|| OUT_OF_RANGE.to_owned())?;
        run.map_err(|error| format!("{error:#}"))
    }
}

pub(crate) fn to_datum(datatype: Datatype) -> DatumType {
    match datatype {
        Datatype::Bool => DatumType::Bool,
        Datatype::Uint8 => DatumType::U8,
        Datatype::Uint16 => DatumType::U16,
        Datatype::Uint32 => DatumType::U32,
        Datatype::Uint64 => DatumType::U64,
        Datatype::Int8 => DatumType::I8,
        Datatype::Int16 => DatumType::I16,
        Datatype::Int32 => DatumType::I32,
        Datatype::Int64 => DatumType::I64,
        Datatype::Fp16 => DatumType::F16,
        Datatype::Fp32 => DatumType::F32,
        Datatype::Fp64 => DatumType::F64,
    }
}

/// `None`: no request can carry it.
pub(crate) fn to_datatype(datum: DatumType) -> Option<Datatype> {
    Datatype::ALL.into_iter().find(|&datatype| to_datum(datatype) == datum)
}

/// One tensor of several, one after the other along their first axes.
fn to_runtime(parts: &[&Tensor]) -> Result<TValue, String> {
    let (datatype, shape) = joined::stacked(parts)?;
    let made = tract_onnx::prelude::Tensor::zero_dt(to_datum(datatype), &shape);
    let mut made = made.map_err(|error| format!("{error:#}"))?;
    let (bytes, expected) = (made.as_bytes_mut(), parts.iter().map(|part| part.bytes().len()).sum::<usize>());
    if bytes.len() != expected {
        return Err(format!("tensors of {expected} bytes became one of {}", bytes.len()));
    }
    let mut rest = bytes;
    for part in parts {
        let (own, after) = rest.split_at_mut(part.bytes().len());
        own.copy_from_slice(part.bytes());
        rest = after;
    }
    Ok(made.into_tvalue())
}

fn split(value: &TValue, requests: &Requests<'_>) -> Result<Vec<Tensor>, String> {
    let numbers = plain(value)?;
    requests.split(datatype_of(&numbers)?, numbers.shape(), numbers.as_bytes())
}

fn from_runtime(value: &TValue) -> Result<Tensor, String> {
    let numbers = plain(value)?;
    let (datatype, shape) = (datatype_of(&numbers)?, numbers.shape().to_vec());
    Tensor::new(datatype, shape, numbers.as_bytes().to_vec()).map_err(|error| error.to_string())
}

/// Sizes of tensors are expressions to the runtime, and numbers to everybody else.
fn plain(value: &TValue) -> Result<Cow<'_, tract_onnx::prelude::Tensor>, String> {
    match value.datum_type() {
        DatumType::TDim => value.cast_to_dt(DatumType::I64).map_err(|error| format!("{error:#}")),
        _ => Ok(Cow::Borrowed(&**value)),
    }
}

fn datatype_of(numbers: &tract_onnx::prelude::Tensor) -> Result<Datatype, String> {
    to_datatype(numbers.datum_type()).ok_or_else(|| format!("an output of type {:?}", numbers.datum_type()))
}
