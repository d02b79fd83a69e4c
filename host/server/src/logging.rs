//! Logs to standard error: text on a terminal, JSON otherwise.
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat};
use crate::error::ServerError;

/// Installs the process's subscriber.
pub(crate) fn start(config: &LogConfig) -> Result<(), ServerError> {
    // llama.cpp tells a hundred lines about every model at its info level; whoever asks for more gets them.
    let quiet = ["error", "warn", "info"].contains(&config.level.as_str());
    let directives =
        if quiet { format!("{},llama-cpp-2=warn,llama_cpp_2=error", config.level) } else { config.level.clone() };
    let filter = EnvFilter::try_new(directives)
        .map_err(|error| ServerError::Config(format!("log.level = {:?}: {error}", config.level)))?;
    let json = match config.format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let installed = if json { builder.json().flatten_event(true).try_init() } else { builder.try_init() };
    installed.map_err(|error| ServerError::Internal { what: "start logging", source: anyhow::anyhow!(error) })
}
