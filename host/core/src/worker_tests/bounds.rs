//! Bounds of a worker that change while it runs.
use super::*;
use crate::message::WorkerBounds;

fn tokens(step: Step) -> usize {
    match step {
        Step::Decoded { tokens } => tokens,
        _ => 0,
    }
}

#[test]
fn no_more_sequences_run_than_the_bound_and_those_that_run_go_on() {
    let mut bench = Bench::native();
    (0..6).for_each(|id| bench.begin(start(id, "abc")));
    bench.step();
    bench.command(Command::Bounds(WorkerBounds { sequences: Some(2), step_tokens: None }));
    assert_eq!(bench.worker.facts().running_sequences, 6);
    bench.begin(start(6, "abc"));
    assert_eq!(bench.worker.facts().running_sequences, 6, "it waits");
    (0..4).for_each(|id| bench.command(Command::Cancel { id: RequestId(id) }));
    assert_eq!(bench.worker.facts().running_sequences, 2, "and two run still");
    bench.command(Command::Cancel { id: RequestId(4) });
    assert_eq!(bench.worker.facts().running_sequences, 2, "its turn has come");
    bench.begin(start(7, "abc"));
    bench.command(Command::Bounds(WorkerBounds::default()));
    assert_eq!(bench.worker.facts().running_sequences, 3);
    bench.run();
    assert_eq!(ignore_cached(bench.results()[&7].clone()), alone(start(7, "abc")));
}

#[test]
fn a_step_takes_no_more_tokens_than_the_bound_but_one_of_each_sequence() {
    let mut bench = Bench::native();
    let long = "a long prompt of more than forty-eight tokens, one for each byte";
    bench.command(Command::Bounds(WorkerBounds { sequences: None, step_tokens: Some(16) }));
    bench.begin(start(0, long));
    assert_eq!(tokens(bench.step()), 16);
    bench.command(Command::Bounds(WorkerBounds { sequences: None, step_tokens: Some(1) }));
    assert_eq!(tokens(bench.step()), LIMITS.sequences as usize, "as many as sequences may decode");
    bench.command(Command::Bounds(WorkerBounds { sequences: None, step_tokens: Some(1 << 20) }));
    assert_eq!(tokens(bench.step()), long.len() - 24, "no more than the engine takes");
    bench.run();
    assert_eq!(ignore_cached(bench.results()[&0].clone()), alone(start(0, long)));
}
