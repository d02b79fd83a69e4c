//! What can end the process, and the exit code each condition has (sysexits).
use std::net::SocketAddr;
use std::path::PathBuf;

use camshaft_engine::EngineLoadError;

/// Why the command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("configuration: {0}")]
    Config(String),
    #[error("{0}")]
    BadData(String),
    #[error("{path}: {why}", path = path.display())]
    MissingInput { path: PathBuf, why: String },
    #[error("model {id:?}: {source}")]
    Model { id: String, source: EngineLoadError },
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("{what}: {source}")]
    Internal { what: &'static str, source: anyhow::Error },
}

impl ServerError {
    /// 64 usage or configuration, 65 bad model or plugin data, 66 missing input, 69 address in use, 70 internal.
    pub fn exit_code(&self) -> u8 {
        match self {
            ServerError::Config(_) => 64,
            ServerError::Model { source, .. } if source.is_missing_input() => 66,
            ServerError::BadData(_) | ServerError::Model { .. } => 65,
            ServerError::MissingInput { .. } => 66,
            ServerError::Listen { .. } => 69,
            ServerError::Internal { .. } => 70,
        }
    }

    pub(crate) fn internal(what: &'static str, source: impl Into<anyhow::Error>) -> Self {
        ServerError::Internal { what, source: source.into() }
    }
}
