//! The plugin's own metrics, exported as `camshaft_plugin_*` with the label `plugin`. About 1 us per call.
//!
//! A plugin may have 32 names with 64 label sets each; the rest is dropped. Natively (in unit tests) nothing is kept.
#[cfg(target_family = "wasm")]
use crate::bindings::host::camshaft::policy::metrics;

/// Adds to a counter.
pub fn count(name: &str, delta: u64, labels: &[(&str, &str)]) {
    #[cfg(target_family = "wasm")]
    metrics::count(name, delta, &owned(labels));
    #[cfg(not(target_family = "wasm"))]
    let _ = (name, delta, labels);
}

/// Sets a gauge.
pub fn gauge(name: &str, value: f64, labels: &[(&str, &str)]) {
    #[cfg(target_family = "wasm")]
    metrics::gauge(name, value, &owned(labels));
    #[cfg(not(target_family = "wasm"))]
    let _ = (name, value, labels);
}

/// The bindings take owned pairs.
#[cfg(target_family = "wasm")]
pub(crate) fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
