//! The wire format: errors, fields and parameters of bodies, frames of streams. It knows no served models, callers or
//! policies.
pub(crate) mod conversation;
pub(crate) mod dialect;
pub(crate) mod echo;
pub(crate) mod error;
pub(crate) mod format;
pub(crate) mod merge_patch;
pub(crate) mod messages;
pub(crate) mod names;
pub(crate) mod nested;
pub(crate) mod open_inference;
pub(crate) mod read;
pub(crate) mod settings;
pub(crate) mod sse;
pub(crate) mod stamp;
pub(crate) mod tensor_objects;
pub(crate) mod tensors;
pub(crate) mod tools;
pub(crate) mod types;
