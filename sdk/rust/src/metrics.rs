//! The plugin's own metrics. The host exports them as `camshaft_plugin_*` with the labels `hook` and `plugin`. A call costs
//! about 1 us.
//!
//! A plugin may have 32 names with 64 label sets each; the host drops calls past that. In native unit tests they do
//! nothing.
#[cfg(target_family = "wasm")]
use crate::bindings::host::metrics;

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

/// Copies pairs, because the bindings take owned ones.
#[cfg(target_family = "wasm")]
pub(crate) fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}
