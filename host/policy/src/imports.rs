//! What the host gives to guests: one file for each WIT interface, with the trait through which it sees a guest's state and
//! the function that links it. None of them knows what else a guest has.
pub(crate) mod clock;
pub(crate) mod log;
pub(crate) mod logits;
pub(crate) mod metrics;
pub(crate) mod random;
pub(crate) mod state;
pub(crate) mod types;
pub(crate) mod vocabulary;
