//! A token of a running generation costs the worker's thread no allocation.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "support/worker.rs"]
mod support;

use std::time::Duration;

use camshaft_core::engine::EngineLimits;
use camshaft_core::ids::Token;
use camshaft_core::message::Event;
use camshaft_core::sampling::SamplingParams;
use camshaft_core::worker::Step;
use support::{Even, start, worker};

const LIMITS: EngineLimits = EngineLimits { sequences: 8, kv_tokens: 8192, batch_tokens: 64, context_tokens: 1024 };

#[test]
fn tokens_of_running_generations_allocate_nothing() {
    let mut worker = worker(LIMITS, 1 << 20, Duration::from_millis(50));
    // All letters are possible.
    let logits = (0..257).map(|id| if (97..123).contains(&id) { 1.0 } else { -5.0 }).collect();
    let mut engine = Even { limits: LIMITS, logits, on_decode: |_| {} };
    let mut events = Vec::with_capacity(1024);
    let usual = SamplingParams::llama_cpp();
    let penalties = SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.2, ..SamplingParams::llama_cpp() };
    let whole = SamplingParams::default();
    let nucleus = SamplingParams { top_p: 0.9, ..whole.clone() };
    for (id, params) in (1..).zip([SamplingParams::greedy(), usual.clone(), penalties, usual, whole, nucleus]) {
        // Neither ever comes: one that is held back for, and one that is not.
        let stop = vec!["\u{1}never".to_owned(), "0a".to_owned()];
        worker.handle(start(id, (0..20).map(Token).collect(), 900, params, stop), &mut engine, &mut events);
    }
    let mut now = Duration::ZERO;
    let mut steps = |count: usize| {
        let mut deltas = 0;
        for _ in 0..count {
            now += Duration::from_millis(1);
            assert!(matches!(worker.step(now, &mut engine, &mut events), Step::Decoded { .. }));
            deltas += events.iter().filter(|event| matches!(event, Event::Delta { .. })).count();
            events.clear();
        }
        deltas
    };
    // Prompts, and buffers that grow to their size.
    steps(300);
    let mut deltas = 0;
    let counted = allocation_counter::measure(|| deltas = steps(100));
    assert!(deltas > 300, "{deltas} pieces of text came of 400 tokens");
    assert_eq!(counted.count_total, 0, "allocations for 400 tokens");
}
