//! What the host gives to guests, one file for each WIT interface.
pub(crate) mod clock;
pub(crate) mod log;
pub(crate) mod logits;
pub(crate) mod metrics;
pub(crate) mod random;
pub(crate) mod state;
pub(crate) mod vocabulary;

impl crate::bindings::host::types::Host for crate::store::GuestState {}
