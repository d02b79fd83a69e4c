//! Readers who are behind.
use super::*;

fn request(id: u64) -> Start {
    Start { ignore_eos: true, ..start(id, &format!("request {id}")) }
}

fn pause(bench: &mut Bench, id: u64) {
    bench.command(Command::Pause { id: RequestId(id) });
}

fn resume(bench: &mut Bench, id: u64) {
    bench.command(Command::Resume { id: RequestId(id) });
}

fn ended_as_alone(bench: &Bench, request: Start) {
    let id = request.id.0;
    assert_eq!(ignore_cached(bench.results()[&id].clone()), ignore_cached(alone(request)), "{id}");
}

#[test]
fn a_paused_request_waits_until_it_is_resumed_and_blocks_nobody() {
    let mut bench = Bench::native();
    (1..3).for_each(|id| bench.begin(request(id)));
    bench.steps(5);
    bench.command(Command::Pause { id: RequestId(1) });
    bench.command(Command::Pause { id: RequestId(99) });
    bench.run();
    assert!(bench.results()[&1].1.is_none(), "it is not over");
    assert_eq!(bench.worker.facts().kv_free, LIMITS.kv_tokens, "others may have what it holds");
    bench.begin(request(3));
    bench.run();
    bench.command(Command::Resume { id: RequestId(1) });
    bench.run();
    for id in [1, 2, 3] {
        assert_eq!(bench.results()[&id].0, alone(request(id)).0);
    }
    bench.begin(request(4));
    bench.command(Command::Pause { id: RequestId(4) });
    bench.command(Command::Cancel { id: RequestId(4) });
    bench.run();
    assert!(matches!(bench.results()[&4].1, Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    let counters = bench.worker.take_counters();
    assert_eq!((counters.preemptions, counters.pauses), (0, 2), "a pause is no preemption");
}

#[test]
fn regression_paused_readers_keep_nobody_waiting() {
    let limits = EngineLimits { sequences: 4, kv_tokens: 1024, batch_tokens: 64, context_tokens: 256 };
    let mut bench = Bench::new(limits, Arc::new(Native));
    (1..5).for_each(|id| bench.begin(request(id)));
    bench.steps(5);
    assert_eq!(bench.worker.facts().free_sequences, 0);
    (1..5).for_each(|id| pause(&mut bench, id));
    let facts = bench.worker.facts();
    assert_eq!((facts.free_sequences, facts.running_sequences, facts.kv_free), (4, 0, 1024));
    // Those who come next run at once, in the places of the ones that were paused first.
    for id in 5..9 {
        bench.begin(request(id));
        assert_eq!(bench.worker.facts().running_sequences, id as u32 - 4, "{id} was admitted at once");
    }
    (1..5).for_each(|id| resume(&mut bench, id));
    assert_eq!(bench.worker.facts().free_sequences, 0, "those who came back go before whoever is new");
    bench.run();
    (1..9).for_each(|id| ended_as_alone(&bench, request(id)));
}

#[test]
fn regression_a_reader_who_is_behind_again_and_again_moves_no_kv_while_nobody_needs_it() {
    let mut bench = Bench::native();
    (1..3).for_each(|id| bench.begin(request(id)));
    for _ in 0..10 {
        bench.steps(2);
        pause(&mut bench, 1);
        bench.steps(1);
        resume(&mut bench, 1);
    }
    let saved = bench.engine.saved.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!((saved, bench.engine.restored.len()), (0, 0));
    assert_eq!(bench.worker.take_counters().pauses, 10);
    bench.run();
    (1..3).for_each(|id| ended_as_alone(&bench, request(id)));
}

#[test]
fn regression_kv_of_paused_readers_is_offered_once_although_they_share_it() {
    let mut bench = Bench::native();
    let shared = "a beginning that all of them have in common, of some length";
    let request = |id: u64| Start { ignore_eos: true, ..start(id, &format!("{shared} {id}")) };
    (1..4).for_each(|id| bench.begin(request(id)));
    bench.steps(6);
    let before = bench.worker.facts();
    (1..3).for_each(|id| pause(&mut bench, id));
    let some = bench.worker.facts();
    let held = shared.len() as u32 + 2 + 40;
    assert!(some.kv_free > before.kv_free && some.kv_free + held <= 1024, "the third still holds what they share");
    pause(&mut bench, 3);
    assert_eq!(bench.worker.facts().kv_free, 1024);
    // All of it goes to one request that needs it.
    bench.begin(Start { ignore_eos: true, max_tokens: 200, ..start(9, "other") });
    (1..4).for_each(|id| resume(&mut bench, id));
    bench.run();
    (1..4).for_each(|id| ended_as_alone(&bench, request(id)));
}

#[test]
fn regression_what_paused_readers_leave_is_bounded_like_the_rest_of_the_cache() {
    let limits = EngineLimits { sequences: 4, kv_tokens: 256, batch_tokens: 64, context_tokens: 128 };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::Full, PrefixCache::new(300));
    let request = |id: u64| Start { max_tokens: 60, ..request(id) };
    for id in 0..12 {
        bench.begin(request(id));
        bench.steps(30);
        pause(&mut bench, id);
        assert!(bench.worker.cache_facts().ram_bytes <= 300);
    }
    // As many as may run may be paused; past that, the one paused for longest ends.
    for (id, (_, end)) in bench.results() {
        let cut = matches!(end, Some(Event::Failed { error: WorkerError::SlowReader, .. }));
        assert_eq!(cut, id < 8, "{id}: {end:?}");
    }
    (8..12).for_each(|id| resume(&mut bench, id));
    bench.run();
    (8..12).for_each(|id| assert_eq!(bench.results()[&id].0, alone(request(id)).0));
}

#[test]
fn a_pool_gives_the_places_of_paused_requests_to_others() {
    let limits = EngineLimits { sequences: 2, ..LIMITS };
    let mut reports = super::reports::Pair::new(limits);
    (1..5).for_each(|id| reports.submit(request(id)));
    reports.steps(3);
    assert_eq!((reports.pool.running(), reports.pool.waiting()), (2, 2));
    reports.command(Command::Pause { id: RequestId(1) });
    reports.command(Command::Pause { id: RequestId(2) });
    reports.steps(1);
    assert_eq!((reports.pool.running(), reports.pool.waiting()), (2, 0), "the next two run");
    reports.command(Command::Resume { id: RequestId(1) });
    reports.command(Command::Resume { id: RequestId(2) });
    reports.run();
    let results = reports.results();
    (1..5).for_each(|id| assert_eq!(results[&id], alone(request(id)).0, "{id}"));
}

#[test]
fn regression_a_paused_reader_gives_up_nothing_for_a_request_that_would_still_not_fit() {
    let limits = EngineLimits { sequences: 4, kv_tokens: 256, batch_tokens: 128, context_tokens: 200 };
    let mut bench = Bench::new(limits, Arc::new(Native));
    let shared = "a beginning that two of them have in common. ".repeat(2);
    let request = |id: u64, prompt: &str, max_tokens: u32| Start { max_tokens, ignore_eos: true, ..start(id, prompt) };
    bench.begin(request(1, &format!("{shared}1"), 20));
    bench.begin(request(2, "another one", 100));
    bench.steps(4);
    pause(&mut bench, 1);
    let held = bench.worker.facts().kv_used;
    let (free, beginning) = (limits.kv_tokens - held, shared.len() as u32);
    // What is free and what the paused one holds would do, were it not for the beginning, which the next one has to hold
    // when the paused one does so no more.
    let (given_up, wants) = (beginning + 1 + 20, free + 60);
    assert!(wants < free + given_up && wants + beginning >= free + given_up);
    bench.begin(request(3, &format!("{shared}3"), wants));
    let preempted = bench.events.iter().any(|event| matches!(event, Event::Preempted { .. }));
    assert!(!preempted && bench.worker.facts().kv_used == held, "it waits, and nobody gave up anything");
    // One that fits gets it.
    bench.command(Command::Cancel { id: RequestId(3) });
    bench.begin(request(4, &format!("{shared}4"), free + 2));
    let admitted = |id| bench.events.contains(&Event::Admitted { id: RequestId(id) });
    assert!(admitted(4) && !admitted(3));
    resume(&mut bench, 1);
    bench.run();
    ended_as_alone(&bench, request(1, &format!("{shared}1"), 20));
}
