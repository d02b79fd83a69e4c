//! Calls guests for the four hooks: converts arguments, checks answers, handles faults.
pub(crate) mod auth;
pub(crate) mod sampler;
pub(crate) mod scheduler;
pub(crate) mod validator;
