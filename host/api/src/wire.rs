//! What goes over the wire: errors, fields and parameters of bodies, frames of streams. Knows neither models nor policies at work.
pub(crate) mod error;
pub(crate) mod fields;
pub(crate) mod merge_patch;
pub(crate) mod messages;
pub(crate) mod params;
pub(crate) mod sse;
