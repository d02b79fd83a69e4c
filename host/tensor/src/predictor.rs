//! Computes requests on the thread of a worker: several at once, of a model whose rows have no influence on each other.
//!
//! That is proven from its graph (`independence` of ONNX models, `graph` of manifests): it follows neither from the shapes of a
//! model's tensors nor from trying some numbers, and one client's would tell of another's.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::engine::EngineError;
use camshaft_core::jobs::{BatchLimits, BatchModel, Computed, InputError};
use camshaft_core::limits::{BATCH_ROWS, BATCH_WINDOW, RUN_BYTES};
use camshaft_core::tensor::{Predicted, Rows, Tensor};

use crate::facts::Joining;
use crate::model::TensorModel;
use crate::ragged::{are_alike, fixed_key, joined_shapes};
use crate::samples::{self, LENGTHS};

/// The length with which its memory is planned.
const PLANNED: usize = 32;

/// Inputs that are computed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Run {
    /// Where they are among all.
    pub(crate) places: Vec<usize>,
    /// They differ in the length of the ragged axis: a part of them at least is padded.
    pub(crate) is_padded: bool,
}

/// A worker of a model.
#[derive(Debug)]
pub struct Predictor {
    model: Arc<TensorModel>,
}

impl Predictor {
    pub fn new(model: Arc<TensorModel>) -> Self {
        Self { model }
    }

    fn alone(&self, input: &Rows) -> Computed<Predicted> {
        let begun = Instant::now();
        let tensors = self.model.run(&input.tensors).map_err(InputError::Refused)?;
        Ok(self.predicted(tensors, begun.elapsed()))
    }

    /// With the classes of its own rows, also where others were computed with them.
    fn predicted(&self, tensors: Vec<Tensor>, took: Duration) -> Predicted {
        let classes = self.model.classes(&tensors);
        Predicted { tensors, classes, took }
    }

    /// Divides inputs into those that are computed together: by the lengths of all axes but the first, or of all but those along
    /// which requests are padded.
    pub(crate) fn runs(&self, inputs: &[Rows]) -> Vec<Run> {
        let tensors = |place: &usize| &*inputs[*place].tensors;
        // The most common case by far costs no look at any number.
        if are_alike(inputs.iter().map(|input| &*input.tensors)) {
            let all = Run { places: (0..inputs.len()).collect(), is_padded: false };
            return Vec::from_iter((!all.places.is_empty()).then_some(all));
        }
        let ragged = self.model.ragged.as_ref();
        let mut groups: BTreeMap<(bool, Vec<Vec<usize>>), Vec<usize>> = BTreeMap::new();
        for (place, input) in inputs.iter().enumerate() {
            let key = ragged.map_or_else(|| (false, fixed_key(&input.tensors)), |ragged| ragged.key(&input.tensors));
            groups.entry(key).or_default().push(place);
        }
        let divided = |places: Vec<usize>| {
            let Some(ragged) = ragged else { return vec![Run { places, is_padded: false }] };
            let runs = ragged.runs(&places.iter().map(tensors).collect::<Vec<_>>());
            let of_places = |run: Vec<usize>| {
                let places: Vec<usize> = run.into_iter().map(|at| places[at]).collect();
                let is_padded = !are_alike(places.iter().map(tensors));
                Run { places, is_padded }
            };
            runs.into_iter().map(of_places).collect()
        };
        groups.into_values().flat_map(divided).collect()
    }

    /// Computes inputs of one run, in as many parts as memory asks for.
    fn together(&self, inputs: &[&Rows], is_padded: bool) -> Vec<Computed<Predicted>> {
        match inputs {
            [] => return Vec::new(),
            [one] => return vec![self.alone(one)],
            _ => {}
        }
        let requests: Vec<&[Tensor]> = inputs.iter().map(|input| &*input.tensors).collect();
        let shapes = joined_shapes(&requests);
        let bytes =
            shapes.and_then(|shapes| self.model.run_bytes(&shapes.iter().map(Vec::as_slice).collect::<Vec<_>>()));
        if bytes.is_none_or(|bytes| bytes > RUN_BYTES) {
            let (before, after) = inputs.split_at(inputs.len() / 2);
            return [self.together(before, is_padded), self.together(after, is_padded)].concat();
        }
        let begun = Instant::now();
        let answers = match is_padded {
            true => self.model.run_padded(&requests),
            false => self.model.run_together(&requests),
        };
        match answers {
            Ok(answers) => {
                let took = begun.elapsed();
                answers.into_iter().map(|tensors| Ok(self.predicted(tensors, took))).collect()
            }
            // Whose numbers the model cannot compute shows when each is computed alone.
            Err(_) => inputs.iter().map(|input| self.alone(input)).collect(),
        }
    }
}

impl TensorModel {
    /// As much as it may ever take at once.
    pub(crate) fn batch(&self) -> BatchLimits {
        match self.facts.joining {
            Joining::Proven => BatchLimits { size: BATCH_ROWS, inputs: BATCH_ROWS as usize, window: BATCH_WINDOW },
            Joining::OneAtATime { .. } => BatchLimits { size: 1, inputs: 1, window: Duration::ZERO },
        }
    }

    /// What it takes in memory: its weights, also in the order in which they are computed, and the tensors of a request of each
    /// worker, whose axes of any length are short. `rows`: of a batch of several requests, at most.
    pub fn memory_bytes(&self, workers: u32, rows: u32) -> u64 {
        let mut shapes = self.shapes(PLANNED);
        if self.facts.joining == Joining::Proven {
            let first = shapes.iter_mut().filter_map(|shape| shape.first_mut());
            first.for_each(|length| *length = PLANNED.max(rows as usize));
        }
        let run = self.run_bytes(&shapes.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let run = run.unwrap_or(RUN_BYTES).min(RUN_BYTES);
        self.facts.bytes.saturating_mul(2).saturating_add(run.saturating_mul(workers.into()))
    }
}

impl BatchModel for Predictor {
    type Input = Rows;
    type Output = Predicted;

    fn batch(&self) -> BatchLimits {
        self.model.batch()
    }

    fn warm_up(&mut self) -> Result<(), EngineError> {
        let mut failure = None;
        let (inputs, bytes) = (&self.model.signature.inputs, |shapes: &[&[usize]]| self.model.run_bytes(shapes));
        for inputs in LENGTHS.iter().filter_map(|&length| samples::zeros(inputs, length, &bytes)) {
            match self.model.run(&inputs) {
                Ok(_) => return Ok(()),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), |error| Err(EngineError::Failed(error)))
    }

    fn compute(&mut self, inputs: &[Rows]) -> Result<Vec<Computed<Predicted>>, EngineError> {
        if self.model.facts.joining != Joining::Proven {
            return Ok(inputs.iter().map(|input| self.alone(input)).collect());
        }
        let mut computed: Vec<Option<Computed<Predicted>>> = inputs.iter().map(|_| None).collect();
        for Run { places, is_padded } in self.runs(inputs) {
            let group: Vec<&Rows> = places.iter().map(|&place| &inputs[place]).collect();
            for (place, output) in places.into_iter().zip(self.together(&group, is_padded)) {
                computed[place] = Some(output);
            }
        }
        let lost = || Err(InputError::Failed("a batch gave nothing for this input".to_owned()));
        Ok(computed.into_iter().map(|output| output.unwrap_or_else(lost)).collect())
    }
}

#[cfg(test)]
#[cfg(feature = "onnx")]
#[path = "predictor_tests.rs"]
mod tests;

#[cfg(test)]
#[cfg(feature = "onnx")]
#[path = "padding_tests.rs"]
mod padding_tests;
