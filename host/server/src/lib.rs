//! Wiring of the Camshaft server: command line, configuration, models, worker threads, listeners, shutdown.
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
mod delivery;
pub mod embed_thread;
mod error;
mod expected;

mod activity;
mod cache_command;
mod cache_plan;
mod check;
mod clients;
mod closings;
mod connection;
mod exchange;
mod listener;
mod log_writer;
mod logging;
mod mailbox;
mod manual;
mod metrics;
mod models;
mod plugin_check;
mod policies;
mod pool_thread;
mod preflight;
mod progress;
mod reload;
mod serve;
mod show;
mod shutdown;
mod signals;
mod snapshot;
mod socket;
mod start;
mod streams;
mod supervisor;
mod tls;
mod token;
mod tuning;
mod version;
mod weights;
mod weights_watch;
mod worker_thread;

/// Serves as `camshaft serve` does, but every configured model runs on the fakes of core: what is left is the cost of
/// everything around an engine. For `cargo xtask bench front` and tests.
#[doc(hidden)]
pub fn serve_fake_models(sources: config::Sources) -> anyhow::Result<()> {
    Ok(serve::run(sources, weights::Engines::Fake)?)
}

/// What the fuzz target for configuration files calls: any bytes are a configuration or an error that says why.
#[doc(hidden)]
pub fn fuzz_configuration(bytes: &[u8]) {
    let Ok(mut file) = tempfile::NamedTempFile::with_suffix(".toml") else { return };
    if std::io::Write::write_all(&mut file, bytes).is_ok() {
        let sources = config::Sources::new(Some(file.path()), std::iter::empty(), config::Overrides::default());
        let Ok(sources) = sources else { return };
        if let Err(error) = sources.load() {
            assert!(!error.to_string().is_empty());
        }
        let _ = sources.snapshot();
    }
}
