//! Tests of the server's binary from outside: what clients, operators and scripts rely on.
// But for llama.cpp's own functions, see `greedy::alone`.
#![deny(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "request bodies are written where they are passed")]

mod adapters;
mod adapters_life;
mod arrows;
mod auth;
mod budget;
mod cache;
mod canary;
mod chat;
mod compile;
mod completions;
mod contexts;
mod contract;
mod demo_tools;
mod devices;
mod embeddings;
mod errors;
mod filters;
mod greedy;
mod guests;
mod interfaces;
mod jwt;
mod languages;
mod late;
mod life;
mod lifecycle;
mod limits;
mod load;
mod matching;
mod models;
mod monitors;
mod oddities;
mod openai;
mod operations;
mod plans;
mod queue;
mod registries;
mod registry;
mod rejections;
mod rollback;
mod service;
mod settings;
mod slow;
mod speculation;
mod statuses;
mod structured;
mod swap;
mod telemetry;
mod tensors;
mod tls;
mod under_load;
mod workers;
