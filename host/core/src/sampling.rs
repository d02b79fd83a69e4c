//! Turning a row of logits into a token.
//!
//! [`Row`] is what sampler policies work on: kernels over `f32` slices, a candidate set, the request's history and its
//! seeded generator. [`StandardChain`] is the native default.
mod chain;
mod draws;
mod params;
mod penalties;
mod row;
mod select;
mod values;

pub use chain::StandardChain;
pub use draws::Draws;
pub use params::{LogitBias, SamplingParams};
pub use row::{InvalidLogits, LogSoftmax, Row, RowError, Workspace};
