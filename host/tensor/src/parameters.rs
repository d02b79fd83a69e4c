//! The parameters of layers, in one order whatever framework kept them: matrices lie from inputs to outputs.
use std::collections::BTreeSet;

use crate::error::{TensorLoadError, shown};
use crate::layers::LayerEntry;
use crate::manifest::Layout;
use crate::weights::{Missing, Weights};

/// Gates of an LSTM in the order in which they are joined: input, forget, cell, output.
const LSTM_GATES: [&str; 4] = ["input_gate", "forget_gate", "cell_gate", "output_gate"];
/// Those of a GRU.
const GRU_GATES: [&str; 3] = ["reset_gate", "update_gate", "new_gate"];

/// A matrix of `inputs x outputs`, and what is added to a product with it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Dense {
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) weight: Vec<f32>,
    pub(crate) bias: Option<Vec<f32>>,
}

/// What a norm multiplies with and adds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Affine {
    pub(crate) gamma: Vec<f32>,
    pub(crate) beta: Vec<f32>,
}

/// One direction of one stacked recurrent layer, its gates joined.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CellParameters {
    pub(crate) input: Dense,
    pub(crate) hidden: Dense,
    /// Of the gates' inputs, of the cell and of the state.
    pub(crate) norms: Option<[Affine; 3]>,
}

/// Which recurrent layer it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CellPlace {
    pub(crate) gates: usize,
    pub(crate) inputs: usize,
    pub(crate) hidden: usize,
    pub(crate) bias: bool,
    pub(crate) normalized: bool,
    /// From below.
    pub(crate) layer: usize,
    pub(crate) layers: usize,
    /// `None`: there is one direction.
    pub(crate) reverse: Option<bool>,
}

/// Reads the parameters of one layer.
#[derive(Debug)]
pub(crate) struct Parameters<'a> {
    weights: &'a mut Weights,
    layout: Layout,
    entry: &'a LayerEntry,
    asked: BTreeSet<String>,
}

impl<'a> Parameters<'a> {
    pub(crate) fn of(entry: &'a LayerEntry, layout: Layout, weights: &'a mut Weights) -> Self {
        Self { weights, layout, entry, asked: BTreeSet::new() }
    }

    /// # Errors
    /// The manifest maps a parameter that the layer does not have.
    pub(crate) fn done(self) -> Result<(), TensorLoadError> {
        match self.entry.parameters.keys().find(|key| !self.asked.contains(*key)) {
            None => Ok(()),
            Some(unknown) => {
                let known: Vec<&str> = self.asked.iter().map(String::as_str).take(32).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let why = format!("is not one of the layer's, which are: {known}");
                Err(TensorLoadError::Parameter { layer: shown(&self.entry.name), parameter: shown(unknown), why })
            }
        }
    }

    /// The whole name of a parameter in the weights.
    fn name(&self, key: &str) -> String {
        match self.entry.parameters.get(key) {
            Some(name) => name.clone(),
            None => match self.entry.prefix.as_deref().unwrap_or(&self.entry.name) {
                "" => key.to_owned(),
                prefix => format!("{prefix}.{key}"),
            },
        }
    }

    pub(crate) fn take(&mut self, key: &str, shape: &[usize]) -> Result<Vec<f32>, TensorLoadError> {
        self.asked.insert(key.to_owned());
        let name = self.name(key);
        self.weights.take(&name, shape).map_err(|missing| {
            let why = match missing {
                Missing::Other(why) => why,
                Missing::Name => {
                    let there = self.weights.some_names();
                    format!(
                        "must have the shape {shape:?}, and the weights have no {}; they have {there}",
                        shown(&name)
                    )
                }
            };
            TensorLoadError::Parameter { layer: shown(&self.entry.name), parameter: key.to_owned(), why }
        })
    }

    /// Names that only one framework has.
    fn either(&self, torch: &'static str, burn: &'static str) -> &'static str {
        match self.layout {
            Layout::Torch => torch,
            Layout::Burn => burn,
        }
    }

    fn matrix(&mut self, key: &str, inputs: usize, outputs: usize) -> Result<Vec<f32>, TensorLoadError> {
        match self.layout {
            Layout::Burn => self.take(key, &[inputs, outputs]),
            Layout::Torch => Ok(transposed(&self.take(key, &[outputs, inputs])?, inputs)),
        }
    }

    /// A linear layer whose keys begin with `within`.
    pub(crate) fn dense(
        &mut self,
        within: &str,
        inputs: usize,
        outputs: usize,
        bias: bool,
    ) -> Result<Dense, TensorLoadError> {
        let weight = self.matrix(&format!("{within}weight"), inputs, outputs)?;
        let bias = bias.then(|| self.take(&format!("{within}bias"), &[outputs])).transpose()?;
        Ok(Dense { inputs, outputs, weight, bias })
    }

    pub(crate) fn affine(&mut self, within: &str, features: usize) -> Result<Affine, TensorLoadError> {
        let (gamma, beta) = (self.either("weight", "gamma"), self.either("bias", "beta"));
        Ok(Affine {
            gamma: self.take(&format!("{within}{gamma}"), &[features])?,
            beta: self.take(&format!("{within}{beta}"), &[features])?,
        })
    }

    /// A batch norm as what it multiplies with and adds, with what it saw in training.
    pub(crate) fn batch_norm(&mut self, features: usize, epsilon: f32) -> Result<Affine, TensorLoadError> {
        let Affine { gamma, beta } = self.affine("", features)?;
        let mean = self.take("running_mean", &[features])?;
        let variance = self.take("running_var", &[features])?;
        let counter = self.name("num_batches_tracked");
        self.weights.pass(&counter);
        let gamma: Vec<f32> =
            gamma.iter().zip(variance).map(|(gamma, variance)| gamma / (variance + epsilon).sqrt()).collect();
        let beta = beta.iter().zip(mean).zip(&gamma).map(|((beta, mean), gamma)| beta - mean * gamma).collect();
        Ok(Affine { gamma, beta })
    }

    /// Projections of queries, keys and values, and that of what comes of them.
    pub(crate) fn attention(&mut self, features: usize, bias: bool) -> Result<[Dense; 4], TensorLoadError> {
        if self.layout == Layout::Burn {
            let mut dense = |within: &str| self.dense(within, features, features, bias);
            return Ok([dense("query.")?, dense("key.")?, dense("value.")?, dense("output.")?]);
        }
        let joined = self.take("in_proj_weight", &[3 * features, features])?;
        let biases = bias.then(|| self.take("in_proj_bias", &[3 * features])).transpose()?;
        let part = |at: usize| Dense {
            inputs: features,
            outputs: features,
            weight: transposed(&joined[at * features * features..(at + 1) * features * features], features),
            bias: biases.as_ref().map(|biases| biases[at * features..(at + 1) * features].to_vec()),
        };
        let parts = [part(0), part(1), part(2)];
        let [queries, keys, values] = parts;
        Ok([queries, keys, values, self.dense("out_proj.", features, features, bias)?])
    }

    pub(crate) fn cell(&mut self, place: CellPlace) -> Result<CellParameters, TensorLoadError> {
        let CellPlace { gates, inputs, hidden, bias, .. } = place;
        if place.normalized {
            let within = format!("layers.{}.", place.layer);
            let input = self.dense(&format!("{within}weight_ih."), inputs, gates * hidden, bias)?;
            let state = self.dense(&format!("{within}weight_hh."), hidden, gates * hidden, bias)?;
            let mut norm = |name: &str, features: usize| self.affine(&format!("{within}{name}."), features);
            let norms = [norm("norm_x", gates * hidden)?, norm("norm_c", hidden)?, norm("norm_h", hidden)?];
            return Ok(CellParameters { input, hidden: state, norms: Some(norms) });
        }
        let (input, hidden) = match self.layout {
            Layout::Torch => {
                let suffix = if place.reverse == Some(true) { "_reverse" } else { "" };
                let end = format!("l{}{suffix}", place.layer);
                (self.joined("ih", &end, inputs, place)?, self.joined("hh", &end, hidden, place)?)
            }
            Layout::Burn => {
                let layer = if place.layers > 1 { format!("layers.{}.", place.layer) } else { String::new() };
                let direction = place.reverse.map_or("", |reverse| if reverse { "reverse." } else { "forward." });
                let within = format!("{layer}{direction}");
                (
                    self.separate(&within, "input_transform", inputs, place)?,
                    self.separate(&within, "hidden_transform", hidden, place)?,
                )
            }
        };
        Ok(CellParameters { input, hidden, norms: None })
    }

    fn joined(&mut self, of: &str, end: &str, inputs: usize, place: CellPlace) -> Result<Dense, TensorLoadError> {
        let outputs = place.gates * place.hidden;
        let weight = self.matrix(&format!("weight_{of}_{end}"), inputs, outputs)?;
        let bias = place.bias.then(|| self.take(&format!("bias_{of}_{end}"), &[outputs])).transpose()?;
        Ok(Dense { inputs, outputs, weight, bias })
    }

    fn separate(&mut self, within: &str, of: &str, inputs: usize, place: CellPlace) -> Result<Dense, TensorLoadError> {
        let names: &[&str] = if place.gates == LSTM_GATES.len() { &LSTM_GATES } else { &GRU_GATES };
        let parts: Result<Vec<Dense>, TensorLoadError> = names
            .iter()
            .map(|gate| self.dense(&format!("{within}{gate}.{of}."), inputs, place.hidden, place.bias))
            .collect();
        let parts = parts?;
        let row =
            |row: usize| parts.iter().flat_map(move |part| &part.weight[row * place.hidden..(row + 1) * place.hidden]);
        let weight = (0..inputs).flat_map(row).copied().collect();
        let bias = place.bias.then(|| parts.iter().filter_map(|part| part.bias.as_ref()).flatten().copied().collect());
        Ok(Dense { inputs, outputs: place.gates * place.hidden, weight, bias })
    }
}

/// Turns rows of `width` numbers into columns.
fn transposed(numbers: &[f32], width: usize) -> Vec<f32> {
    let rows = numbers.len().checked_div(width).unwrap_or(0);
    (0..width).flat_map(|column| (0..rows).map(move |row| numbers[row * width + column])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_matrix_is_transposed() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert!(transposed(&[], 0).is_empty());
    }
}
