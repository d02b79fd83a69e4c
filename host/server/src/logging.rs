//! Logs to standard error: text on a terminal, JSON otherwise. The level can change while the server runs.
use std::fmt;
use std::io::IsTerminal;
use std::sync::Arc;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt as lines, reload};

use crate::config::{LogConfig, LogFormat};
use crate::error::ServerError;

/// The way to the installed filter.
#[derive(Clone)]
pub(crate) struct LogHandle(Arc<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>);

impl fmt::Debug for LogHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogHandle")
    }
}

impl LogHandle {
    /// Logs by another level from now on.
    ///
    /// # Errors
    /// Directives that cannot be read; the level stays as it was.
    pub(crate) fn set_level(&self, level: &str) -> Result<(), ServerError> {
        let filter = filter(level)?;
        (self.0)(filter).map_err(|error| ServerError::internal("change the log level", error))
    }
}

/// What `log.level` says.
pub(crate) fn filter(level: &str) -> Result<EnvFilter, ServerError> {
    // llama.cpp tells a hundred lines about every model at its info level; whoever asks for more gets them.
    let quiet = ["error", "warn", "info"].contains(&level);
    let directives = if quiet { format!("{level},llama-cpp-2=warn,llama_cpp_2=error") } else { level.to_owned() };
    EnvFilter::try_new(directives).map_err(|error| ServerError::Config(format!("log.level = {level:?}: {error}")))
}

/// Installs the process's subscriber.
pub(crate) fn start(config: &LogConfig) -> Result<LogHandle, ServerError> {
    let json = match config.format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Json => true,
        LogFormat::Text => false,
    };
    let (filter, handle) = reload::Layer::new(filter(&config.level)?);
    let writer = lines::layer::<Registry>().with_writer(std::io::stderr);
    let writer = if json { writer.json().flatten_event(true).boxed() } else { writer.boxed() };
    let installed = tracing_subscriber::registry().with(writer.with_filter(filter)).try_init();
    installed.map_err(|error| ServerError::Internal { what: "start logging", source: anyhow::anyhow!(error) })?;
    Ok(LogHandle(Arc::new(move |filter| handle.reload(filter))))
}
