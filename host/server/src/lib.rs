//! Wiring of the Camshaft server: command line, configuration, models, worker threads, listeners, shutdown.
#![forbid(unsafe_code)]

pub mod cli;
mod client_certificates;
pub mod config;
mod cores;
mod delivery;
mod demo;
mod devices;
mod digits;
mod engines;
mod environment;
mod error;
#[doc(hidden)]
pub mod fuzz;

mod adapters;
mod batch_thread;
mod bounds;
mod cache_command;
mod cache_plan;
mod check;
mod clients;
mod health;
mod http;
mod life;
mod load;
mod log_writer;
mod logging;
mod machine;
mod mailbox;
mod manual;
mod metrics;
mod model_command;
mod models;
mod open_files;
mod own_program;
mod placing;
mod plugin_check;
mod policies;
mod pool_thread;
mod preflight;
mod progress;
mod pull_progress;
mod reader;
mod registry;
mod reload;
mod serve;
mod sessions;
mod show;
mod shutdown;
mod signals;
mod sizing;
mod start;
mod streams;
mod supervisor;
mod tensors;
mod thread_budget;
mod tls;
mod token;
mod tuning;
mod version;
mod weights;
mod worker;
mod worker_process;

/// Serves as `camshaft serve` does, but every configured model runs on the fakes of core: what is left is the cost of
/// everything around an engine. For `cargo xtask bench front` and tests.
#[doc(hidden)]
pub fn serve_fake_models(sources: config::Sources) -> anyhow::Result<()> {
    Ok(serve::run(sources, weights::Engines::Fake)?)
}

/// Does what the argument of this process says, where it is a helper of one that serves fake models.
#[doc(hidden)]
pub fn run_role() -> Option<std::process::ExitCode> {
    cli::run_role()
}

/// Threads hand each other what they allocated (a request goes from a connection to a pool to a worker, its tokens go back),
/// and the C library's allocator makes them wait for each other there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
