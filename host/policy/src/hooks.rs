//! The four hooks over guests: what goes in, what is made of the answer, what a fault does.
pub(crate) mod auth;
pub(crate) mod sampler;
pub(crate) mod scheduler;
pub(crate) mod validator;
