//! What one layer does with tensors.
use burn_core::tensor::backend::Backend;
use burn_core::tensor::ops::{ConvOptions, FloatTensor, IntTensor};
use burn_core::tensor::{Scalar, Shape, Slice, TensorMetadata};
use camshaft_core::tensor::{Axis, volume};

use crate::error::TensorLoadError;
use crate::layers::{Conv, Layer, LayerEntry, Pool, Recurrent};
use crate::manifest::Layout;
use crate::parameters::{Affine, CellPlace, Parameters};
use crate::pieces::{Matrix, Normed, dims, lengths, of};
use crate::recurrent::{Cell, CellKind, Stack};
use crate::shapes::{each, fixed, place, pool_window};
use crate::weights::Weights;

/// What a layer takes.
#[derive(Debug)]
pub(crate) enum Taken<B: Backend> {
    Float(FloatTensor<B>),
    /// With the least and the greatest number.
    Integers(IntTensor<B>, i64, i64),
}

/// A layer with its weights.
#[derive(Debug)]
pub(crate) enum Operation<B: Backend> {
    Conv1d {
        weight: FloatTensor<B>,
        bias: Option<FloatTensor<B>>,
        options: ConvOptions<1>,
    },
    Conv2d {
        weight: FloatTensor<B>,
        bias: Option<FloatTensor<B>>,
        options: ConvOptions<2>,
    },
    /// Of each channel.
    BatchNorm {
        gamma: FloatTensor<B>,
        beta: FloatTensor<B>,
    },
    LayerNorm(Normed<B>),
    Linear(Matrix<B>),
    Recurrent(Stack<B>),
    Attention {
        projections: Box<[Matrix<B>; 4]>,
        heads: usize,
        causal: bool,
    },
    Embedding {
        table: FloatTensor<B>,
        entries: usize,
        features: usize,
        name: String,
    },
    Pool {
        window: [[usize; 2]; 3],
        is_max: bool,
        counts_padding: bool,
        is_flat: bool,
    },
    Adaptive {
        size: [usize; 2],
        is_flat: bool,
    },
    /// What has no weights.
    Plain(Layer),
}

impl<B: Backend> Operation<B> {
    /// `taken`: the shapes of its inputs, which were found to fit.
    ///
    /// # Errors
    /// The weights do not have what the layer has.
    pub(crate) fn new(
        entry: &LayerEntry,
        taken: &[&[Axis]],
        layout: Layout,
        weights: &mut Weights,
        device: &B::Device,
    ) -> Result<Self, TensorLoadError> {
        let mut parameters = Parameters::of(entry, layout, weights);
        let layer = |why: String| TensorLoadError::layer(&entry.name, why);
        let shape = taken.first().copied().unwrap_or_default();
        let length = |axis: usize| fixed(shape, axis).map_err(layer);
        let made = match &entry.layer {
            Layer::Conv1d(conv) => {
                let (weight, bias, options) = convolution::<B, 1>(conv, length(1)?, &mut parameters, device)?;
                Self::Conv1d { weight, bias, options }
            }
            Layer::Conv2d(conv) => {
                let (weight, bias, options) = convolution::<B, 2>(conv, length(1)?, &mut parameters, device)?;
                Self::Conv2d { weight, bias, options }
            }
            Layer::BatchNorm(norm) => {
                let channels = length(1)?;
                let Affine { gamma, beta } = parameters.batch_norm(channels, norm.epsilon)?;
                let mut broad = vec![1; shape.len()];
                broad[1] = channels;
                Self::BatchNorm { gamma: of::<B>(gamma, &broad, device), beta: of::<B>(beta, &broad, device) }
            }
            Layer::LayerNorm(norm) => {
                let affine = parameters.affine("", length(shape.len() - 1)?)?;
                Self::LayerNorm(Normed::new(&affine, norm.epsilon, device))
            }
            Layer::Linear(linear) => {
                let dense = parameters.dense("", length(shape.len() - 1)?, linear.out_features, linear.bias)?;
                Self::Linear(Matrix::new(&dense, device))
            }
            Layer::Lstm(settings) => {
                Self::Recurrent(stack(CellKind::Lstm, settings, length(2)?, &mut parameters, device)?)
            }
            Layer::Gru(settings) if settings.normalized => {
                return Err(layer("is a GRU, and only an LSTM is normalized".to_owned()));
            }
            Layer::Gru(settings) => {
                let kind = CellKind::Gru { reset_after: settings.reset_after };
                Self::Recurrent(stack(kind, settings, length(2)?, &mut parameters, device)?)
            }
            Layer::Attention(attention) => {
                let projections = parameters.attention(length(2)?, attention.bias)?;
                let projections = Box::new(projections.map(|dense| Matrix::new(&dense, device)));
                Self::Attention { projections, heads: attention.heads, causal: attention.causal }
            }
            Layer::Embedding(embedding) => {
                let (entries, features) = (embedding.entries, embedding.features);
                let table = of::<B>(parameters.take("weight", &[entries, features])?, &[entries, features], device);
                Self::Embedding { table, entries, features, name: entry.name.clone() }
            }
            Layer::MaxPool1d(pool) => pooling::<B, 1>(pool, true).map_err(layer)?,
            Layer::MaxPool2d(pool) => pooling::<B, 2>(pool, true).map_err(layer)?,
            Layer::AvgPool1d(pool) => pooling::<B, 1>(pool, false).map_err(layer)?,
            Layer::AvgPool2d(pool) => pooling::<B, 2>(pool, false).map_err(layer)?,
            Layer::AdaptiveAvgPool1d(pool) => {
                let [size] = each::<1>("size", &pool.size, 1).map_err(layer)?;
                Self::Adaptive { size: [1, size], is_flat: true }
            }
            Layer::AdaptiveAvgPool2d(pool) => {
                Self::Adaptive { size: each::<2>("size", &pool.size, 1).map_err(layer)?, is_flat: false }
            }
            plain => Self::Plain(plain.clone()),
        };
        parameters.done()?;
        Ok(made)
    }

    /// # Errors
    /// An index is out of range.
    pub(crate) fn run(&self, mut taken: Vec<Taken<B>>, device: &B::Device) -> Result<FloatTensor<B>, String> {
        if let Self::Embedding { table, entries, features, name } = self {
            let Some(Taken::Integers(indices, least, most)) = taken.pop() else { return Err(MISSING.to_owned()) };
            if least < 0 || most >= *entries as i64 {
                let wrong = if least < 0 { least } else { most };
                let name = crate::error::shown(name);
                return Err(format!("the index {wrong} is out of range for layer {name}, which has {entries} entries"));
            }
            let mut shape = indices.shape().to_vec();
            let flat = B::int_reshape(indices, Shape::new([volume(&shape).unwrap_or(0)]));
            shape.push(*features);
            return Ok(B::float_reshape(B::float_select(table.clone(), 0, flat), Shape::from(shape)));
        }
        let mut tensors = Vec::with_capacity(taken.len());
        for one in taken {
            let Taken::Float(tensor) = one else { return Err(MISSING.to_owned()) };
            tensors.push(tensor);
        }
        if let Self::Attention { projections, heads, causal } = self {
            return attention(projections, *heads, *causal, tensors, device);
        }
        if let Self::Plain(layer @ (Layer::Add(_) | Layer::Multiply(_) | Layer::Concat(_))) = self {
            return join::<B>(layer, tensors);
        }
        let x = tensors.pop().ok_or_else(|| MISSING.to_owned())?;
        Ok(self.one(x))
    }

    /// A layer that takes one tensor.
    fn one(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        match self {
            Self::Conv1d { weight, bias, options } => B::conv1d(x, weight.clone(), bias.clone(), options.clone()),
            Self::Conv2d { weight, bias, options } => B::conv2d(x, weight.clone(), bias.clone(), options.clone()),
            Self::BatchNorm { gamma, beta } => B::float_add(B::float_mul(x, gamma.clone()), beta.clone()),
            Self::LayerNorm(norm) => norm.apply(x),
            Self::Linear(matrix) => matrix.multiply(x),
            Self::Recurrent(stack) => stack.run(x),
            Self::Pool { window: [kernel, stride, padding], is_max, counts_padding, is_flat } => {
                flat::<B>(x, *is_flat, |x| match is_max {
                    true => B::max_pool2d(x, *kernel, *stride, *padding, [1, 1], false),
                    false => B::avg_pool2d(x, *kernel, *stride, *padding, *counts_padding, false),
                })
            }
            Self::Adaptive { size, is_flat } => flat::<B>(x, *is_flat, |x| B::adaptive_avg_pool2d(x, *size)),
            Self::Plain(layer) => plain::<B>(layer, x),
            Self::Attention { .. } | Self::Embedding { .. } => x,
        }
    }
}

const MISSING: &str = "a tensor is missing";

type Convolution<B, const N: usize> = (FloatTensor<B>, Option<FloatTensor<B>>, ConvOptions<N>);

fn convolution<B: Backend, const N: usize>(
    conv: &Conv,
    channels: usize,
    parameters: &mut Parameters<'_>,
    device: &B::Device,
) -> Result<Convolution<B, N>, TensorLoadError> {
    let sizes = |key, sizes, least| each::<N>(key, sizes, least).map_err(TensorLoadError::NotPrepared);
    let kernel = sizes("kernel", &conv.kernel, 1)?;
    let shape = [&[conv.out_channels, channels / conv.groups], kernel.as_slice()].concat();
    let weight = of::<B>(parameters.take("weight", &shape)?, &shape, device);
    let bias = conv.bias.then(|| parameters.take("bias", &[conv.out_channels])).transpose()?;
    let bias = bias.map(|bias| of::<B>(bias, &[conv.out_channels], device));
    let (stride, dilation) = (sizes("stride", &conv.stride, 1)?, sizes("dilation", &conv.dilation, 1)?);
    let options = ConvOptions::new(stride, sizes("padding", &conv.padding, 0)?, dilation, conv.groups);
    Ok((weight, bias, options))
}

fn pooling<B: Backend, const N: usize>(pool: &Pool, is_max: bool) -> Result<Operation<B>, String> {
    let window = pool_window::<N>(pool)?;
    // A signal is an image of one row.
    let two = |sizes: [usize; N], first: usize| if N == 1 { [first, sizes[0]] } else { [sizes[0], sizes[N - 1]] };
    let [kernel, stride, padding] = window;
    let window = [two(kernel, 1), two(stride, 1), two(padding, 0)];
    Ok(Operation::Pool { window, is_max, counts_padding: pool.count_padding, is_flat: N == 1 })
}

/// Runs `act` on a signal as an image of one row, or on an image.
fn flat<B: Backend>(
    x: FloatTensor<B>,
    is_flat: bool,
    act: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>,
) -> FloatTensor<B> {
    if !is_flat {
        return act(x);
    }
    let [rows, channels, length] = dims::<B, 3>(&x);
    let given = act(B::float_reshape(x, Shape::new([rows, channels, 1, length])));
    let [rows, channels, _, length] = dims::<B, 4>(&given);
    B::float_reshape(given, Shape::new([rows, channels, length]))
}

fn stack<B: Backend>(
    kind: CellKind,
    settings: &Recurrent,
    features: usize,
    parameters: &mut Parameters<'_>,
    device: &B::Device,
) -> Result<Stack<B>, TensorLoadError> {
    let gates = if kind == CellKind::Lstm { 4 } else { 3 };
    let directions: &[Option<bool>] = if settings.bidirectional { &[Some(false), Some(true)] } else { &[None] };
    let mut layers = Vec::with_capacity(settings.layers);
    for layer in 0..settings.layers {
        let inputs = if layer == 0 { features } else { settings.hidden * directions.len() };
        let cells = directions.iter().map(|&reverse| {
            let (hidden, bias, normalized) = (settings.hidden, settings.bias, settings.normalized);
            let place = CellPlace { gates, inputs, hidden, bias, normalized, layer, layers: settings.layers, reverse };
            let cell = parameters.cell(place)?;
            Ok(Cell::new(kind, settings, reverse.unwrap_or(settings.reverse), &cell, device))
        });
        layers.push(cells.collect::<Result<_, TensorLoadError>>()?);
    }
    Ok(Stack { layers, given: settings.output })
}

/// Attention of several heads, as "Attention Is All You Need" (2017) has it.
fn attention<B: Backend>(
    [query, key, value, output]: &[Matrix<B>; 4],
    heads: usize,
    causal: bool,
    mut tensors: Vec<FloatTensor<B>>,
    device: &B::Device,
) -> Result<FloatTensor<B>, String> {
    let (values, keys, queries) = match (tensors.pop(), tensors.pop(), tensors.pop()) {
        (Some(values), Some(keys), Some(queries)) => (values, keys, queries),
        (Some(only), None, None) => (only.clone(), only.clone(), only),
        _ => return Err(MISSING.to_owned()),
    };
    let [rows, asked, features] = dims::<B, 3>(&queries);
    let known = dims::<B, 3>(&keys)[1];
    let width = features / heads;
    let split = |x: FloatTensor<B>, steps: usize| {
        B::float_swap_dims(B::float_reshape(x, Shape::new([rows, steps, heads, width])), 1, 2)
    };
    let queries = split(query.multiply(queries), asked);
    let (keys, values) = (split(key.multiply(keys), known), split(value.multiply(values), known));
    let scores = B::float_matmul(queries, B::float_swap_dims(keys, 2, 3));
    let mut scores = B::float_mul_scalar(scores, Scalar::Float(1.0 / (width as f64).sqrt()));
    if causal {
        let mask =
            (0..asked).flat_map(|step| (0..known).map(move |of| if of > step { f32::MIN } else { 0.0 })).collect();
        scores = B::float_add(scores, of::<B>(mask, &[1, 1, asked, known], device));
    }
    let mixed = B::float_swap_dims(B::float_matmul(B::softmax(scores, 3), values), 1, 2);
    Ok(output.multiply(B::float_reshape(mixed, Shape::new([rows, asked, features]))))
}

fn join<B: Backend>(layer: &Layer, tensors: Vec<FloatTensor<B>>) -> Result<FloatTensor<B>, String> {
    let all = match layer {
        Layer::Concat(along) => {
            let rank = tensors.first().map_or(0, |tensor| tensor.shape().num_dims());
            let axis = place(along.axis, rank).ok_or_else(|| MISSING.to_owned())?;
            return Ok(B::float_cat(tensors, axis));
        }
        Layer::Multiply(_) => tensors.into_iter().reduce(B::float_mul),
        _ => tensors.into_iter().reduce(B::float_add),
    };
    all.ok_or_else(|| MISSING.to_owned())
}

/// A layer without weights that takes one tensor.
fn plain<B: Backend>(layer: &Layer, x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = lengths::<B>(&x);
    let axis = |axis: isize| place(axis, shape.len()).unwrap_or(0);
    match layer {
        Layer::Relu(_) => B::relu(x),
        Layer::Gelu(gelu) if gelu.approximate => approximate_gelu::<B>(x),
        Layer::Gelu(_) => B::gelu(x),
        Layer::Silu(_) => B::float_mul(x.clone(), B::sigmoid(x)),
        Layer::Sigmoid(_) => B::sigmoid(x),
        Layer::Tanh(_) => B::float_tanh(x),
        Layer::LeakyRelu(leaky) => B::leaky_relu(x, Scalar::Float(leaky.slope.into())),
        Layer::Softmax(along) => B::softmax(x, axis(along.axis)),
        Layer::LogSoftmax(along) => B::log_softmax(x, axis(along.axis)),
        Layer::GlobalAvgPool(_) => {
            B::float_reshape(B::float_mean_dim(spread::<B>(x), 2), Shape::new([shape[0], shape[1]]))
        }
        Layer::GlobalMaxPool(_) => {
            B::float_reshape(B::float_max_dim(spread::<B>(x), 2), Shape::new([shape[0], shape[1]]))
        }
        Layer::Flatten(_) => B::float_reshape(x, Shape::new([shape[0], shape[1..].iter().product()])),
        Layer::Reshape(reshape) => B::float_reshape(x, Shape::from([&shape[..1], reshape.shape.as_slice()].concat())),
        Layer::Transpose(transpose) => B::float_permute(x, &transpose.axes),
        Layer::Select(select) => {
            let at = axis(select.axis);
            let index = place(select.index, shape[at]).unwrap_or(0) as isize;
            let all = shape.iter().enumerate().map(|(axis, _)| match axis == at {
                true => Slice::new(index, Some(index + 1), 1),
                false => Slice::new(0, None, 1),
            });
            let one = B::float_slice(x, &all.collect::<Vec<_>>());
            B::float_reshape(one, Shape::from([&shape[..at], &shape[at + 1..]].concat()))
        }
        // A dropout does nothing outside of training.
        _ => x,
    }
}

/// Rows, channels, and all numbers of a channel.
fn spread<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = lengths::<B>(&x);
    B::float_reshape(x, Shape::new([shape[0], shape[1], shape[2..].iter().product()]))
}

/// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
fn approximate_gelu<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let cube = B::float_mul(B::float_mul(x.clone(), x.clone()), x.clone());
    let inner = B::float_add(x.clone(), B::float_mul_scalar(cube, Scalar::Float(0.044_715)));
    let inner = B::float_mul_scalar(inner, Scalar::Float((2.0 / std::f64::consts::PI).sqrt()));
    let factor = B::float_add_scalar(B::float_tanh(inner), Scalar::Float(1.0));
    B::float_mul_scalar(B::float_mul(x, factor), Scalar::Float(0.5))
}
