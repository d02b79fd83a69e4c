//! Wiring of the Camshaft server: command line, configuration, models, worker threads, listeners, shutdown.
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod embed_thread;
mod error;

mod cache_room;
mod check;
mod listener;
mod logging;
mod metrics;
mod models;
mod pool_thread;
mod reload;
mod serve;
mod show;
mod streams;
mod worker_thread;
