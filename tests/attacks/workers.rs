//! The process that computes for a model, killed, aborted and stopped, and the server killed before it.
use std::time::{Duration, Instant};

use camshaft_tests::{Request, Server, Setup};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::{CHAT, COMPLETIONS, Row};

/// For whatever takes its time on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const STREAMS: usize = 16;

/// The processes that compute for a server.
fn workers(server: &Server) -> Vec<i32> {
    server.processes(&["worker"])
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Of the worker that the attack is on.
fn state(server: &Server) -> String {
    let page = server.admin.get("/admin/workers").json();
    page["models"]["demo"][0]["state"].as_str().unwrap().to_owned()
}

#[test]
fn a_process_that_computes_may_be_killed_aborted_or_stopped() {
    let row = Row::begin("the process of a model's workers killed, aborted, stopped, beside another model");
    let models = "[[model]]\nid = \"demo\"\nthreads = 1\n[[model]]\nid = \"other\"\nthreads = 1\n";
    let server = Setup::new().config(models).start();
    let hello =
        |model: &str| json!({"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
    let long = json!({"model": "demo", "prompt": "a", "max_tokens": 900, "ignore_eos": true, "stream": true});
    let all = workers(&server);
    assert_eq!(all.len(), 2, "one for each model: {all:?}");
    for sent in [Signal::KILL, Signal::ABORT, Signal::STOP] {
        // They are started in the order of the models, and the one that is started anew comes last.
        let of_demo = {
            let before = workers(&server);
            std::thread::scope(|scope| {
                let streams: Vec<_> = (0..STREAMS)
                    .map(|_| scope.spawn(|| server.client.send(&Request::post(COMPLETIONS, &long))))
                    .collect();
                std::thread::sleep(Duration::from_millis(300));
                let busy = before.into_iter().max_by_key(|pid| cpu(*pid)).unwrap();
                signal(busy, sent);
                if sent == Signal::STOP {
                    until("who is silent is degraded before it is killed", || state(&server) == "degraded");
                    assert_eq!(server.client.get("/readyz").status, 503);
                }
                assert_eq!(server.client.post(CHAT, &hello("other")).status, 200, "another model's is another process");
                let ended: Vec<String> =
                    streams.into_iter().map(|stream| stream.join().unwrap().text().to_owned()).collect();
                let lost = ended.iter().filter(|text| text.contains("worker_lost")).count();
                let done = ended.iter().filter(|text| text.contains("[DONE]")).count();
                assert!(lost > 0 && lost + done >= STREAMS, "{lost} lost and {done} done of {STREAMS} at {sent:?}");
                busy
            })
        };
        until("another process computes", || {
            server.client.post(CHAT, &hello("demo")).status == 200 && !workers(&server).contains(&of_demo)
        });
        until("the server is ready", || server.admin.get("/readyz").status == 200);
    }
    row.end("48 streams ended, each with an error or whole; new processes answered");
}

/// Ticks of CPU time that a process has taken.
pub(crate) fn cpu(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum()
}

#[test]
fn nothing_of_a_server_that_is_killed_goes_on() {
    let row = Row::begin("kill -9 of a server");
    let server = Setup::new().start();
    let hello = json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
    assert_eq!(server.client.post(CHAT, &hello).status, 200);
    let all = server.processes(&["worker", "reader", "read-"]);
    assert!(all.len() >= 3, "{all:?}");
    server.signal(Signal::KILL);
    let goes_on = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie waits for nobody but who counts the dead.
        !stat.is_empty() && !stat.contains(") Z ")
    };
    until("a process of the server goes on", || !all.iter().any(goes_on));
    row.end("no process of it is left");
}
