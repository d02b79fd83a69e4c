//! What `log.level` and `telemetry.otlp-endpoint` may say.

/// The words for how much is logged.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// # Errors
/// What is wrong with a level. A bare word that is none would silence everything else: `tracing` takes it for a module.
/// So would exceptions without a level: nothing says what holds for the rest.
pub(crate) fn level_is_good(level: &str) -> Result<(), String> {
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
    let levels = LEVELS.join(", ");
    Err(format!("must be one of {levels}, or one of them and exceptions as in info,llama.cpp=debug; got {level:?}"))
}

/// # Errors
/// Why spans cannot be sent to `endpoint`.
pub(super) fn endpoint_is_good(endpoint: &str) -> Result<(), String> {
    let wrong = |why: &str| Err(format!("must be a URL such as http://127.0.0.1:4317, got {endpoint:?}{why}"));
    match endpoint.parse::<http::Uri>() {
        Ok(uri) if uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty()) => Ok(()),
        Ok(uri) if uri.scheme_str() == Some("https") => wrong(" (spans are sent without TLS)"),
        Ok(_) => wrong(""),
        Err(error) => wrong(&format!(" ({error})")),
    }
}
