//! Calls guests for the five hooks: converts arguments, checks answers, handles faults.
pub(crate) mod auth;
pub(crate) mod filter;
pub(crate) mod sampler;
mod sampler_monitor;
pub(crate) mod scheduler;
pub(crate) mod validator;
