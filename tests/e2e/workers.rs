//! Models with several workers.
use camshaft_tests::{Open, Request, Server, Setup, Stream, eventually};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

/// Number of requests on each worker of the model, as its pool counts them.
fn active(server: &Server) -> Vec<u64> {
    let page: Value = server.admin.get("/admin/workers").json();
    let workers = page["models"]["demo"].as_array().unwrap_or_else(|| panic!("no workers in {page}"));
    workers.iter().map(|worker| worker["running_sequences"].as_u64().expect("a number")).collect()
}

#[test]
fn regression_requests_spread_over_two_workers_with_the_shipped_scheduler_and_without() {
    for scheduler in [None, Some("scheduler-fcfs")] {
        // The sampler spins in its first call until it is killed, so no request ends before the test has counted it.
        let hold = "[policy]\ndeadline = \"2s\"\n[settings]\nbehave = \"spin\"\n";
        let mut setup = Setup::new()
            .config("[[model]]\nid = \"demo\"\nworkers = 2\nsequences = 4\nthreads = 1\n")
            .guest("sampler", "10-hold", hold);
        if let Some(package) = scheduler {
            setup = setup.plugin("scheduler", "10-fcfs", package, "");
        }
        let server = setup.start();
        let body = json!({"model": "demo", "temperature": 0, "prompt": "1, 2, 3,", "max_tokens": 4, "stream": true});
        let begin = |_| server.client.begin(&Request::post(COMPLETIONS, &body));
        let sockets: Vec<_> = (0..4).map(begin).collect();
        eventually(&format!("{scheduler:?}: each worker has two of four requests"), || {
            let now = active(&server);
            if now == [2, 2] { Ok(()) } else { Err(now) }
        });
        for socket in sockets {
            let streamed = Stream::new(Open::read(socket).expect("an answer")).finish();
            assert!(streamed.is_good(), "{streamed:?}");
        }
        server.wait_until_idle();
        assert_eq!(active(&server), [0, 0]);
        for worker in ["0", "1"] {
            assert_eq!(server.metrics().get("camshaft_worker_up", &[("model", "demo"), ("worker", worker)]), Some(1.0));
        }
    }
}
