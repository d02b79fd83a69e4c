//! Requests that differ in the length of one axis, which a manifest declares: which of them are computed together, how they are
//! padded to one length, and how what comes of them is cut back.
use std::collections::BTreeMap;

use camshaft_core::tensor::{Axis, Datatype, MaskInput, Number, Signature, Tensor, TensorSpec, volume};

use crate::error::shown;
use crate::manifest::{FillValue, RaggedEntry};

/// How many times its own numbers a request is padded to, at most.
const PADDING: u64 = 2;
/// The largest number with which padding is tried: floating-point numbers beyond it are never padded, as a mask may be too weak for
/// them.
pub(crate) const TRIED: f64 = 10.0;

/// A checked declaration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ragged {
    /// Name of the axis.
    pub(crate) axis: String,
    inputs: Vec<Padded>,
    /// Clients may leave it out.
    pub(crate) mask: Option<MaskInput>,
}

/// How an input is padded.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Padded {
    /// Where the axis is; nowhere, perhaps.
    axes: Vec<usize>,
    /// The bytes of a number.
    fill: Vec<u8>,
}

impl Ragged {
    /// `steps`: which inputs are preprocessed.
    ///
    /// # Errors
    /// Says which key does not fit what the model takes.
    pub(crate) fn new(entry: &RaggedEntry, signature: &Signature, steps: &[bool]) -> Result<Self, String> {
        let axis = &entry.axis;
        let name = shown(axis);
        let places = |spec: &TensorSpec| -> Vec<usize> {
            let is_it = |(_, at): &(usize, &Axis)| matches!(at, Axis::Any(at) if at == axis);
            spec.shape.iter().enumerate().filter(is_it).map(|(place, _)| place).collect()
        };
        let all: Vec<Vec<usize>> = signature.inputs.iter().map(places).collect();
        if all.iter().all(Vec::is_empty) {
            return Err(format!(
                "axis: no input has an axis of any length named {name}; there are {}",
                names(signature)
            ));
        }
        if all.iter().flatten().any(|&place| place == 0) {
            return Err(format!("axis: {name} is the first axis, which counts rows"));
        }
        for key in entry.fill.keys() {
            let at = signature.inputs.iter().position(|spec| spec.name == *key);
            if at.and_then(|at| all.get(at)).is_none_or(Vec::is_empty) {
                return Err(format!("fill.{}: no input of this name has the axis {name}", shown(key)));
            }
        }
        let mut inputs = Vec::with_capacity(all.len());
        for (at, (spec, axes)) in signature.inputs.iter().zip(all).enumerate() {
            if !axes.is_empty() && steps.get(at) == Some(&true) {
                return Err(format!("axis: {name} is an axis of {}, which is preprocessed", shown(&spec.name)));
            }
            let fill = fill(spec.datatype, entry.fill.get(&spec.name))
                .map_err(|value| format!("fill.{}: {} has no {value}", shown(&spec.name), spec.datatype))?;
            inputs.push(Padded { axes, fill });
        }
        let mask = entry.mask.as_deref().map(|mask| mask_input(mask, axis, signature)).transpose()?;
        Ok(Self { axis: axis.clone(), inputs, mask })
    }

    /// What tells apart the requests that cannot be computed together, whatever is padded.
    pub(crate) fn key(&self, request: &[Tensor]) -> (bool, Vec<Vec<usize>>) {
        let pads = self.may_pad(request);
        let mut key = fixed_key(request);
        for (shape, input) in key.iter_mut().zip(&self.inputs).filter(|_| pads) {
            // The key is without the first axis.
            for &axis in &input.axes {
                if let Some(length) = axis.checked_sub(1).and_then(|axis| shape.get_mut(axis)) {
                    *length = 0;
                }
            }
        }
        (pads, key)
    }

    /// Whether padding cannot change what comes of a request's own numbers, as far as that was tried.
    fn may_pad(&self, request: &[Tensor]) -> bool {
        request.iter().zip(&self.inputs).enumerate().filter(|(_, (_, input))| !input.axes.is_empty()).all(
            |(at, (tensor, _))| match tensor.datatype() {
                _ if self.mask.is_some_and(|mask| mask.input == at) => is_mask(tensor),
                Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64 => {
                    // What is no number is not within.
                    tensor.numbers().all(|number| number.to_f64().abs() <= TRIED)
                }
                _ => true,
            },
        )
    }

    /// Divides requests of one key into runs: each request is padded to the longest of its run. Returns their places.
    pub(crate) fn runs(&self, requests: &[&[Tensor]]) -> Vec<Vec<usize>> {
        let mut longest_first: Vec<usize> = (0..requests.len()).collect();
        longest_first.sort_by_key(|&place| std::cmp::Reverse(self.length(requests[place])));
        let mut runs: Vec<Vec<usize>> = Vec::new();
        for place in longest_first {
            match runs.last_mut() {
                Some(run) if run.first().is_some_and(|&longest| self.fits(requests[place], requests[longest])) => {
                    run.push(place);
                }
                _ => runs.push(vec![place]),
            }
        }
        runs
    }

    /// The length of the axis in a request.
    fn length(&self, request: &[Tensor]) -> usize {
        let lengths = request.iter().zip(&self.inputs);
        let length = |(tensor, input): (&Tensor, &Padded)| tensor.shape().get(*input.axes.first()?).copied();
        lengths.filter_map(length).next().unwrap_or(0)
    }

    /// Whether a request may be padded to the length of another one.
    fn fits(&self, request: &[Tensor], longest: &[Tensor]) -> bool {
        let to = self.length(longest);
        let (mut own, mut padded) = (0u64, Some(0u64));
        for (tensor, input) in request.iter().zip(&self.inputs).filter(|(_, input)| !input.axes.is_empty()) {
            let mut shape = tensor.shape().to_vec();
            for &axis in &input.axes {
                if let Some(length) = shape.get_mut(axis) {
                    *length = to;
                }
            }
            own = own.saturating_add(tensor.len() as u64);
            padded = padded.and_then(|padded| padded.checked_add(volume(&shape)? as u64));
        }
        padded.is_some_and(|padded| padded <= own.saturating_mul(PADDING))
    }

    /// A request's tensors, as long as the longest ones of a run.
    ///
    /// # Errors
    /// They cannot be counted.
    pub(crate) fn padded(&self, request: &[Tensor], shapes: &[Vec<usize>]) -> Result<Vec<Tensor>, String> {
        let one = |((tensor, input), shape): ((&Tensor, &Padded), &Vec<usize>)| {
            let rows = tensor.shape().get(..1).unwrap_or_default();
            let shape = [rows, shape.get(1..).unwrap_or_default()].concat();
            resized(tensor, shape, &input.fill)
        };
        request.iter().zip(&self.inputs).zip(shapes).map(one).collect()
    }
}

/// Whether requests differ in nothing but the number of their rows, so that none is padded whatever its numbers are.
pub(crate) fn are_alike<'a>(requests: impl IntoIterator<Item = &'a [Tensor]>) -> bool {
    let mut requests = requests.into_iter();
    let Some(first) = requests.next() else { return true };
    let fixed = |tensor: &'a Tensor| tensor.shape().get(1..);
    requests.all(|other| first.iter().map(fixed).eq(other.iter().map(fixed)))
}

/// The shapes of a request without their rows.
pub(crate) fn fixed_key(request: &[Tensor]) -> Vec<Vec<usize>> {
    request.iter().map(|tensor| tensor.shape().get(1..).unwrap_or_default().to_vec()).collect()
}

/// The shapes of several requests as one: the sum of their rows, and the longest of each other axis. `None`: they cannot be counted.
pub(crate) fn joined_shapes(requests: &[&[Tensor]]) -> Option<Vec<Vec<usize>>> {
    let (first, others) = requests.split_first()?;
    let mut shapes: Vec<Vec<usize>> = first.iter().map(|tensor| tensor.shape().to_vec()).collect();
    for request in others {
        for (shape, tensor) in shapes.iter_mut().zip(*request) {
            for (axis, (length, &other)) in shape.iter_mut().zip(tensor.shape()).enumerate() {
                *length = if axis == 0 { length.checked_add(other)? } else { (*length).max(other) };
            }
        }
    }
    Some(shapes)
}

/// Cuts the tensors of a run back to their own shapes.
///
/// # Errors
/// One is shorter than that.
pub(crate) fn cut(outputs: Vec<Tensor>, own: Vec<Vec<usize>>) -> Result<Vec<Tensor>, String> {
    let cut = |(output, own): (Tensor, Vec<usize>)| {
        if output.shape().iter().zip(&own).any(|(padded, own)| padded < own) {
            return Err(format!("an output of {:?} where {own:?} were expected", output.shape()));
        }
        resized(&output, own, &vec![0; output.datatype().bytes()])
    };
    outputs.into_iter().zip(own).map(cut).collect()
}

/// A tensor of another shape of as many axes: what both have in common is there, the rest has `fill`.
///
/// # Errors
/// It cannot be counted, or has other axes.
pub(crate) fn resized(tensor: &Tensor, shape: Vec<usize>, fill: &[u8]) -> Result<Tensor, String> {
    if tensor.shape() == shape {
        return Ok(tensor.clone());
    }
    let size = volume(&shape).and_then(|numbers| numbers.checked_mul(fill.len()));
    let (Some(size), true) = (size, shape.len() == tensor.shape().len()) else {
        return Err(format!("a tensor of {:?} cannot become one of {shape:?}", tensor.shape()));
    };
    let mut bytes = vec![0; size];
    if fill.iter().any(|&byte| byte != 0) {
        bytes.chunks_exact_mut(fill.len()).for_each(|number| number.copy_from_slice(fill));
    }
    copy((tensor.bytes(), tensor.shape()), (&mut bytes, &shape));
    Tensor::new(tensor.datatype(), shape, bytes).map_err(|error| error.to_string())
}

fn copy((from, own): (&[u8], &[usize]), (to, other): (&mut [u8], &[usize])) {
    let (Some((&own_first, own_rest)), Some((&other_first, other_rest))) = (own.split_first(), other.split_first())
    else {
        return;
    };
    if own_rest == other_rest {
        // They lie alike.
        let common = from.len().min(to.len());
        to[..common].copy_from_slice(&from[..common]);
        return;
    }
    let (Some(from_bytes), Some(to_bytes)) = (from.len().checked_div(own_first), to.len().checked_div(other_first))
    else {
        return;
    };
    if from_bytes > 0 && to_bytes > 0 {
        for (from, to) in from.chunks_exact(from_bytes).zip(to.chunks_exact_mut(to_bytes)) {
            copy((from, own_rest), (to, other_rest));
        }
    }
}

/// Zeros and ones, in each row at least one.
fn is_mask(tensor: &Tensor) -> bool {
    let rows = tensor.shape().first().copied().unwrap_or(1);
    let Some(row) = tensor.len().checked_div(rows).filter(|&row| row > 0) else { return false };
    let numbers: Vec<f64> = tensor.numbers().map(Number::to_f64).collect();
    numbers.chunks(row).all(|row| row.contains(&1.0) && row.iter().all(|&number| number == 0.0 || number == 1.0))
}

/// The input that is the mask, which clients may leave out.
///
/// # Errors
/// Says why they cannot.
fn mask_input(mask: &str, axis: &str, signature: &Signature) -> Result<MaskInput, String> {
    let name = shown(mask);
    let bad = |why: &str| Err(format!("mask: {name} {why}"));
    let inputs = &signature.inputs;
    let Some(input) = inputs.iter().position(|spec| spec.name == mask) else { return bad("is no input of the model") };
    let spec = &inputs[input];
    if !spec.shape.iter().any(|at| matches!(at, Axis::Any(at) if at == axis)) {
        return bad(&format!("does not have the axis {}", shown(axis)));
    }
    // Of an axis of any length there is one number at least.
    let bytes = |spec: &TensorSpec| {
        let least = spec.shape.iter().filter_map(|axis| match axis {
            Axis::Fixed(length) => Some(*length),
            Axis::Any(_) => None,
        });
        least.fold(spec.datatype.bytes(), usize::saturating_mul)
    };
    let is_like = |other: &TensorSpec| other.shape.starts_with(&spec.shape) && bytes(other) >= bytes(spec);
    match inputs.iter().enumerate().position(|(at, other)| at != input && is_like(other)) {
        Some(like) => Ok(MaskInput { input, like }),
        None => bad("cannot be left out: no other input begins with its axes and has as many bytes"),
    }
}

/// The bytes of a number.
///
/// # Errors
/// The type has no such number, which is told.
fn fill(datatype: Datatype, value: Option<&FillValue>) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(datatype.bytes());
    let (number, text) = match value {
        None => return Ok(vec![0; datatype.bytes()]),
        Some(FillValue::Flag(flag)) => (Number::Bool(*flag), flag.to_string()),
        Some(FillValue::Integer(number)) => (Number::Signed(*number), number.to_string()),
        Some(FillValue::Float(number)) => (Number::Double(*number), number.to_string()),
    };
    let is_finite = number.to_f64().is_finite();
    if is_finite && datatype.write(number, &mut bytes) { Ok(bytes) } else { Err(text) }
}

/// The axes of any length of a model's inputs.
fn names(signature: &Signature) -> String {
    let mut names: BTreeMap<&str, ()> = BTreeMap::new();
    for axis in signature.inputs.iter().flat_map(|spec| &spec.shape) {
        if let Axis::Any(name) = axis {
            names.insert(name, ());
        }
    }
    let names: Vec<String> = names.into_keys().take(8).map(shown).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
#[path = "ragged_tests.rs"]
mod tests;
