//! Products and norms that several layers are made of.
use burn_core::tensor::backend::Backend;
use burn_core::tensor::ops::FloatTensor;
use burn_core::tensor::{Scalar, Shape, TensorData, TensorMetadata};

use crate::parameters::{Affine, Dense};

/// A tensor of these numbers.
pub(crate) fn of<B: Backend>(numbers: Vec<f32>, shape: &[usize], device: &B::Device) -> FloatTensor<B> {
    B::float_from_data(TensorData::new(numbers, Shape::from(shape.to_vec())), device)
}

/// The lengths of a tensor's axes, of which there are `N`.
pub(crate) fn dims<B: Backend, const N: usize>(tensor: &FloatTensor<B>) -> [usize; N] {
    tensor.shape().dims::<N>()
}

pub(crate) fn lengths<B: Backend>(tensor: &FloatTensor<B>) -> Vec<usize> {
    tensor.shape().to_vec()
}

/// A linear layer.
#[derive(Debug)]
pub(crate) struct Matrix<B: Backend> {
    inputs: usize,
    outputs: usize,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
}

impl<B: Backend> Matrix<B> {
    pub(crate) fn new(dense: &Dense, device: &B::Device) -> Self {
        let Dense { inputs, outputs, weight, bias } = dense.clone();
        let bias = bias.map(|bias| of::<B>(bias, &[1, outputs], device));
        Self { inputs, outputs, weight: of::<B>(weight, &[inputs, outputs], device), bias }
    }

    /// Multiplies the last axis of `x`.
    pub(crate) fn multiply(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let mut shape = lengths::<B>(&x);
        let rows = shape.iter().rev().skip(1).product::<usize>();
        let rows_of = B::float_reshape(x, Shape::new([rows, self.inputs]));
        let product = B::float_matmul(rows_of, self.weight.clone());
        let sum = match &self.bias {
            Some(bias) => B::float_add(product, bias.clone()),
            None => product,
        };
        if let Some(last) = shape.last_mut() {
            *last = self.outputs;
        }
        B::float_reshape(sum, Shape::from(shape))
    }
}

/// A layer norm over the last axis.
#[derive(Debug)]
pub(crate) struct Normed<B: Backend> {
    features: usize,
    epsilon: f32,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
}

impl<B: Backend> Normed<B> {
    pub(crate) fn new(affine: &Affine, epsilon: f32, device: &B::Device) -> Self {
        let features = affine.gamma.len();
        let row = |numbers: &[f32]| of::<B>(numbers.to_vec(), &[1, features], device);
        Self { features, epsilon, gamma: row(&affine.gamma), beta: row(&affine.beta) }
    }

    pub(crate) fn apply(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let shape = lengths::<B>(&x);
        let rows = shape.iter().rev().skip(1).product::<usize>();
        let x = B::float_reshape(x, Shape::new([rows, self.features]));
        let centred = B::float_sub(x.clone(), B::float_mean_dim(x, 1));
        let variance = B::float_mean_dim(B::float_mul(centred.clone(), centred.clone()), 1);
        let deviation = B::float_sqrt(B::float_add_scalar(variance, Scalar::Float(self.epsilon.into())));
        let normed = B::float_mul(B::float_div(centred, deviation), self.gamma.clone());
        B::float_reshape(B::float_add(normed, self.beta.clone()), Shape::from(shape))
    }
}
