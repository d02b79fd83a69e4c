//! What is known of a model beside its tensors.
use std::borrow::Cow;
use std::fmt;

use camshaft_core::jobs::BatchLimits;
use camshaft_core::tensor::Signature;
use serde::{Deserialize, Serialize};

/// Whether requests may be computed together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Joining {
    /// No row has an influence on another one.
    Proven,
    /// That is not certain.
    OneAtATime { why: String },
}

impl fmt::Display for Joining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Proven => f.write_str("in batches"),
            Self::OneAtATime { why } => write!(f, "one at a time: {why}"),
        }
    }
}

/// Facts about a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Format of its file.
    pub format: Cow<'static, str>,
    /// What computes it: with the adapter's name, if that is a GPU.
    pub backend: Cow<'static, str>,
    /// From the file: of its graph, or empty.
    pub name: String,
    /// Number of parameters, each counted once.
    pub parameters: u64,
    /// Bytes that these take in memory, as often as layers hold them.
    pub bytes: u64,
    /// How requests are computed.
    pub joining: Joining,
    /// What an operator shall know of it: weights that no layer uses, a backend that is not there.
    pub notes: Vec<String>,
}

impl Facts {
    /// Notes why no GPU computes a model, although one is there or was asked for.
    pub(crate) fn note_cpu(&mut self, why: &str) {
        self.notes.push(not_by_gpu(why));
    }
}

/// What is known of a model where its weights are not.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TensorOutline {
    pub facts: Facts,
    pub signature: Signature,
    /// How requests are computed, in words.
    pub requests: String,
    /// Upper bound of what the classes of a row take in an answer, in bytes.
    pub class_bytes: usize,
    /// What it may take at once.
    pub batch: BatchLimits,
}

/// What an operator is told of a model that the CPU computes although a GPU is there or was asked for.
pub fn not_by_gpu(why: &str) -> String {
    format!("the model is computed on the CPU, not by WebGPU: {why}")
}
