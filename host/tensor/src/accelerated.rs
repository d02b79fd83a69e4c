//! A model on a GPU, with the same on the CPU for when the GPU fails.
use std::sync::Arc;

use burn_ndarray::NdArray;
use burn_wgpu::Wgpu;
use camshaft_core::tensor::Tensor;

use crate::agreement::{Unfit, agree, given};
use crate::error::TensorLoadError;
use crate::gpu::{Gpu, NoGpu};
use crate::joined::Requests;
use crate::manifest::Layout;
use crate::network::Network;
use crate::ragged::joined_shapes;
use crate::samples::{self, LENGTHS};
use crate::weights::Weights;

/// A model that is computed on a GPU while that works.
#[derive(Debug)]
pub(crate) struct Accelerated {
    gpu: Arc<Gpu>,
    network: Network<Wgpu>,
    spare: Network<NdArray>,
}

/// Where a model is computed.
#[derive(Debug)]
pub(crate) enum Placed {
    Gpu(Box<Accelerated>),
    /// With the reason, if a GPU was there or asked for.
    Cpu(Network<NdArray>, Option<String>),
}

/// Puts a model on a GPU if there is one. `is_asked`: a GPU was asked for by name, so a driver that computes on the processor will do.
///
/// # Errors
/// The weights do not have what a layer has.
pub(crate) fn place(
    spare: Network<NdArray>,
    layout: Layout,
    weights: &mut Weights,
    is_asked: bool,
) -> Result<Placed, TensorLoadError> {
    let gpu = match Gpu::get(is_asked) {
        Ok(gpu) => gpu,
        Err(NoGpu::Absent) => return Ok(Placed::Cpu(spare, is_asked.then(|| "there is no GPU".to_owned()))),
        Err(NoGpu::Failed(why)) => return Ok(Placed::Cpu(spare, Some(why))),
    };
    let made = gpu.in_turn(|| Network::new(spare.graph().clone(), layout, weights, gpu.device()));
    let network = match (made, gpu.failure()) {
        (Ok(network), None) => network,
        (Err(error), None) => return Err(error),
        (_, Some(why)) => return Ok(Placed::Cpu(spare, Some(format!("{}: {why}", gpu.name)))),
    };
    let placed = Accelerated { gpu, network, spare };
    match placed.agrees() {
        Ok(()) => Ok(Placed::Gpu(Box::new(placed))),
        Err(unfit) => {
            let why = match unfit {
                Unfit::Model(why) => why,
                Unfit::Device(why) => {
                    placed.gpu.fail(&why);
                    why
                }
            };
            Ok(Placed::Cpu(placed.spare, Some(format!("{}: {why}", placed.gpu.name))))
        }
    }
}

impl Accelerated {
    /// What computes it now, as `/model/info` says it.
    pub(crate) fn backend(&self) -> String {
        format!("wgpu ({})", self.gpu.name)
    }

    /// Why the CPU has taken over, if it has.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.gpu.failure()
    }

    pub(crate) fn into_spare(self) -> Network<NdArray> {
        self.spare
    }

    pub(crate) fn spare(&self) -> &Network<NdArray> {
        &self.spare
    }

    /// As [`Network::run`].
    ///
    /// # Errors
    /// The CPU cannot compute it, either.
    pub(crate) fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        let shapes: Vec<&[usize]> = inputs.iter().map(Tensor::shape).collect();
        self.either(&shapes, || self.network.run(inputs), || self.spare.run(inputs))
    }

    /// As [`Network::run_together`].
    ///
    /// # Errors
    /// As [`Accelerated::run`].
    pub(crate) fn run_together(&self, requests: &[&[Tensor]]) -> Result<Vec<Vec<Tensor>>, String> {
        let shapes = joined_shapes(requests).ok_or_else(|| "tensors that cannot be counted".to_owned())?;
        let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
        let requests = Requests::of(requests);
        self.either(&shapes, || self.network.run_together(&requests), || self.spare.run_together(&requests))
    }

    /// A device that fails costs a run the time that it took; the CPU computes this one and all that follow.
    fn either<T>(
        &self,
        shapes: &[&[usize]],
        on_gpu: impl FnOnce() -> Result<T, String>,
        on_cpu: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        if self.failure().is_some() || !self.fits(shapes) {
            return on_cpu();
        }
        let given = self.gpu.in_turn(on_gpu);
        let wrong = match (given, self.gpu.failure()) {
            (Ok(given), None) => return Ok(given),
            (Ok(_), Some(_)) => String::new(),
            (Err(why), _) => why,
        };
        // What the CPU cannot compute is the request's fault.
        let given = on_cpu()?;
        self.gpu.fail(&wrong);
        let (gpu, why) = (&self.gpu.name, self.gpu.failure().unwrap_or_default());
        tracing::error!(
            gpu,
            why,
            "the GPU failed: tensor models are computed on the CPU until the server is started again"
        );
        Ok(given)
    }

    /// Computes some numbers on both, of which no tensor is too large for the device.
    fn agrees(&self) -> Result<(), Unfit> {
        let graph = self.spare.graph();
        let sample = |&length: &usize| samples::numbers(&graph.inputs, length, &|shapes| graph.run_bytes(shapes));
        let fits = |inputs: &Vec<Tensor>| self.fits(&inputs.iter().map(Tensor::shape).collect::<Vec<_>>());
        let on_gpu = |inputs: &[Tensor]| {
            let outputs = self.gpu.in_turn(|| self.network.run(inputs));
            given(outputs, self.gpu.failure())
        };
        agree(LENGTHS.iter().filter_map(sample).filter(fits), |inputs| self.spare.run(inputs), on_gpu)
    }

    /// Whether the device takes each tensor of such a run.
    fn fits(&self, shapes: &[&[usize]]) -> bool {
        self.spare.graph().tensors_fit(shapes, self.gpu.tensor_bytes)
    }
}
