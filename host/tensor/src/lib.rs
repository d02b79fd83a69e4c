//! Tensor models behind `camshaft-core`'s [`BatchModel`](camshaft_core::jobs::BatchModel): ONNX, computed by tract.
#![forbid(unsafe_code)]

#[cfg(not(target_endian = "little"))]
compile_error!("tensors are little-endian bytes, and the runtime's are of the machine's order");

mod error;
mod facts;

#[cfg(not(feature = "onnx"))]
mod absent;
#[cfg(feature = "onnx")]
mod independence;
#[cfg(all(test, feature = "onnx"))]
mod made;
#[cfg(feature = "onnx")]
mod onnx;
#[cfg(feature = "onnx")]
mod predictor;
#[cfg(feature = "onnx")]
mod runtime;

#[cfg(not(feature = "onnx"))]
pub use absent::{Predictor, TensorModel, load};
pub use error::TensorLoadError;
pub use facts::{Facts, Joining};
#[cfg(feature = "onnx")]
pub use onnx::load;
#[cfg(feature = "onnx")]
pub use predictor::Predictor;
#[cfg(feature = "onnx")]
pub use runtime::TensorModel;
