//! Spans at an independent receiver, and metrics for scrapers.
use std::collections::BTreeSet;
use std::net::TcpListener;

use camshaft_tests::{Setup, repository};

use crate::openai::run_client;

#[test]
fn a_traced_request_shows_its_seven_spans_at_an_independent_receiver() {
    // This port was free a moment ago; the receiver binds it before the first span is exported.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let server = Setup::new().set("telemetry.otlp-endpoint", &format!("{endpoint:?}")).start();
    run_client("otlp_receiver.py", &[&port.to_string(), &format!("http://{}", server.client.address)]);
    assert!(!server.settled_log().contains("camshaft::trace"), "spans are not in the log: {}", server.settled_log());
}

#[test]
fn a_collector_that_is_not_there_costs_nothing_but_the_spans() {
    let mut server = Setup::new().set("telemetry.otlp-endpoint", "\"http://127.0.0.1:1\"").start();
    assert!(server.answer("What is 3 plus 4?").contains('7'));
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait(), Some(0));
}

/// Every `camshaft_` name in a text.
fn names(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("camshaft_")).map(str::to_owned).collect()
}

/// The metrics in the table of docs/operations.md.
fn documented() -> BTreeSet<String> {
    let text = std::fs::read_to_string(repository().join("docs/operations.md")).unwrap();
    let first_cells = text.lines().filter_map(|line| line.strip_prefix("| `camshaft_")?.split('|').next());
    let named = first_cells.flat_map(|cell| names(&format!("camshaft_{cell}")));
    named.filter(|name| !name.ends_with('_')).collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_only_what_is_exported_and_the_documentation_names_it_all() {
    // Their series are made when there is something to tell.
    let monitor = "[policy]\nmode = \"monitor\"\ndeadline = \"5s\"\n";
    let server = Setup::new()
        .set("metrics.vllm-aliases", "true")
        .plugin("validator", "10-limits", "validator-limits", "")
        .plugin("validator", "20-strict", "validator-limits", &format!("{monitor}[settings]\nmax-tokens = 1\n"))
        .plugin("sampler", "05-avoid", "sampler-avoid-words", &format!("{monitor}[settings]\nwords = [\"the\"]\n"))
        .plugin("scheduler", "20-short", "scheduler-shortest-first", monitor)
        .start();
    assert!(server.answer("What is 3 plus 4?").contains('7'));
    let streamed = serde_json::json!({"model": "demo", "prompt": "x", "max_tokens": 1, "stream": true});
    server.client.stream("/v1/completions", &streamed).finish();
    let predicted = serde_json::json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "a"}],
        "prediction": {"type": "content", "content": "b"}});
    server.client.ask("/v1/chat/completions", &predicted);
    server.admin.post("/admin/reload", &serde_json::json!({}));
    server.policies.put("validator", "10-limits.toml", "[policy]\ncanary = 0.5\n[settings]\nmax-tokens = 4096\n");
    server.wait_for_policy(("validator", "limits"), |entry| !entry["canary"].is_null());
    // A worker counts a request as done after its answer is out.
    server.wait_until_idle();
    let exported = server.admin.get("/metrics").text().to_owned();
    let known: BTreeSet<&str> =
        exported.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for file in ["dashboard.json", "alerts.yaml"] {
        let text = std::fs::read_to_string(repository().join("config/observability").join(file)).unwrap();
        let used = names(&text);
        assert!(used.len() > 5, "{used:?}");
        for name in used {
            let family = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
            assert!(known.contains(family), "{file} names {name}, which is not exported: {known:?}");
        }
    }
    let documented = documented();
    // Of plugins, each names its own.
    let own = known.iter().filter(|name| name.starts_with("camshaft_") && !name.starts_with("camshaft_plugin_"));
    assert_eq!(documented, own.map(|&name| name.to_owned()).collect(), "the table in docs/operations.md");
    for alias in ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"] {
        assert!(exported.contains(&format!("\n{alias}{{model_name=\"demo\"}} 0\n")), "{alias}: {exported}");
    }
    assert!(exported.contains("camshaft_build_info{"));
}
