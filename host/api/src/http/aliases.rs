//! Exports the gauges of the model server protocol (Kubernetes Gateway API inference extension) under vLLM's names.
use std::fmt::Write as _;

use prometheus::proto::MetricFamily;

/// Our name, vLLM's name, and the help text.
const ALIASES: [(&str, &str, &str); 3] = [
    ("camshaft_requests_waiting", "vllm:num_requests_waiting", "Requests in the queue."),
    ("camshaft_requests_running", "vllm:num_requests_running", "Requests on a worker."),
    ("camshaft_kv_usage_ratio", "vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1."),
];

/// Appends the aliases of the gathered metrics, in Prometheus' text format.
pub(crate) fn write(families: &[MetricFamily], out: &mut String) {
    for (ours, theirs, help) in ALIASES {
        let Some(family) = families.iter().find(|family| family.name() == ours) else { continue };
        // Writing into a string never fails.
        let _ = writeln!(out, "# HELP {theirs} {help}\n# TYPE {theirs} gauge");
        for metric in family.get_metric() {
            let model = metric.get_label().iter().find(|label| label.name() == "model");
            let model = model.map_or("", |label| label.value()).replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(out, "{theirs}{{model_name=\"{model}\"}} {}", metric.get_gauge().get_value());
        }
    }
}
