//! A request's way: parsed, validated, submitted to its model's pool, observed, rendered.
pub(crate) mod api;
pub mod backend;
pub(crate) mod chat;
pub(crate) mod completions;
pub(crate) mod control;
pub(crate) mod embeddings;
pub(crate) mod generation;
pub(crate) mod metrics;
pub(crate) mod quota;
pub(crate) mod readiness;
pub(crate) mod render;
pub(crate) mod request;
pub(crate) mod stream;
pub(crate) mod template;
pub mod trace;
pub(crate) mod unary;
pub(crate) mod validate;
