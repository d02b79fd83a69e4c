//! Why a tensor model cannot be loaded.
use camshaft_core::shown::on_one_line;

/// Characters of a name or a value that an error shows.
const SHOWN_CHARS: usize = 128;

/// A file is no model that can be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorLoadError {
    #[error("this program was built without the runtime of {what} (the feature `{feature}`)")]
    NoRuntime { what: &'static str, feature: &'static str },
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
    #[error("has {got} {what}, at most {most}")]
    TooMany { what: &'static str, got: u64, most: u64 },
    #[error("computing its smallest request takes {bytes} bytes, a request may take {most}")]
    NeverFits { bytes: u64, most: u64 },
    #[error("cannot be prepared: {0}")]
    NotPrepared(String),
    #[error(
        "is no tensor model: its name must end with .onnx, .mpk, .bpk, .safetensors, .pt or .pth, or with .toml for a manifest"
    )]
    UnknownFormat,
    #[error("has no manifest that says what its weights are for: {0}")]
    NoManifest(String),
    #[error("manifest {file}: {why}")]
    Manifest { file: String, why: String },
    #[error("layer {layer}: {why}")]
    Layer { layer: String, why: String },
    #[error("layer {layer}: its parameter {parameter} {why}")]
    Parameter { layer: String, parameter: String, why: String },
    #[error("its weights cannot be read: {0}")]
    Weights(String),
}

/// A name or a value from a file, on one line and cut.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", on_one_line(&text[..end])),
        None => on_one_line(text),
    }
}

impl TensorLoadError {
    pub(crate) fn layer(layer: &str, why: impl Into<String>) -> Self {
        Self::Layer { layer: shown(layer), why: why.into() }
    }

    pub(crate) fn manifest(file: &str, why: impl Into<String>) -> Self {
        Self::Manifest { file: shown(file), why: why.into() }
    }
}
