//! Models with several workers.
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use camshaft_tests::{Open, Request, Server, Setup, Stream, eventually, plugin};
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

/// Streams one answer after another until it is told to stop. Returns how many there were.
fn stream_on(server: &Server, stop: &AtomicBool) -> usize {
    let body = json!({"model": "demo", "prompt": "Once", "max_tokens": 40, "ignore_eos": true, "stream": true});
    let mut streams = 0;
    while !stop.load(Ordering::Relaxed) {
        let streamed = server.client.stream(COMPLETIONS, &body).finish();
        assert!(streamed.is_good() && streamed.finish_reason(0) == Some("length"), "{streamed:?}");
        streams += 1;
    }
    streams
}

#[test]
fn schedulers_that_place_differently_follow_each_other_under_load_and_use_every_worker() {
    const SCHEDULERS: [&str; 3] = ["round-robin", "least-loaded", "memory-aware"];
    for workers in [2, 4] {
        let model = format!("[[model]]\nid = \"demo\"\nworkers = {workers}\nsequences = 4\nthreads = 1\n");
        let mut server = Setup::new().config(&model).plugin("scheduler", "10-fcfs", "scheduler-fcfs", "").start();
        let stop = AtomicBool::new(false);
        let streams: usize = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..8).map(|_| scope.spawn(|| stream_on(&server, &stop))).collect();
            // A failure here must not leave the clients running.
            let switched = catch_unwind(AssertUnwindSafe(|| {
                for (number, scheduler) in SCHEDULERS.into_iter().enumerate() {
                    let component = plugin(&format!("scheduler-{scheduler}"));
                    server.policies.put("scheduler", &format!("2{number}-{scheduler}.wasm"), &component);
                    server.wait_until_active("scheduler", scheduler, &component);
                    let mut served = vec![false; workers];
                    eventually(&format!("{scheduler}: every worker has requests"), || {
                        served.iter_mut().zip(active(&server)).for_each(|(served, now)| *served |= now > 0);
                        if served.iter().all(|served| *served) { Ok(()) } else { Err(served.clone()) }
                    });
                }
            }));
            stop.store(true, Ordering::Relaxed);
            let streams = clients.into_iter().map(|client| client.join().expect("no stream fails")).sum();
            switched.unwrap_or_else(|panic| resume_unwind(panic));
            streams
        });
        assert!(streams > 0);
        server.assert_runs();
        server.wait_until_idle();
        let log = server.settled_log();
        assert!(!log.contains("faulted") && !log.contains("actions were refused"), "{log}");
    }
}

/// Threads of the server that ran at some time, by what the system calls them.
fn threads(server: &Server, named: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid().as_raw_nonzero())).expect("the server runs");
    let names = tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.starts_with(named)).count()
}

#[test]
fn two_models_share_the_machine_and_the_workers_of_each_share_its_work() {
    // More than run at once: each worker has as much as it takes.
    const CLIENTS: usize = 20;
    const LOOKS: usize = 200;
    let model = |id: &str| format!("[[model]]\nid = \"{id}\"\nworkers = 2\nsequences = 8\nthreads = 1\n");
    // What finished requests leave in memory grows with what the machine computes.
    let cache = "[cache]\nram = \"0\"\n";
    let server = Setup::new().config(&(model("demo") + &model("other") + cache)).start();
    let stop = AtomicBool::new(false);
    let client = |model: &str| {
        let body = json!({"model": model, "prompt": "Once", "max_tokens": 40, "ignore_eos": true, "stream": true});
        while !stop.load(Ordering::Relaxed) {
            let streamed = server.client.stream(COMPLETIONS, &body).finish();
            assert!(streamed.is_good(), "{streamed:?}");
        }
    };
    let busy = std::thread::scope(|scope| {
        for model in ["demo", "other"] {
            (0..CLIENTS).for_each(|_| drop(scope.spawn(|| client(model))));
        }
        let counted = catch_unwind(AssertUnwindSafe(|| {
            let mut busy = [[0u64; 2]; 2];
            for _ in 0..LOOKS {
                let page: Value = server.admin.get("/admin/workers").json();
                for (busy, model) in busy.iter_mut().zip(["demo", "other"]) {
                    for (busy, worker) in busy.iter_mut().zip(0..2) {
                        *busy += page["models"][model][worker]["running_sequences"].as_u64().expect("a number");
                    }
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            busy
        }));
        stop.store(true, Ordering::Relaxed);
        counted.unwrap_or_else(|panic| resume_unwind(panic))
    });
    for [first, second] in busy {
        let most = first.max(second);
        assert!(most > 0 && most - first.min(second) <= most / 10, "spread within a tenth: {busy:?}");
    }
    assert_eq!(threads(&server, "worker-"), 4, "one for each worker, and none that computes beside it");
    let planned: u64 = ["demo", "other"].iter().map(|id| memory(&server, id)).sum();
    assert!(server.resident_bytes() < planned + (256 << 20), "{} of {planned}", server.resident_bytes());
}

fn memory(server: &Server, id: &str) -> u64 {
    server.admin.get(&format!("/admin/models/{id}")).json()["memory_bytes"].as_u64().expect("it is in memory")
}
