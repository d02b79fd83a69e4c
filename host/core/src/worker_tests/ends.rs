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
