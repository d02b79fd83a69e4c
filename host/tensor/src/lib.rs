//! Tensor models behind `camshaft-core`'s [`BatchModel`](camshaft_core::jobs::BatchModel): ONNX, computed by tract, and weights in
//! the formats of Burn and PyTorch, computed by Burn from the layers of a manifest.
#![forbid(unsafe_code)]

#[cfg(not(target_endian = "little"))]
compile_error!("tensors are little-endian bytes, and the runtime's are of the machine's order");

mod error;
mod facts;
mod layers;
mod manifest;
mod model;
mod postprocess;
mod predictor;
mod preprocess;
mod ragged;
mod runtime;
mod samples;
mod source;
mod trial;

#[cfg(any(feature = "onnx", feature = "burn"))]
mod joined;
#[cfg(any(feature = "onnx", feature = "burn"))]
mod quiet;

#[cfg(feature = "onnx")]
mod independence;
#[cfg(test)]
#[cfg(feature = "onnx")]
mod made;
#[cfg(feature = "onnx")]
mod onnx;
#[cfg(feature = "onnx")]
mod tract;

#[cfg(feature = "burn")]
mod globals;
#[cfg(feature = "burn")]
mod graph;
#[cfg(feature = "burn")]
mod network;
#[cfg(feature = "burn")]
mod operation;
#[cfg(feature = "burn")]
mod parameters;
#[cfg(feature = "burn")]
mod pickle;
#[cfg(feature = "burn")]
mod pickle_input;
#[cfg(test)]
#[cfg(feature = "burn")]
mod pickle_made;
#[cfg(feature = "burn")]
mod pickled;
#[cfg(feature = "burn")]
mod pieces;
#[cfg(feature = "burn")]
mod record;
#[cfg(feature = "burn")]
mod recurrent;
#[cfg(feature = "burn")]
mod shapes;
#[cfg(feature = "burn")]
mod state_dictionary;
#[cfg(feature = "burn")]
mod weights;

#[cfg(feature = "wgpu")]
mod accelerated;
#[cfg(any(test, feature = "wgpu"))]
mod agreement;
#[cfg(feature = "wgpu")]
mod gpu;

pub use error::TensorLoadError;
pub use facts::{Facts, Joining, TensorOutline, not_by_gpu};
pub use model::{TensorModel, load};
pub use predictor::Predictor;
pub use runtime::{BackendChoice, HAS_WGPU};
pub use source::{FileFormat, Files, GatherError, MANIFEST_BYTES, WEIGHTS_BYTES, Wanted, gather, is_tensor_model};
