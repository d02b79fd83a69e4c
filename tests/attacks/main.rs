//! Attacks on a running server, each bounded in time. `cargo xtask attacks` runs all of them and prints a table; the
//! tests run those that are fast.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "an attack that cannot be made fails by panicking")]

mod beside;
mod ends;
mod frames;
mod grammars;
mod http2;
mod instances;
mod memory;
mod neighbour;
mod quotas;
mod readers;
mod reloads;
mod slow;
mod spinning;
mod swaps;
mod table;
mod targets;
mod templates;
mod texts;
mod workers;

use table::Row;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
