//! Pure logic of the Camshaft inference server: no IO, no clock, no threads.
//!
//! The host packages drive this one: `engine` decodes, `policy` answers hooks, `api` speaks HTTP, `server` owns the
//! threads. Everything here is deterministic: time comes in as a value, randomness from a seed.
#![forbid(unsafe_code)]

pub mod adapters;
pub mod answering;
pub mod breaker;
pub mod cache;
pub mod canary;
mod constraint;
mod counters;
pub mod embed;
pub mod engine;
pub mod engine_loop;
pub mod fair_queue;
pub mod fake;
pub mod family;
pub mod fcfs;
pub mod filter;
mod filter_monitor;
pub mod filter_stage;
pub mod filter_verdicts;
mod gate;
pub mod grammar;
pub mod ids;
pub mod jobs;
pub mod ledger;
pub mod limits;
pub mod message;
mod native_sampler;
mod offload;
mod output;
mod placement;
pub mod policy;
pub mod pool;
pub mod prefix;
pub mod promised;
pub mod quota;
pub mod report;
pub mod request;
pub mod reserve;
pub mod sampling;
pub mod segments;
mod sequence;
pub mod shown;
pub mod sizes;
pub mod speculate;
mod step;
mod step_times;
pub mod tensor;
pub mod text;
pub mod thinking;
pub mod threads;
pub mod vectors;
pub mod vocabulary;
pub mod worker;
