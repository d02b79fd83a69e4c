//! The HTTP surface in process: real routers over a scripted pool, a byte-level tokenizer and hand-written policies.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod adapters;
mod auth;
mod chat;
mod completions;
mod corpus;
mod described;
mod description;
mod edges;
mod errors;
mod extent;
mod fixture;
mod generate;
mod inference;
mod logging;
mod memory;
mod messages;
mod policies;
mod pool;
mod prompts;
mod quotas;
mod ranking;
mod responses;
mod scores;
mod streaming;
mod surface;
mod tools;
mod validators;
mod waking;
