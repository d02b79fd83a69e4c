//! What is known of a model beside its tensors.

/// Facts about a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Format of its file.
    pub format: &'static str,
    /// What computes it.
    pub backend: &'static str,
    /// From the file: of its graph, or empty.
    pub name: String,
    /// Number of parameters, and their bytes.
    pub parameters: u64,
    pub bytes: u64,
    /// What an operator shall know of it: weights that no layer uses, a backend that is not there.
    pub notes: Vec<String>,
}
