//! Sharing, saving and preemption.
use proptest::prelude::*;

use super::*;
use crate::worker::kv::SegmentSize;
use crate::worker::restoring::RestoreBounds;

pub(super) fn cached(bench: &Bench, id: u64) -> u32 {
    match &bench.results()[&id].1 {
        Some(Event::Finished { usage, .. }) => usage.cached_tokens,
        other => panic!("{id} ended with {other:?}"),
    }
}

#[test]
fn a_prefix_of_a_running_request_is_computed_once_however_many_come_at_once() {
    let limits = EngineLimits { kv_tokens: 1024, sequences: 8, batch_tokens: 16, context_tokens: 256 };
    let system = "You are a helpful assistant who answers in one word. ".repeat(2);
    let requests: Vec<Start> =
        (0..8).map(|id| Start { max_tokens: 3, ignore_eos: true, ..start(id, &format!("{system}{id}?")) }).collect();
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::Expected, PrefixCache::new(1 << 20));
    requests.iter().for_each(|request| bench.begin(request.clone()));
    bench.steps(1);
    // All prompts but for their last tokens; the shared part counts once.
    assert_eq!(bench.worker.cache_facts().live_tokens as usize, system.len() + 8);
    bench.run();
    // The shared part once, then two tokens of each prompt and two of each answer (the last is drawn, not decoded).
    assert_eq!(bench.engine.decoded, system.len() + 8 * (2 + 2));
    for request in requests {
        let id = request.id.0;
        assert_eq!(cached(&bench, id), if id == 0 { 0 } else { system.len() as u32 });
        assert_eq!(bench.results()[&id].0, alone(request).0);
    }
}

#[test]
fn when_who_computes_a_prefix_leaves_another_one_goes_on_from_there() {
    let prompt = "a long shared beginning of many words that takes several steps to compute ".repeat(2);
    for steps in 0..4 {
        let mut bench = Bench::native();
        (0..3).for_each(|id| bench.begin(start(id, &format!("{prompt}{id}"))));
        bench.steps(steps);
        bench.command(Command::Cancel { id: RequestId(0) });
        bench.run();
        for id in [1, 2] {
            assert_eq!(bench.results()[&id].0, alone(start(id, &format!("{prompt}{id}"))).0, "after {steps} steps");
        }
    }
}

#[test]
fn a_few_common_tokens_are_computed_and_more_are_fetched() {
    const LEFT: &str = "sixteen letters and what follows";
    for (common, fetched) in [(1, 0), (3, 0), (4, 4), (16, 16)] {
        let mut bench = Bench::native();
        bench.begin(Start { max_tokens: 1, ..start(1, LEFT) });
        bench.run();
        let before = bench.engine.decoded;
        let prompt = format!("{}{}", &LEFT[..common], "#".repeat(20));
        bench.begin(Start { max_tokens: 1, ..start(2, &prompt) });
        assert_eq!(bench.step(), Step::Decoded { tokens: prompt.len() - fetched }, "all of it in one step");
        bench.run();
        assert_eq!((cached(&bench, 2), bench.engine.decoded - before), (fetched as u32, prompt.len() - fetched));
        assert_eq!(bench.results()[&2].0, alone(Start { max_tokens: 1, ..start(2, &prompt) }).0);
    }
}

#[test]
fn what_a_request_leaves_behind_serves_the_next_turn_of_its_tenant_only() {
    let mut bench = Bench::native();
    bench.begin(Start { ignore_eos: true, ..start(1, "the first turn of a conversation") });
    bench.run();
    let whole = format!("the first turn of a conversation{} and more", bench.results()[&1].0);
    let before = bench.engine.decoded;
    bench.begin(Start { max_tokens: 1, ..start(2, &whole) });
    bench.begin(Start { max_tokens: 1, namespace: Namespace::Tenant("other".into()), ..start(3, &whole) });
    bench.run();
    // The last token that the first turn drew was never decoded.
    let kept = whole.len() as u32 - " and more".len() as u32 - 1;
    assert_eq!((cached(&bench, 2), cached(&bench, 3)), (kept, 0));
    assert_eq!(bench.engine.decoded - before, whole.len() - kept as usize + whole.len());
    assert_eq!(bench.results()[&2].0, alone(Start { max_tokens: 1, ..start(2, &whole) }).0);
}

#[test]
fn four_times_too_many_all_finish_as_if_they_had_been_alone() {
    let limits = EngineLimits { sequences: 64, kv_tokens: 256, batch_tokens: 64, context_tokens: 128 };
    for reserve in [Reserve::None, Reserve::Expected, Reserve::Full] {
        for reuse in [Reuse::Ranges, Reuse::Whole] {
            let mut bench = Bench::with(limits, Arc::new(Native), reserve, PrefixCache::new(4096));
            bench.engine.reuse = reuse;
            let requests: Vec<Start> = (0..64u64)
                .map(|id| {
                    let mut request = start(id, &format!("prompt {}", id % 16));
                    (request.max_tokens, request.ignore_eos) = (20 + id as u32 % 40, true);
                    request.params = SamplingParams { seed: id, ..SamplingParams::default() };
                    request
                })
                .collect();
            requests.iter().for_each(|request| bench.begin(request.clone()));
            bench.run();
            let preemptions = bench.events.iter().filter(|event| matches!(event, Event::Preempted { .. })).count();
            match reserve {
                Reserve::None => assert!(preemptions > 0),
                Reserve::Full => assert_eq!(preemptions, 0),
                Reserve::Expected => {}
            }
            let results = bench.results();
            for request in requests {
                let id = request.id.0;
                assert_eq!(results[&id].0, alone(request).0, "{id} under {reserve:?} and {reuse:?}");
            }
        }
    }
}

#[test]
fn preempts_the_lowest_class_and_of_it_the_latest() {
    let limits = EngineLimits { sequences: 8, kv_tokens: 160, batch_tokens: 64, context_tokens: 128 };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::None, PrefixCache::new(1 << 20));
    for (id, priority) in [(1, Priority::Low), (2, Priority::Normal), (3, Priority::Normal), (4, Priority::High)] {
        let prompt = id.to_string();
        bench.begin(Start { priority, max_tokens: 100, ignore_eos: true, ..start(id, &prompt) });
    }
    bench.run();
    let preempted = preempted(&bench);
    assert_eq!(preempted[..2], [1, 3], "{preempted:?}");
    assert!(!preempted.contains(&4));
}

/// The requests that were preempted, in order.
fn preempted(bench: &Bench) -> Vec<u64> {
    let id = |event: &Event| if let Event::Preempted { id } = event { Some(id.0) } else { None };
    bench.events.iter().filter_map(id).collect()
}

#[test]
fn regression_a_tenant_that_grows_takes_nothing_from_one_that_holds_less() {
    let limits = EngineLimits { sequences: 8, kv_tokens: 320, batch_tokens: 64, context_tokens: 256 };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::None, PrefixCache::new(1 << 20));
    let long = |id: u64, tenant: &str| Start { max_tokens: 150, ..of(id, tenant, "p") };
    (1..=5).for_each(|id| bench.begin(long(id, "many")));
    bench.begin(Start { max_tokens: 100, ..long(6, "one") });
    bench.run();
    let gave_way = preempted(&bench);
    assert!(gave_way.len() > 1 && !gave_way.contains(&6), "{gave_way:?}");
    // And whoever comes later goes before those that were preempted.
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::None, PrefixCache::new(1 << 20));
    (1..=5).for_each(|id| bench.begin(long(id, "many")));
    while preempted(&bench).len() < 2 {
        bench.step();
    }
    bench.begin(long(6, "one"));
    bench.steps(64);
    let last = bench.events.iter().rev().find_map(|e| if let Event::Admitted { id } = e { Some(id.0) } else { None });
    assert_eq!(last, Some(6));
}

fn of(id: u64, tenant: &str, prompt: &str) -> Start {
    Start { tenant: tenant.into(), max_tokens: 60, ignore_eos: true, ..start(id, prompt) }
}

#[test]
fn regression_one_long_request_stays_while_those_of_many_tenants_grow() {
    let limits = EngineLimits { sequences: 8, kv_tokens: 400, batch_tokens: 64, context_tokens: 350 };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::None, PrefixCache::new(1 << 20));
    bench.begin(of(1, "long", &"p".repeat(200)));
    (2..=6).for_each(|id| bench.begin(of(id, &format!("t{id}"), &id.to_string())));
    bench.run();
    let gave_way = preempted(&bench);
    assert!(!gave_way.is_empty() && !gave_way.contains(&1), "{gave_way:?}");
}

#[test]
fn regression_long_prompts_count_in_what_a_tenant_holds() {
    let limits = EngineLimits { sequences: 8, kv_tokens: 420, batch_tokens: 64, context_tokens: 350 };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::None, PrefixCache::new(1 << 20));
    (1..=2).for_each(|id| bench.begin(of(id, "prompts", &id.to_string().repeat(120))));
    (3..=4).for_each(|id| bench.begin(of(id, "answers", &id.to_string())));
    bench.run();
    let gave_way = preempted(&bench);
    assert!(gave_way.first() == Some(&2), "{gave_way:?}");
}

#[test]
fn a_request_preempted_by_command_goes_on_unchanged_after_the_others() {
    let mut bench = Bench::native();
    let request = |id: u64| Start { ignore_eos: true, ..start(id, &format!("request {id}")) };
    (1..3).for_each(|id| bench.begin(request(id)));
    bench.steps(5);
    bench.command(Command::Preempt { id: RequestId(1) });
    assert_eq!(bench.worker.facts().running_sequences, 1);
    bench.run();
    for id in [1, 2] {
        assert_eq!(bench.results()[&id].0, alone(request(id)).0);
    }
}

#[test]
fn whoever_comes_in_the_place_of_a_preempted_request_goes_before_it() {
    let limits = EngineLimits { sequences: 2, ..LIMITS };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::Full, PrefixCache::new(1 << 20));
    let request = |id: u64| Start { ignore_eos: true, ..start(id, &format!("request {id}")) };
    (1..=2).for_each(|id| bench.begin(request(id)));
    bench.steps(5);
    // Preempted ones that wait are overtaken, too.
    for id in [1, 2] {
        bench.command(Command::Preempt { id: RequestId(id) });
        bench.begin(request(id + 2));
    }
    bench.run();
    let admitted: Vec<u64> =
        bench.events.iter().filter_map(|e| if let Event::Admitted { id } = e { Some(id.0) } else { None }).collect();
    assert_eq!(admitted, [1, 2, 3, 4, 1, 2]);
    for id in 1..=4 {
        assert_eq!(bench.results()[&id].0, alone(request(id)).0);
    }
}

#[test]
fn a_request_that_waits_for_kv_gives_way_as_one_that_runs() {
    // Room for one.
    let limits = EngineLimits { kv_tokens: 60, context_tokens: 60, sequences: 4, ..LIMITS };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::Full, PrefixCache::new(1 << 20));
    let request = |id: u64| Start { max_tokens: 40, ignore_eos: true, ..start(id, &format!("request {id}")) };
    (1..=3).for_each(|id| bench.begin(request(id)));
    bench.command(Command::Preempt { id: RequestId(2) });
    bench.run();
    let admitted: Vec<u64> =
        bench.events.iter().filter_map(|e| if let Event::Admitted { id } = e { Some(id.0) } else { None }).collect();
    assert_eq!(admitted, [1, 3, 2]);
}

#[test]
fn regression_a_first_token_in_common_keeps_no_segment_warm() {
    let prompt = |i: u64| format!("^{} and some more words that are long enough", (b'A' + i as u8) as char);
    let cache = PrefixCache::new(3 * 4 * prompt(0).len() as u64);
    let mut bench = Bench::with(LIMITS, Arc::new(Native), Reserve::Full, cache);
    for id in 0..8 {
        bench.begin(Start { max_tokens: 1, ..start(id, &prompt(id)) });
        bench.run();
    }
    for (id, of) in [(10, 7), (11, 0)] {
        bench.begin(Start { max_tokens: 1, ..start(id, &prompt(of)) });
        bench.run();
    }
    assert!(cached(&bench, 10) > 30 && cached(&bench, 11) <= 1, "{} {}", cached(&bench, 10), cached(&bench, 11));
}

/// A random life of a worker with little KV capacity.
#[derive(Debug, Clone)]
enum Act {
    Begin { prompt: Vec<u8>, max_tokens: u32, tenant: bool, low: bool, adapter: u8 },
    Cancel(u64),
    Preempt(u64),
    Pause(u64),
    Resume(u64),
    Step(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let begin = (prop::collection::vec(0u8..2, 1..40), 1u32..50, any::<bool>(), any::<bool>(), 0u8..3);
    prop_oneof![
        4 => begin.prop_map(|(prompt, max_tokens, tenant, low, adapter)| Act::Begin { prompt, max_tokens, tenant, low, adapter }),
        1 => (0u64..12).prop_map(Act::Cancel),
        1 => (0u64..12).prop_map(Act::Preempt),
        1 => (0u64..12).prop_map(Act::Pause),
        1 => (0u64..12).prop_map(Act::Resume),
        4 => (1u8..9).prop_map(Act::Step),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn sharing_saving_preemption_and_neighbours_under_other_adapters_change_no_output(
        acts in prop::collection::vec(act(), 1..60),
        ram in prop_oneof![Just(0u64), Just(300), Just(1 << 20)],
        reserve in prop_oneof![Just(Reserve::None), Just(Reserve::Expected), Just(Reserve::Full)],
        drafts in any::<bool>(),
        small in any::<bool>(),
        in_place in any::<bool>(),
        adapters in any::<bool>(),
    ) {
        let limits = EngineLimits { sequences: 6, kv_tokens: 128, batch_tokens: 24, context_tokens: 96 };
        let mut bench = Bench::with(limits, Arc::new(Native), reserve, PrefixCache::new(ram));
        bench.engine.memory = 2;
        bench.engine.restores_in_place = in_place;
        if small {
            // A few tokens a segment, and less than a segment a step.
            bench.worker.roster.restore_bounds = RestoreBounds { bytes: 10, segments: 2 };
            bench.worker.roster.kv.segment_size = SegmentSize { bytes: 12, min_tokens: 1, max_tokens: 8, tokens: 3 };
        }
        if drafts {
            bench.draft_by_lookup(3);
        }
        let mut begun = BTreeMap::new();
        for act in acts {
            match act {
                Act::Begin { prompt, max_tokens, tenant, low, adapter } => {
                    if bench.worker.facts().free_sequences == 0 { continue }
                    let id = begun.len() as u64;
                    let text: String = prompt.iter().map(|&b| if b == 0 { "left " } else { "right " }).take(14).collect();
                    let mut request = Start { max_tokens, ignore_eos: true, ..start(id, &text) };
                    request.namespace = if tenant { Namespace::Tenant("a".into()) } else { Namespace::Shared };
                    // Of three sets, one of which is none.
                    request.adapters = if adapters { set(adapter) } else { AdapterSet::default() };
                    request.session = (max_tokens % 4 == 0).then(|| "a conversation".into());
                    request.priority = if low { Priority::Low } else { Priority::Normal };
                    begun.insert(id, request.clone());
                    bench.begin(request);
                }
                Act::Cancel(id) => bench.command(Command::Cancel { id: RequestId(id) }),
                Act::Preempt(id) => bench.command(Command::Preempt { id: RequestId(id) }),
                Act::Pause(id) => bench.command(Command::Pause { id: RequestId(id) }),
                Act::Resume(id) => bench.command(Command::Resume { id: RequestId(id) }),
                Act::Step(n) => bench.steps(n.into()),
            }
        }
        begun.keys().for_each(|&id| bench.command(Command::Resume { id: RequestId(id) }));
        bench.run();
        let results = bench.results();
        for (id, request) in begun {
            let (text, end) = &results[&id];
            match end {
                Some(Event::Finished { reason: FinishReason::Cancelled, .. }) => {}
                // Of more paused ones than may run.
                Some(Event::Failed { error: WorkerError::SlowReader, .. }) => {}
                Some(Event::Finished { .. }) => {
                    let mut single = Bench::with(limits, Arc::new(Native), Reserve::Full, PrefixCache::new(0));
                    single.engine.memory = 2;
                    single.begin(request);
                    single.run();
                    prop_assert_eq!(text, &single.results()[&id].0);
                }
                other => prop_assert!(false, "{} ended with {:?}", id, other),
            }
        }
    }

    #[test]
    fn the_account_is_exact_under_any_order_of_commands(
        acts in prop::collection::vec((0u8..4, 0u64..20, 1usize..80, 1u32..60), 1..80)
    ) {
        let mut bench = Bench::native();
        let mut begun = std::collections::BTreeSet::new();
        for (act, id, prompt, max_tokens) in acts {
            match act {
                0 if begun.insert(id) => bench.begin(Start { max_tokens, ..start(id, &"p".repeat(prompt)) }),
                1 => bench.command(Command::Cancel { id: RequestId(id) }),
                2 => bench.command(Command::PrefillBudget { tokens: max_tokens }),
                _ => { bench.step(); }
            }
        }
        bench.run();
        let results = bench.results();
        prop_assert!(begun.iter().all(|id| results[id].1.is_some()), "every request ends");
    }
}
