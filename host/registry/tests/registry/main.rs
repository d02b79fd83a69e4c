//! The registry against servers on this machine, and against other processes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod cache;
mod concurrent;
mod disk;
mod downloads;
mod made;
mod resumed;
mod server;
mod sources;
