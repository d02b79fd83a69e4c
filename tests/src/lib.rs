//! Shared by the end-to-end tests: a server process, a small HTTP client, policy directories, polling.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a harness fails by panicking, with a sentence")]

mod client;
mod metrics;
pub mod patched;
mod paths;
mod policies;
mod poll;
mod process;
mod routes;
mod server;
mod stream;

pub use client::{Body, Client, Open, Request, Response};
pub use metrics::Metrics;
pub use paths::{binary, demo_model, guest, models_folder, pirate_model, plugin, repository, target};
pub use policies::{PolicyDir, api_keys, sha256_hex};
pub use poll::{PATIENCE, eventually};
pub use process::{Finished, Setup};
pub use routes::{guarded_requests, guarded_routes};
pub use server::Server;
pub use stream::{Collected, Stream};
