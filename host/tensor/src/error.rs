//! Why a tensor model cannot be loaded.

/// A file is no model that can be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorLoadError {
    #[error("this program was built without the runtime of ONNX models (the feature `onnx`)")]
    NoRuntime,
    #[error("is no ONNX model: {0}")]
    NotOnnx(String),
    #[error("uses operators that are not supported: {}", .0.join(", "))]
    Operators(Vec<String>),
    #[error("{what} {name}: {why}")]
    Tensor { what: &'static str, name: String, why: String },
    #[error("its weights {0} lie in another file, which is not supported")]
    OtherFile(String),
    #[error("has no {0}")]
    Nothing(&'static str),
    #[error(
        "the operation {operation} gives a tensor whose size depends on the values of an input ({axis}), which no bound covers"
    )]
    Unbounded { operation: String, axis: String },
    #[error("cannot be prepared: {0}")]
    NotPrepared(String),
}
