//! LSTM and GRU, step by step.
use burn_core::tensor::backend::Backend;
use burn_core::tensor::ops::FloatTensor;
use burn_core::tensor::{Shape, Slice};

use crate::layers::{Given, Recurrent};
use crate::parameters::CellParameters;
use crate::pieces::{Matrix, Normed, dims, of};

/// Which equations a cell follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CellKind {
    Lstm,
    /// See [`Recurrent::reset_after`].
    Gru {
        reset_after: bool,
    },
}

/// One direction of one layer.
#[derive(Debug)]
pub(crate) struct Cell<B: Backend> {
    kind: CellKind,
    hidden: usize,
    reverse: bool,
    input: Matrix<B>,
    state: Matrix<B>,
    norms: Option<[Normed<B>; 3]>,
}

/// Stacked layers, each with its directions.
#[derive(Debug)]
pub(crate) struct Stack<B: Backend> {
    pub(crate) layers: Vec<Vec<Cell<B>>>,
    pub(crate) given: Given,
}

impl<B: Backend> Cell<B> {
    pub(crate) fn new(
        kind: CellKind,
        settings: &Recurrent,
        reverse: bool,
        parameters: &CellParameters,
        device: &B::Device,
    ) -> Self {
        let norms = parameters.norms.as_ref();
        Self {
            kind,
            hidden: settings.hidden,
            reverse,
            input: Matrix::new(&parameters.input, device),
            state: Matrix::new(&parameters.hidden, device),
            norms: norms.map(|norms| norms.each_ref().map(|norm| Normed::new(norm, settings.epsilon, device))),
        }
    }

    /// The states of all steps, `[rows, steps, hidden]` in the order of the steps, and the one that it ends with, `[rows, hidden]`.
    fn run(&self, x: FloatTensor<B>) -> (FloatTensor<B>, FloatTensor<B>) {
        let [rows, steps, _] = dims::<B, 3>(&x);
        let device = B::float_device(&x);
        let gates = self.input.multiply(x);
        let gates = match &self.norms {
            Some([gates_norm, ..]) => gates_norm.apply(gates),
            None => gates,
        };
        let width = dims::<B, 3>(&gates)[2];
        let zeros = || of::<B>(vec![0.0; rows * self.hidden], &[rows, self.hidden], &device);
        let (mut state, mut cell) = (zeros(), zeros());
        let mut states: Vec<FloatTensor<B>> = Vec::with_capacity(steps);
        for step in 0..steps {
            let at = if self.reverse { steps - 1 - step } else { step };
            let all = Slice::new(0, None, 1);
            let one = Slice::new(at as isize, Some(at as isize + 1), 1);
            let gates = B::float_reshape(B::float_slice(gates.clone(), &[all, one, all]), Shape::new([rows, width]));
            state = match self.kind {
                CellKind::Lstm => {
                    let (next, kept) = self.lstm(gates, state, cell);
                    cell = kept;
                    next
                }
                CellKind::Gru { reset_after } => self.gru(&gates, state, reset_after),
            };
            states.push(B::float_reshape(state.clone(), Shape::new([rows, 1, self.hidden])));
        }
        if self.reverse {
            states.reverse();
        }
        (B::float_cat(states, 1), state)
    }

    /// A gate's columns among the joined ones.
    fn gate(&self, gates: &FloatTensor<B>, number: usize) -> FloatTensor<B> {
        let (begin, end) = (number * self.hidden, (number + 1) * self.hidden);
        B::float_slice(gates.clone(), &[Slice::new(0, None, 1), Slice::new(begin as isize, Some(end as isize), 1)])
    }

    /// Hochreiter and Schmidhuber's cell, as PyTorch and Burn have it; with norms, as Burn's example `modern-lstm` has it.
    fn lstm(
        &self,
        gates: FloatTensor<B>,
        state: FloatTensor<B>,
        cell: FloatTensor<B>,
    ) -> (FloatTensor<B>, FloatTensor<B>) {
        let gates = B::float_add(gates, self.state.multiply(state));
        let sigmoid = |number: usize| B::sigmoid(self.gate(&gates, number));
        let (input, forget, output) = (sigmoid(0), sigmoid(1), sigmoid(3));
        let candidate = B::float_tanh(self.gate(&gates, 2));
        let cell = B::float_add(B::float_mul(forget, cell), B::float_mul(input, candidate));
        let cell = match &self.norms {
            Some([_, norm, _]) => norm.apply(cell),
            None => cell,
        };
        let state = B::float_mul(output, B::float_tanh(cell.clone()));
        let state = match &self.norms {
            Some([_, _, norm]) => norm.apply(state),
            None => state,
        };
        (state, cell)
    }

    fn gru(&self, gates: &FloatTensor<B>, state: FloatTensor<B>, reset_after: bool) -> FloatTensor<B> {
        let of_state = self.state.multiply(state.clone());
        let sum = |number: usize| B::sigmoid(B::float_add(self.gate(gates, number), self.gate(&of_state, number)));
        let (reset, update) = (sum(0), sum(1));
        let remembered = match reset_after {
            true => B::float_mul(reset, self.gate(&of_state, 2)),
            false => self.gate(&self.state.multiply(B::float_mul(reset, state.clone())), 2),
        };
        let candidate = B::float_tanh(B::float_add(self.gate(gates, 2), remembered));
        // candidate + update * (state - candidate)
        B::float_add(candidate.clone(), B::float_mul(update, B::float_sub(state, candidate)))
    }
}

impl<B: Backend> Stack<B> {
    pub(crate) fn run(&self, x: FloatTensor<B>) -> FloatTensor<B> {
        let mut given = x;
        for (at, directions) in self.layers.iter().enumerate() {
            let is_last = at + 1 == self.layers.len();
            let parts = directions.iter().map(|cell| {
                let (states, end) = cell.run(given.clone());
                if is_last && self.given == Given::Last { end } else { states }
            });
            let mut parts: Vec<FloatTensor<B>> = parts.collect();
            let axis = if is_last && self.given == Given::Last { 1 } else { 2 };
            given = if parts.len() == 1 { parts.swap_remove(0) } else { B::float_cat(parts, axis) };
        }
        given
    }
}
