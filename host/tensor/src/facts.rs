//! What is known of a model beside its tensors.
use std::borrow::Cow;
use std::fmt;

/// Whether requests may be computed together.
#[derive(Debug, Clone, PartialEq, Eq)]
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Format of its file.
    pub format: &'static str,
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
    /// Why no GPU computes it, if one was there or asked for.
    pub(crate) on_cpu: Option<String>,
}

impl Facts {
    /// Notes why no GPU computes a model, although one is there or was asked for.
    pub(crate) fn note_cpu(&mut self, why: String) {
        self.notes.push(not_by_gpu(&why));
        self.on_cpu = Some(why);
    }
}

/// What a GPU does for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GpuUse<'a> {
    Computes,
    /// Nothing, though one is there or was asked for.
    Fails(&'a str),
    /// There is none, and none was asked for.
    None,
}

/// What an operator is told of a model that the CPU computes although a GPU is there or was asked for.
pub fn not_by_gpu(why: &str) -> String {
    format!("the model is computed on the CPU, not by WebGPU: {why}")
}
