//! Tries on a model whether padding along a declared axis shows in what comes of the real numbers.
//!
//! Random requests are computed alone, and padded beside a longer one. No proof, as that of rows is: a mask is made of numbers. So
//! floating-point numbers beyond the tried ones are never padded (`ragged`).
use camshaft_core::limits::RUN_BYTES;
use camshaft_core::tensor::{Datatype, Number, Signature, Tensor};

use crate::error::shown;
use crate::ragged::{TRIED, joined_shapes};
use crate::samples::{self, LENGTHS, RunBytes};

/// The lengths that are tried: a request's own, and that of a longer one beside it.
const PAIRS: [(usize, usize); 5] = [(3, 6), (1, 2), (3, 4), (8, 9), (8, 16)];
/// The largest integers that are tried: they may index something.
const INTEGERS: [u64; 4] = [1000, 100, 10, 1];
/// The largest integer of eight bits, with a sign or without.
const BYTE: u64 = 127;
/// How far two numbers may be apart, of the largest one of their output: batches of other widths round differently.
const ROUNDING: f64 = 1e-5;

/// Computes a request.
type Alone<'a> = &'a dyn Fn(&[Tensor]) -> Result<Vec<Tensor>, String>;
/// Computes several at once: what each of them gets.
type Together<'a> = &'a dyn Fn(&[&[Tensor]]) -> Result<Vec<Vec<Tensor>>, String>;

/// What computes a model, with the bytes that this takes.
pub(crate) struct Model<'a> {
    pub(crate) signature: &'a Signature,
    pub(crate) axis: &'a str,
    /// Place of the input that is a mask.
    pub(crate) mask: Option<usize>,
    pub(crate) bytes: RunBytes<'a>,
    pub(crate) alone: Alone<'a>,
    pub(crate) together: Together<'a>,
}

/// Computes requests of all pairs of lengths alone and together, with the largest integers that the model takes in every one of them:
/// what it computes of one pair says nothing of the others.
///
/// # Errors
/// They differ, with both numbers; or there are no such integers, with why the model does not compute a request.
pub(crate) fn examine(model: &Model<'_>) -> Result<(), String> {
    let mut why = String::new();
    for other in LENGTHS {
        for most in INTEGERS {
            match try_all(model, other, most)? {
                Tried::Computed => return Ok(()),
                Tried::Refused(reason) => why = reason,
            }
        }
    }
    Err(format!("padding along {} cannot be tried with all lengths from 1 to 16: {why}", shown(model.axis)))
}

/// What came of a trial in which no padding showed.
enum Tried {
    Computed,
    /// The model does not compute one of the requests, not even alone.
    Refused(String),
}

/// Tries all pairs of lengths, also where one is refused: padding may show in another.
fn try_all(model: &Model<'_>, other: usize, most: u64) -> Result<Tried, String> {
    let mut all = Tried::Computed;
    for (seed, lengths) in PAIRS.into_iter().enumerate() {
        for holes in [false, true] {
            let make = Make { model, other, most, holes };
            let one = try_pair(&make, lengths, seed as u64 * 2 + u64::from(holes))?;
            if matches!(all, Tried::Computed) {
                all = one;
            }
        }
    }
    Ok(all)
}

fn try_pair(make: &Make<'_>, (own, longer): (usize, usize), seed: u64) -> Result<Tried, String> {
    let model = make.model;
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let refused = |length: usize, why: &str| {
        let Make { most, other, .. } = make;
        let with = format!("with integers up to {most} and {other} for other axes of any length");
        Ok(Tried::Refused(format!("{with}, a request of the length {length} is not computed: {}", shown(why))))
    };
    let large = format!("it takes more than {RUN_BYTES} bytes");
    let Some(short) = make.request(1, own, &mut random) else { return refused(own, &large) };
    let Some(long) = make.request(2, longer, &mut random) else { return refused(longer, &large) };
    let requests: [&[Tensor]; 2] = [&short, &long];
    if !joined_shapes(&requests).is_some_and(|shapes| samples::fits(&shapes, model.bytes)) {
        return refused(longer, &large);
    }
    let short_alone = match (model.alone)(&short) {
        Ok(given) => given,
        Err(why) => return refused(own, &why),
    };
    let long_alone = match (model.alone)(&long) {
        Ok(given) => given,
        Err(why) => return refused(longer, &why),
    };
    let together = (model.together)(&requests).map_err(|error| format!("padded from {own} to {longer}: {error}"))?;
    let [short_padded, long_padded] = together.as_slice() else {
        return Err(format!("padded from {own} to {longer}: {} answers to 2 requests", together.len()));
    };
    compare(model, (own, longer), &short_alone, short_padded)?;
    compare(model, (longer, own), &long_alone, long_padded)?;
    Ok(Tried::Computed)
}

/// # Errors
/// What a request gets differs alone and beside one of another length.
fn compare(
    model: &Model<'_>,
    (length, beside): (usize, usize),
    alone: &[Tensor],
    padded: &[Tensor],
) -> Result<(), String> {
    if alone.len() != padded.len() {
        return Err(format!("padding shows: {} outputs alone, {} when padded", alone.len(), padded.len()));
    }
    for ((spec, alone), padded) in model.signature.outputs.iter().zip(alone).zip(padded) {
        if let Some(difference) = difference(alone, padded) {
            let (name, axis) = (shown(&spec.name), shown(model.axis));
            return Err(format!(
                "padding shows in output {name}: of a request with {length} of {axis} {difference} beside one with {beside}"
            ));
        }
    }
    Ok(())
}

/// The first numbers that differ, in words.
fn difference(alone: &Tensor, padded: &Tensor) -> Option<String> {
    if alone.shape() != padded.shape() || alone.datatype() != padded.datatype() {
        return Some(format!("the shape is {:?} alone and {:?}", alone.shape(), padded.shape()));
    }
    let is_float = matches!(alone.datatype(), Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64);
    let finite = alone.numbers().map(|number| number.to_f64().abs()).filter(|number| number.is_finite());
    let bound = if is_float { ROUNDING * finite.fold(0.0, f64::max) } else { 0.0 };
    // Half precision has fewer digits than that.
    let bound = if alone.datatype() == Datatype::Fp16 { bound * 100.0 } else { bound };
    let pairs = alone.numbers().map(Number::to_f64).zip(padded.numbers().map(Number::to_f64));
    let is_same = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= bound;
    let mut apart = pairs.enumerate().filter(|&(_, (a, b))| !is_same(a, b));
    apart.next().map(|(at, (a, b))| format!("number {at} is {a} alone and {b}"))
}

/// How requests are made.
struct Make<'a> {
    model: &'a Model<'a>,
    /// Length of axes of any length but that of rows and the ragged one.
    other: usize,
    /// Largest integer.
    most: u64,
    /// The mask has zeros, too.
    holes: bool,
}

impl Make<'_> {
    /// `None`: computing it takes more than a run may.
    fn request(&self, rows: usize, length: usize, random: &mut Random) -> Option<Vec<Tensor>> {
        let inputs = &self.model.signature.inputs;
        let shapes = samples::shapes(inputs, |place, name| match place {
            0 => rows,
            _ if name == self.model.axis => length,
            _ => self.other,
        });
        // Before anything is as large as that.
        if !samples::fits(&shapes, self.model.bytes) {
            return None;
        }
        let specs = inputs.iter().zip(shapes).enumerate();
        specs.map(|(at, (spec, shape))| self.tensor(at, spec.datatype, shape, random)).collect()
    }

    fn tensor(&self, at: usize, datatype: Datatype, shape: Vec<usize>, random: &mut Random) -> Option<Tensor> {
        let mut tensor = Tensor::ones(datatype, shape.clone()).ok()?;
        let is_mask = self.model.mask == Some(at);
        if is_mask && !self.holes {
            return Some(tensor);
        }
        let zero = vec![0; datatype.bytes()];
        let one = tensor.bytes().get(..datatype.bytes())?.to_vec();
        let row = tensor.len().checked_div(shape.first().copied().unwrap_or(1)).unwrap_or(0).max(1);
        let mut bytes = Vec::with_capacity(tensor.bytes().len());
        for place in 0..tensor.len() {
            match datatype {
                // Each row has something that is real.
                _ if is_mask => {
                    bytes.extend_from_slice(if place % row == 0 || random.below(3) > 0 { &one } else { &zero });
                }
                Datatype::Bool => bytes.push((random.below(2) == 0).into()),
                Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64 => {
                    let number = (random.below(1 << 20) as f64 / f64::from(1 << 19) - 1.0) * TRIED;
                    datatype.write(Number::Double(number), &mut bytes).then_some(())?;
                }
                _ => {
                    let most = if datatype.bytes() == 1 { self.most.min(BYTE) } else { self.most };
                    datatype.write(Number::Unsigned(1 + random.below(most)), &mut bytes).then_some(())?;
                }
            }
        }
        tensor = Tensor::new(datatype, shape, bytes).ok()?;
        Some(tensor)
    }
}

/// Xorshift (Marsaglia 2003).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound.max(1)
    }
}

#[cfg(test)]
#[cfg(feature = "onnx")]
#[path = "trial_tests.rs"]
mod tests;
