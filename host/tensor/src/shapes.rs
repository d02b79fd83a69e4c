//! The shape of what a layer gives, from the shapes of what it takes, and what computing it takes beside.
use camshaft_core::tensor::{Axis, volume};

use crate::layers::{Adaptive, Along, Conv, Given, Layer, Pool, Recurrent, Sizes};
use crate::manifest::LENGTH;

/// Steps of a recurrent layer, and how many are stacked: each is computed by itself.
pub(crate) const STACKED: usize = 64;

/// Shape of the tensor that a layer gives. The first axis stays what it is: it counts rows, and no layer mixes them.
///
/// # Errors
/// Says which input, axis or setting does not fit.
pub(crate) fn output(layer: &Layer, inputs: &[&[Axis]]) -> Result<Vec<Axis>, String> {
    match layer {
        Layer::Conv1d(conv) => convolved::<1>(conv, one(inputs)?),
        Layer::Conv2d(conv) => convolved::<2>(conv, one(inputs)?),
        Layer::MaxPool1d(pool) | Layer::AvgPool1d(pool) => pooled::<1>(pool, one(inputs)?),
        Layer::MaxPool2d(pool) | Layer::AvgPool2d(pool) => pooled::<2>(pool, one(inputs)?),
        Layer::AdaptiveAvgPool1d(pool) => adapted::<1>(pool, one(inputs)?),
        Layer::AdaptiveAvgPool2d(pool) => adapted::<2>(pool, one(inputs)?),
        Layer::GlobalAvgPool(_) | Layer::GlobalMaxPool(_) => {
            let shape = of_rank(one(inputs)?, 3..=4)?;
            Ok(shape[..2].to_vec())
        }
        Layer::BatchNorm(_) => {
            let shape = of_rank(one(inputs)?, 2..=4)?;
            fixed(shape, 1).map(|_| shape.to_vec())
        }
        Layer::LayerNorm(_) => {
            let shape = of_rank(one(inputs)?, 2..=8)?;
            fixed(shape, shape.len() - 1).map(|_| shape.to_vec())
        }
        Layer::Linear(linear) => {
            let shape = of_rank(one(inputs)?, 2..=8)?;
            fixed(shape, shape.len() - 1)?;
            let out = size("out-features", linear.out_features)?;
            Ok([&shape[..shape.len() - 1], &[Axis::Fixed(out)]].concat())
        }
        Layer::Lstm(recurrent) | Layer::Gru(recurrent) => recurred(recurrent, one(inputs)?),
        Layer::Attention(attention) => {
            let (queries, keys, values) = match inputs {
                [only] => (*only, *only, *only),
                [queries, keys, values] => (*queries, *keys, *values),
                _ => return Err(format!("takes 1 input or 3, got {}", inputs.len())),
            };
            let features = fixed(of_rank(queries, 3..=3)?, 2)?;
            let heads = size("heads", attention.heads)?;
            if features % heads != 0 {
                return Err(format!("heads must divide the {features} features of its input, got {heads}"));
            }
            let fits = keys.len() == 3 && keys == values && keys[0] == queries[0] && keys[2] == queries[2];
            match fits {
                true => Ok(queries.to_vec()),
                false => Err(format!(
                    "keys and values must have the same shape, and rows and features as queries ({}), got {} and {}",
                    told(queries),
                    told(keys),
                    told(values)
                )),
            }
        }
        Layer::Embedding(embedding) => {
            let shape = of_rank(one(inputs)?, 1..=7)?;
            size("entries", embedding.entries)?;
            Ok([shape, &[Axis::Fixed(size("features", embedding.features)?)]].concat())
        }
        Layer::Softmax(along) | Layer::LogSoftmax(along) => {
            let shape = one(inputs)?;
            not_rows(along, shape).map(|_| shape.to_vec())
        }
        Layer::LeakyRelu(leaky) if !leaky.slope.is_finite() => Err("slope must be finite".to_owned()),
        Layer::Relu(_)
        | Layer::Gelu(_)
        | Layer::Silu(_)
        | Layer::Sigmoid(_)
        | Layer::Tanh(_)
        | Layer::LeakyRelu(_)
        | Layer::Dropout(_) => one(inputs).map(<[Axis]>::to_vec),
        Layer::Flatten(_) => {
            let shape = of_rank(one(inputs)?, 2..=8)?;
            Ok(vec![shape[0].clone(), Axis::Fixed(rest(shape)?)])
        }
        Layer::Reshape(reshape) => {
            let shape = of_rank(one(inputs)?, 2..=8)?;
            let (all, wanted) = (rest(shape)?, volume(&reshape.shape));
            if wanted != Some(all) || reshape.shape.is_empty() || reshape.shape.len() > 7 {
                return Err(format!("shape must hold the {all} numbers of each row, got {:?}", cut(&reshape.shape)));
            }
            Ok([&shape[..1], &reshape.shape.iter().map(|&length| Axis::Fixed(length)).collect::<Vec<_>>()].concat())
        }
        Layer::Transpose(transpose) => {
            let (shape, axes) = (one(inputs)?, &transpose.axes);
            let mut sorted = axes.clone();
            sorted.sort_unstable();
            if axes.first() != Some(&0) || sorted != (0..shape.len()).collect::<Vec<_>>() {
                let count = shape.len();
                return Err(format!("axes must name each of {count} axes once, 0 first, got {:?}", cut(axes)));
            }
            Ok(axes.iter().map(|&axis| shape[axis].clone()).collect())
        }
        Layer::Select(select) => {
            let shape = one(inputs)?;
            let at = not_rows(&Along { axis: select.axis }, shape)?;
            let fits = match shape[at] {
                Axis::Fixed(length) => place(select.index, length).is_some(),
                Axis::Any(_) => [0, -1].contains(&select.index),
            };
            match fits {
                true => Ok([&shape[..at], &shape[at + 1..]].concat()),
                false => Err(format!("index {} is not on axis {at} of {} for sure", select.index, told(shape))),
            }
        }
        Layer::Add(_) | Layer::Multiply(_) => joined(inputs),
        Layer::Concat(along) => concatenated(along, inputs),
    }
}

fn one<'a>(inputs: &[&'a [Axis]]) -> Result<&'a [Axis], String> {
    match inputs {
        [only] => Ok(only),
        _ => Err(format!("takes 1 input, got {}", inputs.len())),
    }
}

fn of_rank(shape: &[Axis], ranks: std::ops::RangeInclusive<usize>) -> Result<&[Axis], String> {
    match ranks.contains(&shape.len()) {
        true => Ok(shape),
        false => {
            let (least, most) = (ranks.start(), ranks.end());
            let wanted = if least == most { format!("{least}") } else { format!("{least} to {most}") };
            Err(format!("its input must have {wanted} axes, got {}", told(shape)))
        }
    }
}

/// A shape as an error shows it.
pub(crate) fn told(shape: &[Axis]) -> String {
    let axis = |axis: &Axis| match axis {
        Axis::Fixed(length) => length.to_string(),
        Axis::Any(name) => crate::error::shown(name),
    };
    format!("[{}]", shape.iter().map(axis).collect::<Vec<_>>().join(", "))
}

fn cut(numbers: &[usize]) -> &[usize] {
    &numbers[..numbers.len().min(16)]
}

/// The length of an axis that must not be of any length.
pub(crate) fn fixed(shape: &[Axis], axis: usize) -> Result<usize, String> {
    match shape.get(axis) {
        Some(Axis::Fixed(length)) => Ok(*length),
        _ => Err(format!("axis {axis} of its input must have a fixed length, got {}", told(shape))),
    }
}

/// Numbers of a row.
fn rest(shape: &[Axis]) -> Result<usize, String> {
    let lengths: Result<Vec<usize>, String> = (1..shape.len()).map(|axis| fixed(shape, axis)).collect();
    volume(&lengths?).ok_or_else(|| format!("has more numbers than can be counted: {}", told(shape)))
}

fn size(key: &str, size: usize) -> Result<usize, String> {
    match (1..=LENGTH).contains(&size) {
        true => Ok(size),
        false => Err(format!("{key} must be 1 to {LENGTH}, got {size}")),
    }
}

/// A size for each axis of an image or a signal.
///
/// # Errors
/// There are more or fewer sizes, or one is out of bounds.
pub(crate) fn each<const N: usize>(key: &str, sizes: &Sizes, least: usize) -> Result<[usize; N], String> {
    let all = match sizes {
        Sizes::All(size) => [*size; N],
        Sizes::Each(sizes) => <[usize; N]>::try_from(sizes.as_slice())
            .map_err(|_| format!("{key} must be a number or a list of {N}, got a list of {}", sizes.len()))?,
    };
    match all.iter().find(|size| !(least..=LENGTH).contains(size)) {
        Some(wrong) => Err(format!("{key} must be {least} to {LENGTH}, got {wrong}")),
        None => Ok(all),
    }
}

/// The place of an index that may count from the end.
pub(crate) fn place(index: isize, length: usize) -> Option<usize> {
    let at = if index < 0 { length.checked_sub(index.unsigned_abs())? } else { index.unsigned_abs() };
    (at < length).then_some(at)
}

/// An axis that is not the one of rows.
fn not_rows(along: &Along, shape: &[Axis]) -> Result<usize, String> {
    match place(along.axis, shape.len()) {
        Some(axis) if axis > 0 => Ok(axis),
        _ => Err(format!("axis must be one of {} after the first, got {}", told(shape), along.axis)),
    }
}

fn windows(axis: usize, length: usize, window: [usize; 4]) -> Result<usize, String> {
    let [kernel, stride, padding, dilation] = window;
    let (covered, padded) = (dilation * (kernel - 1) + 1, length + 2 * padding);
    match covered <= padded {
        true => Ok((padded - covered) / stride + 1),
        false => Err(format!("kernel covers {covered} of axis {axis}, which has {padded} with its padding")),
    }
}

fn convolved<const N: usize>(conv: &Conv, shape: &[Axis]) -> Result<Vec<Axis>, String> {
    let channels = fixed(of_rank(shape, N + 2..=N + 2)?, 1)?;
    let (out, groups) = (size("out-channels", conv.out_channels)?, size("groups", conv.groups)?);
    if channels % groups != 0 || out % groups != 0 {
        return Err(format!("groups must divide {channels} channels and out-channels {out}, got {groups}"));
    }
    let (kernel, stride): ([usize; N], [usize; N]) =
        (each("kernel", &conv.kernel, 1)?, each("stride", &conv.stride, 1)?);
    let (padding, dilation): ([usize; N], [usize; N]) =
        (each("padding", &conv.padding, 0)?, each("dilation", &conv.dilation, 1)?);
    let mut given = vec![shape[0].clone(), Axis::Fixed(out)];
    for at in 0..N {
        let window = [kernel[at], stride[at], padding[at], dilation[at]];
        given.push(Axis::Fixed(windows(at + 2, fixed(shape, at + 2)?, window)?));
    }
    Ok(given)
}

/// Kernel, stride and padding of a pooling layer.
pub(crate) fn pool_window<const N: usize>(pool: &Pool) -> Result<[[usize; N]; 3], String> {
    let kernel: [usize; N] = each("kernel", &pool.kernel, 1)?;
    let stride = pool.stride.as_ref().map_or(Ok(kernel), |stride| each("stride", stride, 1))?;
    let padding: [usize; N] = each("padding", &pool.padding, 0)?;
    match padding.iter().zip(kernel).find(|(padding, kernel)| **padding > kernel / 2) {
        Some((padding, kernel)) => Err(format!("padding must be at most half of the kernel's {kernel}, got {padding}")),
        None => Ok([kernel, stride, padding]),
    }
}

fn pooled<const N: usize>(pool: &Pool, shape: &[Axis]) -> Result<Vec<Axis>, String> {
    let [kernel, stride, padding] = pool_window::<N>(pool)?;
    let mut given = of_rank(shape, N + 2..=N + 2)?[..2].to_vec();
    for at in 0..N {
        let window = [kernel[at], stride[at], padding[at], 1];
        given.push(Axis::Fixed(windows(at + 2, fixed(shape, at + 2)?, window)?));
    }
    Ok(given)
}

fn adapted<const N: usize>(pool: &Adaptive, shape: &[Axis]) -> Result<Vec<Axis>, String> {
    let sizes: [usize; N] = each("size", &pool.size, 1)?;
    let shape = of_rank(shape, N + 2..=N + 2)?;
    for at in 0..N {
        fixed(shape, at + 2)?;
    }
    Ok([&shape[..2], &sizes.map(Axis::Fixed)].concat())
}

fn recurred(recurrent: &Recurrent, shape: &[Axis]) -> Result<Vec<Axis>, String> {
    fixed(of_rank(shape, 3..=3)?, 2)?;
    let hidden = size("hidden", recurrent.hidden)?;
    if !(1..=STACKED).contains(&recurrent.layers) {
        return Err(format!("layers must be 1 to {STACKED}, got {}", recurrent.layers));
    }
    if recurrent.reverse && recurrent.bidirectional {
        return Err("is bidirectional and reverse, which exclude each other".to_owned());
    }
    let features = Axis::Fixed(hidden * (1 + usize::from(recurrent.bidirectional)));
    Ok(match recurrent.output {
        Given::Sequence => vec![shape[0].clone(), shape[1].clone(), features],
        Given::Last => vec![shape[0].clone(), features],
    })
}

/// Shapes are the same but for axes of length 1.
fn joined(inputs: &[&[Axis]]) -> Result<Vec<Axis>, String> {
    let [first, others @ ..] = inputs else { return Err("takes 2 inputs or more, got 0".to_owned()) };
    if others.is_empty() {
        return Err("takes 2 inputs or more, got 1".to_owned());
    }
    let mut shape = first.to_vec();
    for other in others {
        let differ = || format!("its inputs must have the same shape, got {} and {}", told(first), told(other));
        if other.len() != shape.len() {
            return Err(differ());
        }
        for (axis, other) in shape.iter_mut().zip(*other) {
            match (&*axis, other) {
                (one, other) if one == other => {}
                (Axis::Fixed(1), other) => *axis = other.clone(),
                (_, Axis::Fixed(1)) => {}
                _ => return Err(differ()),
            }
        }
    }
    Ok(shape)
}

fn concatenated(along: &Along, inputs: &[&[Axis]]) -> Result<Vec<Axis>, String> {
    let [first, others @ ..] = inputs else { return Err("takes 2 inputs or more, got 0".to_owned()) };
    if others.is_empty() {
        return Err("takes 2 inputs or more, got 1".to_owned());
    }
    let axis = not_rows(along, first)?;
    let mut length = fixed(first, axis)?;
    for other in others {
        let same = other.len() == first.len() && (0..first.len()).all(|at| at == axis || other[at] == first[at]);
        if !same {
            return Err(format!(
                "its inputs must have the same shape but for axis {axis}, got {} and {}",
                told(first),
                told(other)
            ));
        }
        length = length.saturating_add(fixed(other, axis)?);
    }
    let mut shape = first.to_vec();
    shape[axis] = Axis::Fixed(size("the joined axis", length)?);
    Ok(shape)
}

/// Upper bound of the numbers that computing a layer makes beside its output. `None`: they are more than can be counted.
pub(crate) fn scratch(layer: &Layer, inputs: &[&[usize]], output: &[usize]) -> Option<u64> {
    let numbers = |shape: &[usize]| volume(shape).map(|numbers| numbers as u64);
    let (given, first) = (numbers(output)?, inputs.first().copied().unwrap_or_default());
    match layer {
        // A copy with padding, another in the order of the kernel, and the output in that order.
        Layer::Conv1d(Conv { padding, .. }) => padded::<1>(first, padding)?.checked_mul(2)?.checked_add(given),
        Layer::Conv2d(Conv { padding, .. }) => padded::<2>(first, padding)?.checked_mul(2)?.checked_add(given),
        Layer::MaxPool1d(pool) | Layer::AvgPool1d(pool) => {
            padded::<1>(first, &pool.padding)?.checked_mul(2)?.checked_add(given)
        }
        Layer::MaxPool2d(pool) | Layer::AvgPool2d(pool) => {
            padded::<2>(first, &pool.padding)?.checked_mul(2)?.checked_add(given)
        }
        Layer::AdaptiveAvgPool1d(_) | Layer::AdaptiveAvgPool2d(_) => numbers(first)?.checked_add(given),
        Layer::GlobalAvgPool(_) | Layer::GlobalMaxPool(_) => numbers(first),
        Layer::Lstm(recurrent) | Layer::Gru(recurrent) => recurrent_numbers(recurrent, first),
        Layer::Attention(attention) => {
            let (queries, keys) = (first, inputs.get(1).copied().unwrap_or(first));
            let scores = volume(&[queries[0], attention.heads, queries[1], keys[1]])? as u64;
            let projected = given.checked_mul(6)?.checked_add(numbers(keys)?.checked_mul(6)?)?;
            scores.checked_mul(5)?.checked_add(projected)
        }
        Layer::Dropout(_) | Layer::Flatten(_) | Layer::Reshape(_) | Layer::Embedding(_) => Some(given),
        _ => given.checked_mul(5),
    }
}

fn padded<const N: usize>(shape: &[usize], padding: &Sizes) -> Option<u64> {
    let padding: [usize; N] = each("padding", padding, 0).ok()?;
    let lengths: Option<Vec<usize>> = shape
        .iter()
        .enumerate()
        .map(|(axis, length)| length.checked_add(if axis < 2 { 0 } else { 2 * padding[axis - 2] }))
        .collect();
    Some(volume(&lengths?)? as u64)
}

fn recurrent_numbers(recurrent: &Recurrent, shape: &[usize]) -> Option<u64> {
    let directions = 1 + u64::from(recurrent.bidirectional);
    let steps = (shape[0] as u64).checked_mul(shape[1] as u64)?;
    // Of each step: products of all gates, twice where they are normalized, and states; of the step that is computed, copies.
    let of_step = (recurrent.hidden as u64).checked_mul(16)?.checked_add(2 * shape[2] as u64)?;
    steps.checked_mul(of_step)?.checked_mul(directions)
}

#[cfg(test)]
#[path = "shapes_tests.rs"]
mod tests;
