//! Pure logic of the Camshaft inference server: no IO, no clock, no threads.
//!
//! The host packages drive this one: `engine` decodes, `policy` answers hooks, `api` speaks HTTP, `server` owns the
//! threads. Everything here is deterministic: time comes in as a value, randomness from a seed.
#![forbid(unsafe_code)]

pub mod engine;
pub mod ids;
pub mod limits;
pub mod message;
pub mod policy;
pub mod sampling;
pub mod vocabulary;
