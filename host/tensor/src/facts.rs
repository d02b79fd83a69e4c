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
    /// Number of parameters, and their bytes.
    pub parameters: u64,
    pub bytes: u64,
    /// How requests are computed.
    pub joining: Joining,
    /// What an operator shall know of it: weights that no layer uses, a backend that is not there.
    pub notes: Vec<String>,
}
