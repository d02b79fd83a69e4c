//! The order in which a generation's end is told and its KV entries are copied.
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// How many ends were told, and copies made, by the time that events were sent.
#[derive(Default)]
struct Sink {
    saved: Arc<AtomicUsize>,
    ended: usize,
    sent: Vec<(usize, usize)>,
}

impl Events for Sink {
    fn push(&mut self, event: Event) {
        self.ended += usize::from(matches!(event, Event::Finished { .. }));
    }

    fn flush(&mut self) {
        self.sent.push((self.ended, self.saved.load(Ordering::Relaxed)));
    }
}

#[test]
fn clients_know_the_end_before_any_kv_entries_are_saved() {
    let Bench { mut worker, mut engine, .. } = Bench::native();
    let mut sink = Sink { saved: engine.saved.clone(), ..Sink::default() };
    for id in [1, 2] {
        let start = Start { max_tokens: 3, ignore_eos: true, ..start(id, &format!("{id} is a prompt worth keeping")) };
        worker.handle(Command::Start { start: Box::new(start), need: 64 }, &mut engine, &mut sink);
    }
    while worker.step(Duration::ZERO, &mut engine, &mut sink) != Step::Idle {}
    assert_eq!(sink.sent, [(0, 0), (2, 0)], "their starts, then their ends");
    assert!(sink.saved.load(Ordering::Relaxed) >= 2, "what they left was kept");
    assert!(worker.is_idle() && worker.check());
}

/// What was pushed, and what of it has gone out.
#[derive(Default)]
struct Outbox {
    waiting: Vec<Event>,
    sent: Vec<Event>,
}

impl Events for Outbox {
    fn push(&mut self, event: Event) {
        self.waiting.push(event);
    }

    fn flush(&mut self) {
        self.sent.append(&mut self.waiting);
    }
}

#[test]
fn regression_a_start_is_told_before_the_batch_is_computed() {
    let Bench { mut worker, mut engine, reservation, .. } = Bench::native();
    let mut outbox = Outbox::default();
    let need = reservation.need(11, 40);
    worker.handle(Command::Start { start: Box::new(start(1, "some prompt")), need }, &mut engine, &mut outbox);
    outbox.flush();
    // What goes out after the batch was computed does not go out now.
    engine.fail_in = Some(0);
    worker.step(Duration::ZERO, &mut engine, &mut outbox);
    assert_eq!(outbox.sent.last(), Some(&Event::Started { id: RequestId(1), cached_tokens: 0 }));
    assert!(matches!(outbox.waiting[..], [Event::Failed { .. }]), "{:?}", outbox.waiting);
}

#[test]
fn regression_whoever_computes_what_is_not_finite_ends_at_once_and_leaves_nothing_of_it() {
    let before = "a beginning that several requests share and that takes two steps to compute, ".repeat(2);
    let prompt = |id: u64| {
        format!("{before}then what spoils it: \0 and {id} words with which it would go on for some more steps")
    };
    for cancels in [false, true] {
        let mut bench = Bench::native();
        bench.engine.spoils = Some(Token(0));
        let neighbour = Start { max_tokens: 30, ..start(9, "a neighbour") };
        bench.begin(neighbour.clone());
        (0..3).for_each(|id| bench.begin(start(id, &prompt(id))));
        while bench.events.iter().all(|event| !matches!(event, Event::Failed { .. })) {
            assert_ne!(bench.step(), Step::Idle, "one fails before its prompt is complete");
        }
        if cancels {
            (0..3).for_each(|id| bench.command(Command::Cancel { id: RequestId(id) }));
        }
        bench.run();
        let results = bench.results();
        for id in if cancels { 0..1 } else { 0..3 } {
            let failed = Event::Failed { id: RequestId(id), error: WorkerError::InvalidLogits };
            assert_eq!(results[&id], (String::new(), Some(failed)));
        }
        assert_eq!(results[&9], alone(neighbour));
        // What was computed before is good, and the next one has it.
        bench.begin(Start { max_tokens: 1, ..start(10, &format!("{before}!")) });
        bench.run();
        assert_eq!(bench.results()[&10].0, alone(Start { max_tokens: 1, ..start(10, &format!("{before}!")) }).0);
    }
}
