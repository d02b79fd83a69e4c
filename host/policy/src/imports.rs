//! The host interfaces for guests: one file per WIT interface, with a trait for the part of a guest's state that it
//! needs, and the function that links it. No interface sees the rest of the state.
pub(crate) mod call;
pub(crate) mod clock;
pub(crate) mod crypto;
pub(crate) mod documents;
pub(crate) mod draft;
pub(crate) mod identity;
pub(crate) mod log;
pub(crate) mod logits;
pub(crate) mod metrics;
pub(crate) mod plans;
pub(crate) mod pool;
pub(crate) mod random;
pub(crate) mod sequence;
pub(crate) mod setup;
pub(crate) mod state;
pub(crate) mod stream;
pub(crate) mod types;
pub(crate) mod vocabulary;
