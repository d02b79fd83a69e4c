//! A loaded model, whatever computes it, with what is done before and after.
use std::borrow::Cow;

use camshaft_core::limits::RUN_BYTES;
use camshaft_core::tensor::{Axis, Class, Signature, Tensor};

use crate::error::TensorLoadError;
use crate::facts::{Facts, Joining, TensorOutline};
use crate::manifest::RaggedEntry;
use crate::postprocess::Postprocess;
use crate::preprocess::Preprocess;
use crate::ragged::{self, Ragged};
use crate::runtime::{self, BackendChoice, Loaded, NDARRAY, Runtime};
use crate::samples::{self, LENGTHS};
use crate::source::Files;
use crate::trial;

/// Tensors that a request may carry.
const INPUTS: usize = 64;

/// A loaded model. Workers share it.
#[derive(Debug)]
pub struct TensorModel {
    pub facts: Facts,
    /// What clients send and get.
    pub signature: Signature,
    runtime: Runtime,
    /// For each input.
    before: Vec<Option<Preprocess>>,
    after: Option<Postprocess>,
    /// Of a model whose requests may be padded.
    pub(crate) ragged: Option<Ragged>,
}

/// Loads a model from its files.
///
/// # Errors
/// Says why it cannot be served.
#[cfg_attr(
    not(any(feature = "onnx", feature = "burn")),
    expect(unreachable_code, unused_variables, unused_mut, reason = "without a runtime there is no model")
)]
pub fn load(files: Files, backend: BackendChoice) -> Result<TensorModel, TensorLoadError> {
    let Files { format, weights, manifest, labels } = files;
    let manifest = manifest.map(|(manifest, _)| manifest);
    let Loaded { mut facts, signature, runtime } = runtime::load(format, weights, manifest.as_ref(), backend)?;
    if signature.inputs.len() > INPUTS {
        let (got, most) = (signature.inputs.len() as u64, INPUTS as u64);
        return Err(TensorLoadError::TooMany { what: "inputs", got, most });
    }
    let (mut before, mut after) = (vec![None; signature.inputs.len()], None);
    let mut seen = signature;
    if let Some(manifest) = &manifest {
        if !manifest.name.is_empty() {
            facts.name = crate::error::shown(&manifest.name);
        }
        let bad = |why: String| TensorLoadError::manifest(&manifest.file, why);
        for (name, entry) in &manifest.preprocess {
            let at = seen.inputs.iter().position(|input| input.name == *name);
            let name = crate::error::shown(name);
            let at = at.ok_or_else(|| bad(format!("preprocess.{name}: the model has no such input")))?;
            let step =
                Preprocess::new(entry, &seen.inputs[at]).map_err(|why| bad(format!("preprocess.{name}: {why}")))?;
            before[at] = Some(step);
        }
        let step = manifest.postprocess.as_ref();
        let step = step.map(|entry| Postprocess::new(entry, labels.as_deref(), &seen.outputs)).transpose();
        after = step.map_err(|why| bad(format!("postprocess {why}")))?;
    }
    for (spec, step) in seen.inputs.iter_mut().zip(&before) {
        if let Some(step) = step {
            *spec = step.client.clone();
        }
    }
    if before.iter().flatten().any(Preprocess::moves_rows) {
        seen.rows = false;
        facts.joining = Joining::OneAtATime { why: "its preprocessing moves the first axis".to_owned() };
    }
    let mut model = TensorModel { facts, signature: seen, runtime, before, after, ragged: None };
    model.fits()?;
    if let Some((manifest, entry)) = manifest.as_ref().and_then(|manifest| Some((manifest, manifest.ragged.as_ref()?)))
    {
        let mut padded = model.pad(entry);
        if let Err(why) = &padded
            && model.runtime.is_on_gpu()
        {
            // Lengths have kernels of their own there, which round in other ways.
            let why = format!("ragged.{why}");
            let runtime = model.runtime.on_cpu();
            model = TensorModel { runtime, ..model };
            model.facts.backend = NDARRAY.into();
            model.facts.note_cpu(&why);
            padded = model.pad(entry);
        }
        padded.map_err(|why| TensorLoadError::manifest(&manifest.file, format!("ragged.{why}")))?;
    }
    Ok(model)
}

impl TensorModel {
    /// A model whose smallest request is too large for any is told when it is loaded.
    fn fits(&self) -> Result<(), TensorLoadError> {
        let bytes = |length: usize| {
            let shapes = self.shapes(length);
            self.run_bytes(&shapes.iter().map(Vec::as_slice).collect::<Vec<_>>())
        };
        let mut axes = self.signature.inputs.iter().flat_map(|input| &input.shape);
        // Some ONNX models take no short axes, and nobody knows the shortest that they take. Layers take any, so that what cannot be
        // counted is too large.
        let may_be_longer = !self.runtime.takes_any_length() && axes.any(|axis| matches!(axis, Axis::Any(_)));
        let least = LENGTHS.iter().filter_map(|&length| bytes(length)).min();
        match least {
            Some(bytes) if bytes > RUN_BYTES => Err(TensorLoadError::NeverFits { bytes, most: RUN_BYTES }),
            None if !may_be_longer => Err(TensorLoadError::NeverFits { bytes: u64::MAX, most: RUN_BYTES }),
            _ => Ok(()),
        }
    }

    /// Has requests of different lengths padded, if that does not show in what comes of them.
    fn pad(&mut self, entry: &RaggedEntry) -> Result<(), String> {
        if let Joining::OneAtATime { why } = &self.facts.joining {
            return Err(format!("axis: requests to this model are computed one at a time: {why}"));
        }
        let steps: Vec<bool> = self.before.iter().map(Option::is_some).collect();
        let ragged = Ragged::new(entry, &self.signature, &steps)?;
        self.signature.mask = ragged.mask;
        let axis = ragged.axis.clone();
        self.ragged = Some(ragged);
        let tried = trial::Model {
            signature: &self.signature,
            axis: &axis,
            mask: self.signature.mask.map(|mask| mask.input),
            bytes: &|shapes| self.run_bytes(shapes),
            alone: &|request| self.run(request),
            together: &|requests| self.run_padded(requests),
        };
        trial::examine(&tried).map_err(|why| format!("axis: {why}"))
    }

    pub fn outline(&self) -> TensorOutline {
        TensorOutline {
            facts: self.facts.clone(),
            signature: self.signature.clone(),
            requests: self.requests(),
            class_bytes: self.class_bytes(1),
            batch: self.batch(),
        }
    }

    /// How requests are computed, in words.
    fn requests(&self) -> String {
        match &self.ragged {
            Some(ragged) => format!("{}, padded along {}", self.facts.joining, crate::error::shown(&ragged.axis)),
            None => self.facts.joining.to_string(),
        }
    }

    /// Shapes of its inputs, with this length for all axes of any length.
    pub(crate) fn shapes(&self, length: usize) -> Vec<Vec<usize>> {
        samples::shapes(&self.signature.inputs, |_, _| length)
    }

    /// Computes one tensor for each input, which [`Signature::check`] accepts.
    ///
    /// # Errors
    /// The runtime says why it cannot compute these numbers.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        match self.prepares() {
            true => self.run_as_is(&self.prepared(inputs)?),
            false => self.run_as_is(inputs),
        }
    }

    /// Computes several requests at once, whose tensors differ in the lengths of their first axes alone. Returns what each of them
    /// gets. Only of a model whose rows are computed each by itself.
    ///
    /// # Errors
    /// As [`TensorModel::run`]; one of them is at fault, perhaps.
    pub(crate) fn run_together(&self, requests: &[&[Tensor]]) -> Result<Vec<Vec<Tensor>>, String> {
        self.with_prepared(requests, |requests| self.run_together_as_is(requests))
    }

    /// The same of requests that differ in the length of the ragged axis, too: pads them to one length, and cuts what comes of them
    /// back to their own.
    ///
    /// # Errors
    /// As [`TensorModel::run_together`]; the model has no ragged axis.
    pub(crate) fn run_padded(&self, requests: &[&[Tensor]]) -> Result<Vec<Vec<Tensor>>, String> {
        let ragged = self.ragged.as_ref().ok_or_else(|| "requests of several lengths".to_owned())?;
        self.with_prepared(requests, |requests| self.pad_and_cut(ragged, requests))
    }

    fn pad_and_cut(&self, ragged: &Ragged, requests: &[&[Tensor]]) -> Result<Vec<Vec<Tensor>>, String> {
        let uncountable = || "tensors that cannot be counted".to_owned();
        let shapes = ragged::joined_shapes(requests).ok_or_else(uncountable)?;
        let padded: Vec<Vec<Tensor>> =
            requests.iter().map(|request| ragged.padded(request, &shapes)).collect::<Result<_, _>>()?;
        let outputs = self.run_together_as_is(&padded.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
        let cut = |(outputs, request): (Vec<Tensor>, &&[Tensor])| {
            let own: Vec<&[usize]> = request.iter().map(Tensor::shape).collect();
            ragged::cut(outputs, self.gives(&own).ok_or_else(uncountable)?)
        };
        outputs.into_iter().zip(requests).map(cut).collect()
    }

    /// What `run` makes of requests as the runtime takes them.
    fn with_prepared<T>(
        &self,
        requests: &[&[Tensor]],
        run: impl FnOnce(&[&[Tensor]]) -> Result<T, String>,
    ) -> Result<T, String> {
        if !self.prepares() {
            return run(requests);
        }
        let prepared: Vec<Vec<Tensor>> =
            requests.iter().map(|request| self.prepared(request)).collect::<Result<_, _>>()?;
        run(&prepared.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    fn prepares(&self) -> bool {
        self.before.iter().any(Option::is_some)
    }

    /// A request's tensors as the runtime takes them.
    fn prepared(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let prepared = inputs.iter().zip(&self.before).map(|(input, step)| match step {
            Some(step) => step.apply(input),
            None => Ok(input.clone()),
        });
        prepared.collect()
    }

    fn run_as_is(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        self.runtime.run(inputs)
    }

    fn run_together_as_is(&self, requests: &[&[Tensor]]) -> Result<Vec<Vec<Tensor>>, String> {
        self.runtime.run_together(requests)
    }

    /// The shapes that the runtime gives, from those that it takes.
    fn gives(&self, taken: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
        self.runtime.output_shapes(taken)
    }

    /// The classes of what it gave, if it tells any.
    pub fn classes(&self, outputs: &[Tensor]) -> Option<Vec<Vec<Class>>> {
        self.after.as_ref().map(|after| after.classes(outputs))
    }

    /// The shapes that the runtime takes, from those that clients send.
    fn taken(&self, shapes: &[&[usize]]) -> Vec<Vec<usize>> {
        let shape = |(shape, step): (&&[usize], &Option<Preprocess>)| match step {
            Some(step) => step.shape(shape),
            None => shape.to_vec(),
        };
        shapes.iter().zip(&self.before).map(shape).collect()
    }
}

impl TensorModel {
    /// Bytes of all tensors that computing inputs of these shapes makes. `None`: more than can be counted.
    pub fn run_bytes(&self, shapes: &[&[usize]]) -> Option<u64> {
        let taken = self.taken(shapes);
        let taken: Vec<&[usize]> = taken.iter().map(Vec::as_slice).collect();
        let run = self.runtime.run_bytes(&taken);
        let steps =
            shapes.iter().zip(&self.before).filter_map(|(shape, step)| step.as_ref().map(|step| step.bytes(shape)));
        steps.fold(run, |all, step| all?.checked_add(step?))
    }

    /// Shapes of the outputs. `None`: they cannot be counted.
    pub fn output_shapes(&self, shapes: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
        let taken = self.taken(shapes);
        self.gives(&taken.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// What computes it since the device failed that it was loaded for.
    pub fn fallback(&self) -> Option<Cow<'static, str>> {
        self.runtime.fallback().map(Cow::Borrowed)
    }

    /// Upper bound of what the classes of these rows take in an answer, in bytes.
    pub fn class_bytes(&self, rows: u32) -> usize {
        self.after.as_ref().map_or(0, |after| after.row_bytes().saturating_mul(rows as usize))
    }
}
