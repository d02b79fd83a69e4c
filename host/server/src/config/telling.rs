//! What `log.level` and `telemetry.otlp-endpoint` may say.
use http::uri::InvalidUri;

/// The words for how much is logged.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Text that is no `log.level`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be one of {levels}, or one of them and exceptions as in info,llama.cpp=debug; got {got:?}",
    levels = LEVELS.join(", ")
)]
pub struct BadLevel {
    got: String,
}

/// Why spans cannot be sent to an endpoint.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadEndpoint {
    #[error("must be a URL such as http://127.0.0.1:4317, got {got:?} ({source})")]
    NoUri { got: String, source: InvalidUri },
    #[error("must be a URL such as http://127.0.0.1:4317, got {got:?} (spans are sent without TLS)")]
    Tls { got: String },
    #[error("must be a URL such as http://127.0.0.1:4317, got {got:?}")]
    NoUrl { got: String },
}

/// # Errors
/// A bare word that is no level would silence everything else: `tracing` takes it for a module. So would exceptions
/// without a level: nothing says what holds for the rest.
pub(crate) fn level_is_good(level: &str) -> Result<(), BadLevel> {
    let is_level = |word: &str| LEVELS.contains(&word.to_ascii_lowercase().as_str());
    let is_module =
        |word: &str| !word.is_empty() && word.bytes().all(|c| c.is_ascii_alphanumeric() || b"_-.:".contains(&c));
    let is_exception =
        |word: &str| word.split_once('=').is_some_and(|(module, level)| is_module(module) && is_level(level));
    let words: Vec<&str> = level.split(',').map(str::trim).collect();
    let levels = words.iter().filter(|word| is_level(word)).count();
    if levels == 1 && words.iter().all(|word| is_level(word) || is_exception(word)) {
        return Ok(());
    }
    Err(BadLevel { got: level.to_owned() })
}

/// # Errors
/// Why spans cannot be sent to `endpoint`.
pub(super) fn endpoint_is_good(endpoint: &str) -> Result<(), BadEndpoint> {
    let got = endpoint.to_owned();
    match endpoint.parse::<http::Uri>() {
        Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty()) => Ok(()),
        Ok(uri) if uri.scheme_str() == Some("https") => Err(BadEndpoint::Tls { got }),
        Ok(_) => Err(BadEndpoint::NoUrl { got }),
        Err(source) => Err(BadEndpoint::NoUri { got, source }),
    }
}
