//! The processes that read for a model, killed from outside.
use camshaft_tests::{Server, Setup};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::{CHAT, Row};

/// The processes that read for a server: of each model the one that forks, and its forks behind it.
pub(crate) fn readers(server: &Server) -> Vec<i32> {
    server.processes(&["reader", "read-"])
}

/// As many may be left of one model where nobody asks for anything.
pub(crate) fn most() -> usize {
    1 + std::thread::available_parallelism().map_or(1, std::num::NonZero::get).max(2)
}

#[test]
fn readers_that_are_killed_cost_nobody_an_answer() {
    let row = Row::begin("the process that reads killed three times, and then all of its forks");
    let server = Setup::new().start();
    let hello = json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
    let chats = |why: &str| {
        for _ in 0..10 {
            let answer = server.client.post(CHAT, &hello);
            assert_eq!(answer.status, 200, "{why}: {}", answer.text());
        }
    };
    let kill = |pid: &i32| kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL).unwrap();
    chats("at first");
    let all = readers(&server);
    assert!(all.len() >= 2, "{all:?}");
    for _ in 0..3 {
        kill(&readers(&server)[0]);
        chats("the process that forks is gone");
    }
    let all = readers(&server);
    all[1..].iter().for_each(kill);
    chats("all forks are gone");
    row.end("50 chats answered");
}
