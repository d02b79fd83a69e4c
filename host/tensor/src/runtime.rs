//! What computes a model: tract, or Burn on the CPU or a GPU.
#[cfg(feature = "burn")]
use std::borrow::Cow;

#[cfg(feature = "burn")]
use burn_ndarray::{NdArray, NdArrayDevice};
use camshaft_core::tensor::{Signature, Tensor};

use crate::error::TensorLoadError;
use crate::facts::Facts;
#[cfg(any(feature = "onnx", feature = "burn"))]
use crate::joined::Requests;
use crate::manifest::Manifest;
use crate::source::FileFormat;

/// Names of weights that a note shows.
#[cfg(feature = "burn")]
const SHOWN_UNUSED: usize = 16;

/// Whether this build computes on GPUs.
pub const HAS_WGPU: bool = cfg!(feature = "wgpu");
/// What computes on the CPU.
pub(crate) const NDARRAY: &str = "ndarray";

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

/// What computes it.
#[derive(Debug)]
pub(crate) enum Runtime {
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
pub(crate) struct Loaded {
    pub(crate) facts: Facts,
    pub(crate) signature: Signature,
    pub(crate) runtime: Runtime,
}

/// Loads what computes a model.
///
/// # Errors
/// Says why it cannot be served.
pub(crate) fn load(
    format: FileFormat,
    weights: Vec<u8>,
    manifest: Option<&Manifest>,
    backend: BackendChoice,
) -> Result<Loaded, TensorLoadError> {
    if format != FileFormat::Onnx {
        return burn(format, weights, manifest, backend);
    }
    let mut loaded = onnx(&weights, manifest)?;
    if backend == BackendChoice::Wgpu {
        loaded.facts.note_cpu("backend \"wgpu\" is for weights and their manifests, and this is an ONNX model");
    }
    Ok(loaded)
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
    // A device that fails takes only some of them.
    let bytes = weights.bytes;
    let (runtime, computed_by, on_cpu) = placed(network, layout, &mut weights, backend)?;
    let mut notes = Vec::new();
    let unused = weights.unused();
    if !unused.is_empty() {
        let some: Vec<String> = unused.iter().take(SHOWN_UNUSED).map(|name| crate::error::shown(name)).collect();
        let more = unused.len() - some.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        notes.push(format!("no layer uses these weights: {}{more}", some.join(", ")));
    }
    let mut facts = Facts {
        format: format.as_str().into(),
        backend: computed_by,
        name: String::new(),
        parameters: weights.parameters,
        bytes,
        joining,
        notes,
    };
    if let Some(why) = on_cpu {
        facts.note_cpu(&why);
    }
    Ok(Loaded { facts, signature, runtime })
}

/// A network where it is computed, with the name of what computes it, and why no GPU does, if one was there or asked for.
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
        Placed::Cpu(network, why) => (Runtime::Burn(network), NDARRAY.into(), why),
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
    let why = "this program was built without the feature `wgpu`";
    let why = (backend == BackendChoice::Wgpu).then(|| why.to_owned());
    Ok((Runtime::Burn(network), NDARRAY.into(), why))
}

#[cfg(not(feature = "burn"))]
fn burn(_: FileFormat, _: Vec<u8>, _: Option<&Manifest>, _: BackendChoice) -> Result<Loaded, TensorLoadError> {
    Err(TensorLoadError::NoRuntime { what: "Burn models", feature: "burn" })
}

#[cfg_attr(
    not(any(feature = "onnx", feature = "burn")),
    expect(unused_variables, reason = "without a runtime there is no model")
)]
impl Runtime {
    /// Computes one tensor for each input.
    ///
    /// # Errors
    /// It cannot compute these numbers.
    pub(crate) fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        match self {
            #[cfg(feature = "onnx")]
            Self::Onnx(plan) => plan.run(inputs),
            #[cfg(feature = "burn")]
            Self::Burn(network) => network.run(inputs),
            #[cfg(feature = "wgpu")]
            Self::Gpu(network) => network.run(inputs),
            Self::Absent(never) => match *never {},
        }
    }

    /// Computes several requests at once. Returns what each of them gets.
    ///
    /// # Errors
    /// As [`Runtime::run`]; one of them is at fault, perhaps.
    pub(crate) fn run_together(&self, requests: &[&[Tensor]]) -> Result<Vec<Vec<Tensor>>, String> {
        match self {
            #[cfg(feature = "onnx")]
            Self::Onnx(plan) => plan.run_together(&Requests::of(requests)),
            #[cfg(feature = "burn")]
            Self::Burn(network) => network.run_together(&Requests::of(requests)),
            #[cfg(feature = "wgpu")]
            Self::Gpu(network) => network.run_together(requests),
            Self::Absent(never) => match *never {},
        }
    }

    /// Bytes of all tensors that a run makes of inputs of these shapes. `None`: more than can be counted.
    pub(crate) fn run_bytes(&self, shapes: &[&[usize]]) -> Option<u64> {
        match self {
            #[cfg(feature = "onnx")]
            Self::Onnx(plan) => plan.run_bytes(shapes),
            #[cfg(feature = "burn")]
            Self::Burn(network) => network.graph().run_bytes(shapes),
            #[cfg(feature = "wgpu")]
            Self::Gpu(network) => network.spare().graph().run_bytes(shapes),
            Self::Absent(never) => match *never {},
        }
    }

    /// The shapes that it gives. `None`: they cannot be counted.
    pub(crate) fn output_shapes(&self, shapes: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
        match self {
            #[cfg(feature = "onnx")]
            Self::Onnx(plan) => plan.output_shapes(shapes),
            #[cfg(feature = "burn")]
            Self::Burn(network) => network.graph().output_shapes(shapes),
            #[cfg(feature = "wgpu")]
            Self::Gpu(network) => network.spare().graph().output_shapes(shapes),
            Self::Absent(never) => match *never {},
        }
    }

    /// Whether axes of any length may be as short as one.
    pub(crate) fn takes_any_length(&self) -> bool {
        match self {
            #[cfg(feature = "onnx")]
            Self::Onnx(_) => false,
            #[cfg(feature = "burn")]
            Self::Burn(_) => true,
            #[cfg(feature = "wgpu")]
            Self::Gpu(_) => true,
            Self::Absent(never) => match *never {},
        }
    }

    pub(crate) fn is_on_gpu(&self) -> bool {
        match self {
            #[cfg(feature = "wgpu")]
            Self::Gpu(_) => true,
            _ => false,
        }
    }

    /// The same without the GPU.
    pub(crate) fn on_cpu(self) -> Self {
        match self {
            #[cfg(feature = "wgpu")]
            Self::Gpu(network) => Self::Burn(network.into_spare()),
            other => other,
        }
    }

    /// What computes it since a GPU failed.
    pub(crate) fn fallback(&self) -> Option<&'static str> {
        match self {
            #[cfg(feature = "wgpu")]
            Self::Gpu(network) if network.failure().is_some() => Some(NDARRAY),
            _ => None,
        }
    }
}
