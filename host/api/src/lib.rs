//! The HTTP surface: OpenAI-style endpoints over the pools behind [`backend`], health, metrics and admin.
//!
//! A request is parsed into core types, submitted to its model's pool and rendered from the events that come back.
#![forbid(unsafe_code)]

mod admin;
mod aliases;
mod api;
mod auth;
pub mod backend;
mod body;
mod chat;
mod completions;
mod control;
mod embeddings;
mod error;
mod fields;
#[doc(hidden)]
pub mod fuzz;
mod generation;
mod health;
mod merge_patch;
mod messages;
mod metrics;
mod models;
mod observe;
mod params;
mod quota;
mod readiness;
mod render;
mod request;
mod request_id;
mod routes;
mod session;
mod sse;
mod stats;
mod stream;
mod template;
mod tokenize;
pub mod trace;
mod unary;
mod validate;

pub use api::{Api, ApiLimits, ApiOptions};
pub use backend::{Backend, EmbedBackend, EmbedJob, Model, PoolMessage, PoolSnapshot, Submission};
pub use control::{Control, Reloaded};
pub use error::ApiError;
pub use quota::{LocalQuotas, QuotaStore};
pub use readiness::{Readiness, State};
pub use routes::{admin_router, public_router};
