//! Streams that go on while a policy changes, none of which may fail.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use camshaft_tests::{Server, eventually};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

/// So many streams at once until `done`, which gets the number of those that ended. Every one of them must end well.
pub(crate) fn under_load(server: &Server, streams: usize, done: impl FnOnce(&AtomicUsize)) {
    let (stop, ended) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for client in 0..streams {
            let (stop, ended) = (&stop, &ended);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let body = json!({"model": "demo", "prompt": "Once upon a time", "seed": client, "max_tokens": 40,
                        "ignore_eos": true, "stream": true});
                    let collected = server.client.stream(COMPLETIONS, &body).finish();
                    assert!(collected.is_good(), "a stream failed: {:?}", collected.values().last());
                    assert_eq!(collected.finish_reason(0), Some("length"));
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // A panic here must not leave the clients running for ever.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| done(&ended)));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// Until so many more have ended.
pub(crate) fn wait_for_more(ended: &AtomicUsize, count: usize) {
    let before = ended.load(Ordering::Relaxed);
    eventually("streams end", || {
        let more = ended.load(Ordering::Relaxed) - before;
        if more >= count { Ok(()) } else { Err(more) }
    });
}

/// The changes of this kind in the history of the policies.
pub(crate) fn events(server: &Server, event: &str) -> Vec<Value> {
    let page = server.policy_page();
    let history = page["history"].as_array().expect("a history").clone();
    history.into_iter().filter(|change| change["event"] == event).collect()
}
