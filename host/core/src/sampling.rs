//! Turns a row of logits into a token.
//!
//! Sampler policies work on a [`Row`]: logits, a candidate set, the request's history and its seeded random generator.
//! Its operations exist as values, too ([`Step`]): a [`Plan`] is what a policy leaves to the host, and [`StandardChain`] is the
//! native default.
mod chain;
mod checks;
mod cuts;
mod defaults;
mod distance;
mod draw;
mod log_softmax;
mod params;
mod penalties;
mod plan;
mod random;
mod repeats;
mod row;
mod select;
mod step;
mod truncate;
mod values;
mod work;

pub use chain::StandardChain;
pub use checks::RowError;
pub use cuts::Statistics;
pub use defaults::SamplingDefaults;
pub use log_softmax::LogSoftmax;
pub use params::{LogitBias, SamplingParams};
pub use plan::{MAX_STEPS, Plan, PlanError};
pub use random::RandomStream;
pub use repeats::{MAX_BREAKERS, MAX_REPEATS_WINDOW, Repeats};
pub use row::{EndReason, InvalidLogits, MAX_FORCED, MAX_TEXT_TAIL_BYTES, Row, Workspace};
pub use step::Step;
