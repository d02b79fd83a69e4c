//! Sequences under different adapters take turns at the engine, and share nothing.
use super::kv::cached;
use super::*;

fn under(number: u8, start: Start) -> Start {
    Start { adapters: set(number), ignore_eos: true, ..start }
}

fn text(bench: &Bench, id: u64) -> String {
    bench.results().remove(&id).map(|(text, _)| text).unwrap_or_default()
}

fn alone(request: &Start) -> String {
    let mut bench = Bench::native();
    bench.begin(request.clone());
    bench.run();
    text(&bench, request.id.0)
}

/// Steps until a request has its first token.
fn steps_to_first_token(bench: &mut Bench, id: u64) -> usize {
    let told = |event: &Event| matches!(event, Event::Delta { id: of, .. } if of.0 == id);
    for steps in 0..10_000 {
        if bench.events.iter().any(told) {
            return steps;
        }
        bench.step();
    }
    panic!("{id} has no token");
}

#[test]
fn requests_under_different_adapters_run_side_by_side_as_each_alone() {
    let prompt = "the same prompt of all of them, which is a long one";
    let requests: Vec<Start> = (0..6).map(|id| under((id % 3) as u8, start(id, prompt))).collect();
    let mut bench = Bench::native();
    requests.iter().for_each(|request| bench.begin(request.clone()));
    bench.run();
    for request in &requests {
        assert_eq!(text(&bench, request.id.0), alone(request), "{}", request.id);
    }
    assert_ne!(text(&bench, 0), text(&bench, 1));
    assert_ne!(text(&bench, 1), text(&bench, 2));
    assert_eq!(text(&bench, 1), text(&bench, 4));
}

#[test]
fn all_sets_advance_by_turns_of_a_few_steps() {
    let mut bench = Bench::native();
    for id in 0..3 {
        bench.begin(under(id as u8, Start { max_tokens: 120, ..start(id, "p") }));
    }
    bench.steps(4 * 3 * 5);
    let drawn = |bench: &Bench, id| text(bench, id).len();
    assert!((0..3).all(|id| drawn(&bench, id) == 20), "{:?}", [0, 1, 2].map(|id| drawn(&bench, id)));
    // Each turn changes the adapters once.
    assert_eq!(bench.engine.switches.len(), 3 * 5 - 1);
    assert_eq!(bench.worker.take_counters().adapter_switches, 3 * 5 - 1);
}

#[test]
fn requests_under_one_set_never_change_adapters_after_the_first_step() {
    for number in [0, 1] {
        let mut bench = Bench::native();
        for id in 0..4 {
            bench.begin(under(number, start(id, "some prompt")));
            bench.steps(3);
        }
        bench.run();
        bench.begin(under(number, start(9, "another")));
        bench.run();
        assert_eq!(bench.engine.switches.len(), usize::from(number), "set {number}");
        assert_eq!(bench.worker.take_counters().adapter_switches, u64::from(number));
    }
}

/// Otherwise whoever goes on asking under new sets would keep an old one waiting for ever.
#[test]
fn a_set_waits_for_those_that_were_there_and_not_for_those_that_come() {
    let mut bench = Bench::native();
    bench.begin(under(1, Start { max_tokens: 200, ..start(1, "first") }));
    bench.step();
    bench.begin(under(2, Start { max_tokens: 200, ..start(2, "waits") }));
    let waits = |bench: &Bench| text(bench, 2).len();
    for round in 0..20u8 {
        let (before, id) = (waits(&bench), 10 + u64::from(round));
        bench.begin(under(10 + round, Start { max_tokens: 3, ..start(id, "new") }));
        bench.steps(3 * 4);
        assert!(waits(&bench) > before, "round {round}");
    }
}

#[test]
fn a_tenant_with_many_sets_takes_no_more_turns_from_others() {
    let mut bench = Bench::native();
    for id in 1..7 {
        let request = under(id as u8, Start { max_tokens: 120, ..start(id, "many") });
        bench.begin(Start { tenant: "many".into(), ..request });
    }
    bench.begin(Start { tenant: "one".into(), ..under(0, Start { max_tokens: 120, ..start(9, "one") }) });
    bench.steps(160);
    let (one, many) = (text(&bench, 9).len(), (1..7).map(|id| text(&bench, id).len()).collect::<Vec<_>>());
    assert!(one.abs_diff(80) <= 4, "{one} of 160");
    let (most, least) = (many.iter().max().unwrap(), many.iter().min().unwrap());
    assert!(most - least <= 4, "{many:?}");
}

/// Whoever shares a set with others is served with them, and its own sets have their turns all the same.
#[test]
fn no_set_starves_whatever_its_tenants_have_beside_it() {
    let tenants = [("a", 0), ("b", 0), ("b", 1), ("c", 2), ("d", 3), ("d", 0)];
    let mut bench = Bench::native();
    for (id, (tenant, number)) in (0..).zip(tenants) {
        let request = under(number, Start { max_tokens: 120, ..start(id, "prompt") });
        bench.begin(Start { tenant: tenant.into(), ..request });
    }
    bench.steps(160);
    for id in 0..6 {
        assert!(text(&bench, id).len() >= 20, "{id}: {}", text(&bench, id).len());
    }
}

#[test]
fn a_long_prompt_under_one_set_does_not_stop_streams_under_another() {
    let limits = EngineLimits { sequences: 4, kv_tokens: 4096, batch_tokens: 16, context_tokens: 2048 };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::Full, PrefixCache::new(0));
    bench.begin(under(1, Start { max_tokens: 400, ..start(1, "stream") }));
    bench.steps(8);
    let before = text(&bench, 1).len();
    bench.begin(under(2, start(2, &"long ".repeat(200))));
    bench.steps(16);
    assert_eq!(text(&bench, 1).len() - before, 8);
    assert!(steps_to_first_token(&mut bench, 2) > 0);
}

#[test]
fn prefixes_are_found_only_under_the_same_adapters() {
    let prompt = "a prefix that is long enough to be saved and found again";
    let mut bench = Bench::native();
    let mut id = 0;
    let mut cached_under = |adapters: AdapterSet| {
        id += 1;
        bench.begin(Start { adapters, max_tokens: 1, ..start(id, prompt) });
        bench.run();
        cached(&bench, id)
    };
    let all = prompt.len() as u32 - 1;
    assert_eq!(cached_under(set(0)), 0);
    assert_eq!(cached_under(set(1)), 0, "not what was computed without adapters");
    assert_eq!(cached_under(set(0)), all);
    assert_eq!(cached_under(set(1)), all);
    let other_scale = AdapterSet::new([(AdapterDigest::new([1; 32]), 0.5)]);
    assert_eq!(cached_under(other_scale), 0);
    let both = AdapterSet::new([(AdapterDigest::new([1; 32]), 1.0), (AdapterDigest::new([2; 32]), 2.0)]);
    assert_eq!(cached_under(both), 0);
    let without_effect = AdapterSet::new([(AdapterDigest::new([1; 32]), 0.0)]);
    assert_eq!(cached_under(without_effect), all, "it is the model as it is");
}

#[test]
fn requests_that_run_at_once_share_no_prefix_under_other_adapters() {
    let prompt = "what all of them begin with, and all of it is the same";
    let mut bench = Bench::native();
    for id in 0..4 {
        bench.begin(under((id % 2) as u8, start(id, prompt)));
    }
    bench.run();
    // The prompt once for each set, but for the last token.
    let prompts = 2 * (prompt.len() - 1) + 4;
    assert_eq!(bench.engine.decoded, prompts + 4 * 39);
}

#[test]
fn a_session_is_another_one_under_other_adapters() {
    let turn = "a turn of some length that is worth keeping";
    let mut bench = Bench::native();
    for (id, number) in [(1, 0), (2, 1)] {
        bench.begin(under(number, Start { session: Some("s".into()), max_tokens: 1, ..start(id, turn) }));
        bench.run();
        assert_eq!(cached(&bench, id), 0);
    }
    assert_eq!(bench.worker.cache_facts().sessions, 2);
    let close = |number: u8, id| {
        let namespace = Namespace::Tenant("t".into()).under(&set(number));
        Command::CloseSession { id: RequestId(id), namespace, session: "s".into() }
    };
    bench.command(close(2, 90));
    assert_eq!(bench.worker.cache_facts().sessions, 2);
    bench.command(close(1, 91));
    assert_eq!(bench.worker.cache_facts().sessions, 1);
    bench.command(close(0, 92));
    assert_eq!(bench.worker.cache_facts().sessions, 0);
}

#[test]
fn an_adapter_is_let_go_only_when_no_request_uses_it() {
    let digest = AdapterDigest::new([1; 32]);
    let mut bench = Bench::native();
    bench.begin(under(1, start(1, "some prompt")));
    bench.steps(2);
    bench.command(Command::ForgetAdapter { adapter: digest });
    assert_eq!(bench.engine.forgotten, []);
    bench.run();
    bench.command(Command::ForgetAdapter { adapter: digest });
    assert_eq!(bench.engine.forgotten, [digest]);
    // What comes next is computed without it, and then it has to be applied again.
    bench.begin(start(3, "without it"));
    bench.run();
    assert_eq!(text(&bench, 3), alone(&start(3, "without it")));
    bench.begin(under(1, start(2, "another prompt")));
    bench.run();
    assert_eq!(bench.worker.take_counters().adapter_switches, 2);
    assert_eq!(text(&bench, 2), alone(&under(1, start(2, "another prompt"))));
}

#[test]
fn an_engine_that_fails_under_one_set_fails_only_its_requests() {
    let mut bench = Bench::native();
    for id in 0..2 {
        bench.begin(under(id as u8, start(id, "prompt")));
    }
    bench.steps(2);
    bench.engine.fail_in = Some(0);
    bench.run();
    let failed = |id| matches!(bench.results()[&id].1, Some(Event::Failed { .. }));
    assert_eq!([failed(0), failed(1)], [true, false]);
    assert_eq!(text(&bench, 1), alone(&under(1, start(1, "prompt"))));
}

#[test]
fn drafts_are_made_for_the_sequences_of_the_step() {
    let requests: Vec<Start> =
        (0..4).map(|id| under((id % 2) as u8, Start { max_tokens: 80, ..start(id, "again and again and") })).collect();
    let mut bench = Bench::native();
    bench.engine.memory = 2;
    bench.draft_by_lookup(4);
    requests.iter().for_each(|request| bench.begin(request.clone()));
    bench.run();
    for request in requests {
        let mut single = Bench::native();
        single.engine.memory = 2;
        single.begin(request.clone());
        single.run();
        assert_eq!(text(&bench, request.id.0), text(&single, request.id.0));
    }
    let usage = |id| match &bench.results()[&id].1 {
        Some(Event::Finished { usage, .. }) => usage.accepted_tokens,
        other => panic!("{other:?}"),
    };
    assert!((0..4).all(|id| usage(id) > 0), "{:?}", [0, 1, 2, 3].map(usage));
}
