//! Turns a row of logits into a token.
//!
//! Sampler policies work on a [`Row`]: logits, a candidate set, the request's history and its seeded random generator.
//! [`StandardChain`] is the native default.
mod chain;
mod log_softmax;
mod params;
mod penalties;
mod random;
mod row;
mod select;
mod truncate;
mod values;

pub use chain::StandardChain;
pub use log_softmax::LogSoftmax;
pub use params::{LogitBias, SamplingParams};
pub use random::RandomStream;
pub use row::{InvalidLogits, Row, RowError, Workspace};
