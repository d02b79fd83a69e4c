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

/// What the fuzz target for configuration files calls: any bytes are a configuration or an error that says why.
#[doc(hidden)]
pub fn fuzz_configuration(bytes: &[u8]) {
    let Ok(mut file) = tempfile::NamedTempFile::with_suffix(".toml") else { return };
    if std::io::Write::write_all(&mut file, bytes).is_ok() {
        let sources = config::Sources::new(Some(file.path()), std::iter::empty(), config::Overrides::default());
        if let Err(error) = sources.load() {
            assert!(!error.to_string().is_empty());
        }
        let _ = sources.effective();
    }
}
