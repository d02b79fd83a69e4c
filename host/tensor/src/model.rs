//! A loaded model, whatever computes it, with what is done before and after.
#[cfg(feature = "burn")]
use std::borrow::Cow;

#[cfg(feature = "burn")]
use burn_ndarray::{NdArray, NdArrayDevice};
use camshaft_core::limits::RUN_BYTES;
use camshaft_core::tensor::{Axis, Class, Computing, Signature, Tensor};

use crate::error::TensorLoadError;
use crate::facts::{Facts, Joining};
#[cfg(any(feature = "onnx", feature = "burn"))]
use crate::joined::Requests;
use crate::manifest::{Manifest, RaggedEntry};
use crate::postprocess::Postprocess;
use crate::preprocess::Preprocess;
use crate::ragged::{self, Ragged};
use crate::source::{FileFormat, Files};
use crate::trial;

/// Tensors that a request may carry.
const INPUTS: usize = 64;
/// Lengths of axes of any length with which a model's smallest request is looked for.
const LENGTHS: [usize; 3] = [1, 8, 32];
/// Names of weights that a note shows.
#[cfg(feature = "burn")]
const SHOWN_UNUSED: usize = 16;

/// Whether this build computes on GPUs.
pub const HAS_WGPU: bool = cfg!(feature = "wgpu");
/// What computes on the CPU.
#[cfg(feature = "burn")]
const NDARRAY: &str = "ndarray";

/// Where a model is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BackendChoice {
    /// On the CPU, or where the build and the machine have it, on a GPU.
    #[default]
    Auto,
    Cpu,
    /// On a GPU through WebGPU; on the CPU, with a note, where there is none.
    Wgpu,
}

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

/// What computes it.
#[derive(Debug)]
enum Runtime {
    #[cfg(feature = "onnx")]
    Onnx(crate::tract::Plan),
    #[cfg(feature = "burn")]
    Burn(crate::network::Network<NdArray>),
    #[cfg(feature = "wgpu")]
    Gpu(Box<crate::accelerated::Accelerated>),
    /// In a build without a runtime, which loads nothing.
    #[expect(dead_code, reason = "nobody makes one")]
    Absent(std::convert::Infallible),
}

/// A runtime with what is known of its model.
struct Loaded {
    facts: Facts,
    signature: Signature,
    runtime: Runtime,
}

/// Loads a model from its files.
///
/// # Errors
/// Says why it cannot be served.
pub fn load(files: Files, backend: BackendChoice) -> Result<TensorModel, TensorLoadError> {
    let Files { format, weights, manifest, labels } = files;
    let manifest = manifest.map(|(manifest, _)| manifest);
    let Loaded { mut facts, signature, runtime } = match format {
        FileFormat::Onnx => {
            let mut loaded = onnx(&weights, manifest.as_ref())?;
            if backend == BackendChoice::Wgpu {
                let note = "backend \"wgpu\" is for weights and manifests: an ONNX model is computed on the CPU";
                loaded.facts.notes.push(note.to_owned());
            }
            loaded
        }
        _ => burn(format, weights, manifest.as_ref(), backend)?,
    };
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
        model.pad(entry).map_err(|why| TensorLoadError::manifest(&manifest.file, format!("ragged.{why}")))?;
    }
    Ok(model)
}

#[cfg(feature = "onnx")]
fn onnx(weights: &[u8], manifest: Option<&Manifest>) -> Result<Loaded, TensorLoadError> {
    if let Some(manifest) = manifest
        && !(manifest.layers.is_empty()
            && manifest.inputs.is_empty()
            && manifest.outputs.is_empty()
            && manifest.layout.is_none())
    {
        let why = "has layers, inputs, outputs or a layout, which an ONNX model says itself";
        return Err(TensorLoadError::manifest(&manifest.file, why));
    }
    let crate::onnx::Loaded { facts, signature, plan } = crate::onnx::load(&mut &*weights)?;
    Ok(Loaded { facts, signature, runtime: Runtime::Onnx(plan) })
}

#[cfg(not(feature = "onnx"))]
fn onnx(_: &[u8], _: Option<&Manifest>) -> Result<Loaded, TensorLoadError> {
    Err(TensorLoadError::NoRuntime { what: "ONNX models", feature: "onnx" })
}

#[cfg(feature = "burn")]
fn burn(
    format: FileFormat,
    weights: Vec<u8>,
    manifest: Option<&Manifest>,
    backend: BackendChoice,
) -> Result<Loaded, TensorLoadError> {
    use crate::manifest::Layout;

    let manifest = manifest.ok_or(TensorLoadError::Nothing("manifest"))?;
    let graph = crate::graph::Graph::of(manifest)?;
    let signature = graph.signature();
    let joining = graph.joining(&signature);
    let layout = manifest.layout.unwrap_or(match format {
        FileFormat::Pt | FileFormat::Safetensors => Layout::Torch,
        _ => Layout::Burn,
    });
    let mut weights = crate::weights::Weights::read(format, weights)?;
    let network = crate::network::Network::new(graph, layout, &mut weights, NdArrayDevice::Cpu)?;
    let (runtime, computed_by, note) = placed(network, layout, &mut weights, backend)?;
    let mut notes = Vec::from_iter(note);
    let unused = weights.unused();
    if !unused.is_empty() {
        let some: Vec<String> = unused.iter().take(SHOWN_UNUSED).map(|name| crate::error::shown(name)).collect();
        let more = unused.len() - some.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        notes.push(format!("no layer uses these weights: {}{more}", some.join(", ")));
    }
    let facts = Facts {
        format: format.as_str(),
        backend: computed_by,
        name: String::new(),
        parameters: weights.parameters,
        bytes: weights.bytes,
        joining,
        notes,
    };
    Ok(Loaded { facts, signature, runtime })
}

/// A network where it is computed, with the name of what computes it, and what an operator shall know.
#[cfg(feature = "burn")]
type PlacedNetwork = (Runtime, Cow<'static, str>, Option<String>);

#[cfg(feature = "wgpu")]
fn placed(
    network: crate::network::Network<NdArray>,
    layout: crate::manifest::Layout,
    weights: &mut crate::weights::Weights,
    backend: BackendChoice,
) -> Result<PlacedNetwork, TensorLoadError> {
    use crate::accelerated::{Placed, place};

    if backend == BackendChoice::Cpu {
        return Ok((Runtime::Burn(network), NDARRAY.into(), None));
    }
    Ok(match place(network, layout, weights, backend == BackendChoice::Wgpu)? {
        Placed::Gpu(network) => {
            let computed_by = network.backend();
            (Runtime::Gpu(network), computed_by.into(), None)
        }
        Placed::Cpu(network, why) => {
            let note = why.map(|why| format!("the model is computed on the CPU, not by WebGPU: {why}"));
            (Runtime::Burn(network), NDARRAY.into(), note)
        }
    })
}

#[cfg(feature = "burn")]
#[cfg(not(feature = "wgpu"))]
#[expect(clippy::unnecessary_wraps, reason = "as with the feature `wgpu`")]
fn placed(
    network: crate::network::Network<NdArray>,
    _: crate::manifest::Layout,
    _: &mut crate::weights::Weights,
    backend: BackendChoice,
) -> Result<PlacedNetwork, TensorLoadError> {
    let note =
        "backend \"wgpu\" is not in this build, which needs the feature `wgpu`: the model is computed on the CPU";
    let note = (backend == BackendChoice::Wgpu).then(|| note.to_owned());
    Ok((Runtime::Burn(network), NDARRAY.into(), note))
}

#[cfg(not(feature = "burn"))]
fn burn(_: FileFormat, _: Vec<u8>, _: Option<&Manifest>, _: BackendChoice) -> Result<Loaded, TensorLoadError> {
    Err(TensorLoadError::NoRuntime { what: "Burn models", feature: "burn" })
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
        let may_be_longer = !self.takes_any_length() && axes.any(|axis| matches!(axis, Axis::Any(_)));
        let least = LENGTHS.iter().filter_map(|&length| bytes(length)).min();
        match least {
            Some(bytes) if bytes > RUN_BYTES => Err(TensorLoadError::NeverFits { bytes, most: RUN_BYTES }),
            None if !may_be_longer => Err(TensorLoadError::NeverFits { bytes: u64::MAX, most: RUN_BYTES }),
            _ => Ok(()),
        }
    }

    /// Whether axes of any length may be as short as one.
    fn takes_any_length(&self) -> bool {
        match &self.runtime {
            #[cfg(feature = "onnx")]
            Runtime::Onnx(_) => false,
            #[cfg(feature = "burn")]
            Runtime::Burn(_) => true,
            Runtime::Absent(never) => match *never {},
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
            together: &|requests| self.run_together(requests),
        };
        trial::examine(&tried).map_err(|why| format!("axis: {why}"))
    }

    /// How requests are computed, in words.
    pub fn requests(&self) -> String {
        match &self.ragged {
            Some(ragged) => format!("{}, padded along {}", self.facts.joining, crate::error::shown(&ragged.axis)),
            None => self.facts.joining.to_string(),
        }
    }

    /// Shapes of its inputs, with this length for all axes of any length.
    pub(crate) fn shapes(&self, length: usize) -> Vec<Vec<usize>> {
        let axis = |axis: &Axis| match axis {
            Axis::Fixed(length) => *length,
            Axis::Any(_) => length,
        };
        self.signature.inputs.iter().map(|spec| spec.shape.iter().map(axis).collect()).collect()
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
        if !self.prepares() {
            return self.run_padded(requests);
        }
        let prepared: Vec<Vec<Tensor>> =
            requests.iter().map(|request| self.prepared(request)).collect::<Result<_, _>>()?;
        self.run_padded(&prepared.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// Pads requests to one length and cuts what comes of them back to their own.
    fn run_padded(&self, requests: &[&[Tensor]]) -> Result<Vec<Vec<Tensor>>, String> {
        let Some(ragged) = &self.ragged else { return self.run_together_as_is(requests) };
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
        match &self.runtime {
            #[cfg(feature = "onnx")]
            Runtime::Onnx(plan) => plan.run(inputs),
            #[cfg(feature = "burn")]
            Runtime::Burn(network) => network.run(inputs),
            #[cfg(feature = "wgpu")]
            Runtime::Gpu(network) => network.run(inputs),
            Runtime::Absent(never) => {
                let _ = inputs;
                match *never {}
            }
        }
    }

    fn run_together_as_is(&self, requests: &[&[Tensor]]) -> Result<Vec<Vec<Tensor>>, String> {
        match &self.runtime {
            #[cfg(feature = "onnx")]
            Runtime::Onnx(plan) => plan.run_together(&Requests::of(requests)),
            #[cfg(feature = "burn")]
            Runtime::Burn(network) => network.run_together(&Requests::of(requests)),
            #[cfg(feature = "wgpu")]
            Runtime::Gpu(network) => network.run_together(requests),
            Runtime::Absent(never) => {
                let _ = requests;
                match *never {}
            }
        }
    }

    /// The shapes that the runtime gives, from those that it takes.
    fn gives(&self, taken: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
        match &self.runtime {
            #[cfg(feature = "onnx")]
            Runtime::Onnx(plan) => plan.output_shapes(taken),
            #[cfg(feature = "burn")]
            Runtime::Burn(network) => network.graph().output_shapes(taken),
            #[cfg(feature = "wgpu")]
            Runtime::Gpu(network) => network.spare().graph().output_shapes(taken),
            Runtime::Absent(never) => {
                let _ = taken;
                match *never {}
            }
        }
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

#[cfg_attr(
    not(any(feature = "onnx", feature = "burn")),
    expect(unreachable_code, unused_variables, reason = "without a runtime there is no model")
)]
impl Computing for TensorModel {
    fn run_bytes(&self, shapes: &[&[usize]]) -> Option<u64> {
        let taken = self.taken(shapes);
        let taken: Vec<&[usize]> = taken.iter().map(Vec::as_slice).collect();
        let run = match &self.runtime {
            #[cfg(feature = "onnx")]
            Runtime::Onnx(plan) => plan.run_bytes(&taken),
            #[cfg(feature = "burn")]
            Runtime::Burn(network) => network.graph().run_bytes(&taken),
            #[cfg(feature = "wgpu")]
            Runtime::Gpu(network) => network.spare().graph().run_bytes(&taken),
            Runtime::Absent(never) => {
                let _ = taken;
                match *never {}
            }
        };
        let steps =
            shapes.iter().zip(&self.before).filter_map(|(shape, step)| step.as_ref().map(|step| step.bytes(shape)));
        steps.fold(run, |all, step| all?.checked_add(step?))
    }

    fn output_shapes(&self, shapes: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
        let taken = self.taken(shapes);
        self.gives(&taken.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    #[cfg(feature = "wgpu")]
    fn fallback(&self) -> Option<&'static str> {
        match &self.runtime {
            Runtime::Gpu(network) if network.has_failed() => Some(NDARRAY),
            _ => None,
        }
    }

    fn class_bytes(&self, rows: u32) -> usize {
        self.after.as_ref().map_or(0, |after| after.row_bytes().saturating_mul(rows as usize))
    }
}
