//! Inputs with which a model is tried before anybody sends some: which lengths, which shapes, and which numbers.
use camshaft_core::limits::RUN_BYTES;
use camshaft_core::tensor::{Axis, Tensor, TensorSpec};

/// Lengths that are tried for axes of any length, in this order: some models take no short ones.
pub(crate) const LENGTHS: [usize; 3] = [8, 32, 1];

/// Bytes that computing inputs of these shapes takes. `None`: they cannot be counted.
pub(crate) type RunBytes<'a> = &'a dyn Fn(&[&[usize]]) -> Option<u64>;

/// Shapes of inputs. `length`: of an axis of any length, by its place in the shape and its name.
pub(crate) fn shapes(inputs: &[TensorSpec], length: impl Fn(usize, &str) -> usize) -> Vec<Vec<usize>> {
    let axis = |(place, axis): (usize, &Axis)| match axis {
        Axis::Fixed(length) => *length,
        Axis::Any(name) => length(place, name),
    };
    inputs.iter().map(|spec| spec.shape.iter().enumerate().map(axis).collect()).collect()
}

/// Whether a run of these shapes takes no more than any run may.
pub(crate) fn fits(shapes: &[Vec<usize>], bytes: RunBytes<'_>) -> bool {
    bytes(&shapes.iter().map(Vec::as_slice).collect::<Vec<_>>()).is_some_and(|bytes| bytes <= RUN_BYTES)
}

/// Inputs of zeros, with this length for all axes of any length. `None`: computing them takes more than a run may.
pub(crate) fn zeros(inputs: &[TensorSpec], length: usize, bytes: RunBytes<'_>) -> Option<Vec<Tensor>> {
    made(inputs, length, bytes, |spec, shape| Tensor::zero(spec.datatype, shape).ok())
}

/// The same of different numbers from 0 to 1, where a model takes FP32. Integers stay 0: they may be indices.
#[cfg(feature = "wgpu")]
pub(crate) fn numbers(inputs: &[TensorSpec], length: usize, bytes: RunBytes<'_>) -> Option<Vec<Tensor>> {
    use camshaft_core::tensor::{Datatype, volume};

    made(inputs, length, bytes, |spec, shape| {
        if spec.datatype != Datatype::Fp32 {
            return Tensor::zero(spec.datatype, shape).ok();
        }
        let numbers = (0..volume(&shape)?).map(|place| (place * 7 % 61) as f32 / 61.0);
        Tensor::new(spec.datatype, shape, numbers.flat_map(f32::to_le_bytes).collect()).ok()
    })
}

fn made(
    inputs: &[TensorSpec],
    length: usize,
    bytes: RunBytes<'_>,
    tensor: impl Fn(&TensorSpec, Vec<usize>) -> Option<Tensor>,
) -> Option<Vec<Tensor>> {
    let shapes = shapes(inputs, |_, _| length);
    // Before anything is as large as that.
    if !fits(&shapes, bytes) {
        return None;
    }
    inputs.iter().zip(shapes).map(|(spec, shape)| tensor(spec, shape)).collect()
}

#[cfg(test)]
mod tests {
    use camshaft_core::tensor::Datatype;

    use super::*;

    #[test]
    fn inputs_are_made_up_to_the_bound_of_a_run_and_not_for_one_byte_more() {
        let shape = vec![Axis::Any("n".to_owned()), Axis::Fixed(3)];
        let inputs = [TensorSpec { name: "x".to_owned(), datatype: Datatype::Int64, shape }];
        let of = |bytes: Option<u64>| zeros(&inputs, 8, &|shapes| bytes.filter(|_| shapes == [[8, 3]]));
        assert_eq!(of(Some(RUN_BYTES)), Some(vec![Tensor::zero(Datatype::Int64, vec![8, 3]).unwrap()]));
        assert_eq!((of(Some(RUN_BYTES + 1)), of(None)), (None, None));
        assert_eq!(shapes(&inputs, |place, name| 10 * place + name.len()), [[1, 3]]);
    }
}
