//! Why a model could not be loaded or given a context.
use std::path::PathBuf;

use crate::kind::WrongKind;
use crate::model;

#[derive(Debug, thiserror::Error)]
pub enum EngineLoadError {
    #[error("cannot read model file {path}: {source}", path = path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    /// The preflight refused the file.
    #[error("bad model file {path}: {why}", path = path.display())]
    BadFile { path: PathBuf, why: String },
    #[error("model file {path} has SHA-256 {found}, the configuration wants {wanted}", path = path.display())]
    WrongDigest { path: PathBuf, wanted: String, found: String },
    /// Another file got its name, or it was written to.
    #[error("model file {path} was replaced or changed while it was loaded", path = path.display())]
    Replaced { path: PathBuf },
    /// The model cannot be served as the wanted kind.
    #[error("model file {path} {why}", path = path.display())]
    WrongKind { path: PathBuf, why: WrongKind },
    #[error("llama.cpp cannot load {path}: {source}", path = path.display())]
    NotLoaded { path: PathBuf, source: model::NotLoaded },
    #[error("{path} is not a LoRA adapter of this model: {source}", path = path.display())]
    NotAnAdapter { path: PathBuf, source: model::NotLoaded },
    /// The preflight refused an adapter.
    #[error("bad LoRA adapter {path}: {why}", path = path.display())]
    BadAdapter { path: PathBuf, why: String },
    /// It is to change only what follows certain tokens; here it would change everything.
    #[error("{path} is an activated LoRA adapter (aLoRA), which is not supported", path = path.display())]
    ActivatedAdapter { path: PathBuf },
    /// No cache means that each step would see its own tokens alone.
    #[error("the model keeps no KV cache: it cannot continue a text")]
    NoCache,
    #[error(
        "llama.cpp cannot make a context of {sequences} sequences and {kv_tokens} tokens: most likely there is no memory for it"
    )]
    NoContext { sequences: u32, kv_tokens: u32 },
    #[error(
        "KV entries cannot be stored as {kv_type}, in blocks of {block} numbers: the model's heads are {width} wide"
    )]
    KvType { kv_type: &'static str, block: u64, width: u64 },
    /// Only where kernels are not in the program.
    #[error("llama.cpp's kernels cannot be loaded: {why}")]
    NoKernels { why: String },
    #[error("there is no device {name}")]
    NoDevice { name: String },
    #[error("cannot unpack the bundled model: {0}")]
    Unpack(#[source] std::io::Error),
}

impl EngineLoadError {
    /// Whether the file is missing or unreadable, rather than bad.
    pub fn is_missing_input(&self) -> bool {
        matches!(self, EngineLoadError::Unreadable { .. })
    }
}
