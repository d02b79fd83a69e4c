//! The order in which a generation's end is told and its cells are copied.
use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use super::*;

/// What happened, in order.
#[derive(Clone, Default)]
struct Log(Rc<RefCell<Vec<String>>>);

impl Log {
    fn note(&self, what: impl Into<String>) {
        self.0.borrow_mut().push(what.into());
    }
}

impl Events for Log {
    fn push(&mut self, event: Event) {
        if let Event::Finished { id, .. } = event {
            self.note(format!("{id} ended"));
        }
    }

    fn flush(&mut self) {
        self.note("sent");
    }
}

struct Logged {
    engine: FakeEngine,
    log: Log,
}

impl Engine for Logged {
    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }
    fn decode(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.engine.decode(batch)
    }
    fn logits(&self, row: usize) -> &[f32] {
        self.engine.logits(row)
    }
    fn truncate(&mut self, seq: SeqId, from: u32) {
        self.engine.truncate(seq, from);
    }
    fn reuse(&self) -> Reuse {
        self.engine.reuse()
    }
    fn share(&mut self, from: SeqId, to: SeqId, range: Range<u32>) -> bool {
        self.engine.share(from, to, range)
    }
    fn save(&mut self, seq: SeqId, range: Range<u32>) -> Option<Vec<u8>> {
        self.log.note("copied");
        self.engine.save(seq, range)
    }
    fn restore(&mut self, seq: SeqId, range: Range<u32>, state: &[u8]) -> bool {
        self.engine.restore(seq, range, state)
    }
}

#[test]
fn clients_know_the_end_before_any_cells_are_copied() {
    let mut bench = Bench::native();
    let mut log = Log::default();
    let mut engine = Logged { engine: bench.engine, log: log.clone() };
    for id in [1, 2] {
        let start = Start { max_tokens: 3, ignore_eos: true, ..start(id, &format!("{id} is a prompt worth keeping")) };
        bench.worker.handle(Command::Start(Box::new(start)), &mut engine, &mut log);
    }
    while bench.worker.step(Duration::ZERO, &mut engine, &mut log) != Step::Idle {}
    let ends = [RequestId(1), RequestId(2)].map(|id| format!("{id} ended"));
    let (told, copied) = (log.0.borrow()[..3].to_vec(), log.0.borrow()[3..].to_vec());
    assert_eq!(told, [&ends[0], &ends[1], "sent"]);
    assert!(!copied.is_empty() && copied.iter().all(|what| what == "copied"), "{copied:?}");
    assert!(bench.worker.is_idle() && bench.worker.check());
}
