//! A model that is ready to be computed, and the memory that this takes.
use std::borrow::Cow;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Once};

use camshaft_core::tensor::{Computing, Datatype, Signature, Tensor};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::internal::{Symbol, SymbolValues, TDim, TypedFact};
use tract_onnx::tract_core::ops::scan::OptScan;

use crate::facts::Facts;

/// A loaded model. Workers share it.
#[derive(Debug)]
pub struct TensorModel {
    pub facts: Facts,
    pub signature: Signature,
    pub(crate) plan: Arc<TypedRunnableModel>,
    /// The symbols of the inputs' axes: those with an axis of any length, in the order of the inputs.
    pub(crate) symbols: Vec<Vec<Option<Symbol>>>,
}

impl Computing for TensorModel {
    fn run_bytes(&self, shapes: &[&[usize]]) -> Option<u64> {
        let values = self.values(shapes)?;
        model_bytes(self.plan.model(), &values)
    }

    fn output_shapes(&self, shapes: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
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

impl TensorModel {
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

    /// Computes one tensor for each input, which [`Signature::check`] accepts.
    ///
    /// # Errors
    /// The runtime says why it cannot compute these numbers.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let inputs = inputs.iter().map(|input| to_runtime(&[input])).collect::<Result<_, _>>()?;
        self.compute(inputs)?.iter().map(from_runtime).collect()
    }

    /// Computes several requests at once, whose tensors differ in the lengths of their first axes alone. Returns what each of them
    /// gets. Only of a model whose rows are computed each by itself.
    ///
    /// # Errors
    /// As [`TensorModel::run`]; one of them is at fault, perhaps.
    pub(crate) fn run_together(&self, requests: &[&[Tensor]]) -> Result<Vec<Vec<Tensor>>, String> {
        let stacked = |input: usize| {
            let parts: Option<Vec<&Tensor>> = requests.iter().map(|request| request.get(input)).collect();
            to_runtime(&parts.ok_or_else(|| format!("a request without its input {input}"))?)
        };
        let inputs = (0..self.signature.inputs.len()).map(stacked).collect::<Result<_, _>>()?;
        let rows: Vec<usize> = requests.iter().map(|request| rows_of(request)).collect();
        let mut answers: Vec<Vec<Tensor>> = requests.iter().map(|_| Vec::new()).collect();
        for output in &self.compute(inputs)? {
            for (answer, tensor) in answers.iter_mut().zip(split(output, &rows)?) {
                answer.push(tensor);
            }
        }
        Ok(answers)
    }

    fn compute(&self, inputs: TVec<TValue>) -> Result<TVec<TValue>, String> {
        // Numbers that index something may have it panic. Each run has a state of its own, which is gone then.
        let run = quietly(|| self.plan.run(inputs)).ok_or_else(|| OUT_OF_RANGE.to_owned())?;
        run.map_err(|error| format!("{error:#}"))
    }
}

/// What the runtime panics at.
const OUT_OF_RANGE: &str =
    "a number is out of range for an operation, such as an index that a table does not have, or a division by zero";

thread_local! {
    /// Whether a panic of this thread is expected, and told in another way.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act`; `None` if it panics. A client can cause that as often as it likes, so the log has nothing of it.
pub(crate) fn quietly<T>(act: impl FnOnce() -> T) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_QUIET.get() {
                usual(panic);
            }
        }));
    });
    IS_QUIET.set(true);
    let done = catch_unwind(AssertUnwindSafe(act));
    IS_QUIET.set(false);
    done.ok()
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

/// Rows of a request: the length of the first axis of its tensors.
pub(crate) fn rows_of(request: &[Tensor]) -> usize {
    request.first().and_then(|tensor| tensor.shape().first()).copied().unwrap_or(0)
}

/// One tensor of several, one after the other along their first axes.
fn to_runtime(parts: &[&Tensor]) -> Result<TValue, String> {
    let Some((first, others)) = parts.split_first() else { return Err("a tensor of nothing".to_owned()) };
    let mut shape = first.shape().to_vec();
    for part in others {
        let (length, added) = (shape.first_mut(), part.shape().first());
        let (Some(length), Some(added)) = (length, added) else { return Err("a tensor without axes".to_owned()) };
        *length = length.checked_add(*added).ok_or_else(|| "more rows than can be counted".to_owned())?;
    }
    let made = tract_onnx::prelude::Tensor::zero_dt(to_datum(first.datatype()), &shape);
    let mut made = made.map_err(|error| format!("{error:#}"))?;
    let (bytes, expected) = (made.as_bytes_mut(), parts.iter().map(|part| part.bytes().len()).sum::<usize>());
    if bytes.len() != expected || others.iter().any(|part| part.datatype() != first.datatype()) {
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

/// Takes an output apart along its first axis.
fn split(value: &TValue, rows: &[usize]) -> Result<Vec<Tensor>, String> {
    let numbers = plain(value)?;
    let datatype = datatype_of(&numbers)?;
    let (Some((&all, others)), bytes) = (numbers.shape().split_first(), numbers.as_bytes()) else {
        return Err("an output without axes".to_owned());
    };
    if rows.iter().sum::<usize>() != all {
        return Err(format!("an output of {all} rows for {} of the inputs", rows.iter().sum::<usize>()));
    }
    let row_bytes = bytes.len().checked_div(all).unwrap_or(0);
    let mut rest = bytes;
    let part = |&rows: &usize| {
        let (own, after) = rest.split_at(rows * row_bytes);
        rest = after;
        Tensor::new(datatype, [&[rows], others].concat(), own.to_vec()).map_err(|error| error.to_string())
    };
    rows.iter().map(part).collect()
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
