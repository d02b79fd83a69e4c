//! The wire format: errors, fields and parameters of bodies, frames of streams. It knows no models, callers or
//! policies.
pub(crate) mod adapters;
pub(crate) mod answer;
pub(crate) mod echo;
pub(crate) mod embeddings;
pub(crate) mod error;
pub(crate) mod extent;
pub(crate) mod fields;
pub(crate) mod input;
pub(crate) mod json;
pub(crate) mod lists;
pub(crate) mod merge_patch;
pub(crate) mod messages;
pub(crate) mod nested;
pub(crate) mod open_inference;
pub(crate) mod params;
pub(crate) mod quota_headers;
pub(crate) mod sampling;
pub(crate) mod sse;
pub(crate) mod tensor_objects;
pub(crate) mod tensors;
pub(crate) mod tokens;
pub(crate) mod types;
pub(crate) mod written;
