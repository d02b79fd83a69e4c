use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::engine::Reuse;
use crate::fake::FakeEngine;
use crate::ids::{Generation, TenantId, Token};
use crate::message::{Delta, Usage};
use crate::policy::{Fault, FaultKind, Priority, TokenSampler};
use crate::sampling::{Row, SamplingParams, StandardChain};

const LIMITS: EngineLimits = EngineLimits { sequences: 8, kv_tokens: 1024, batch_tokens: 64, context_tokens: 256 };

#[derive(Debug)]
struct Native;

impl SamplerHook for Native {
    fn open(&self, _: Generation, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, Fault> {
        Ok(Box::new(StandardChain::new(request.params.clone())))
    }
}

fn start(id: u64, prompt: &str) -> Start {
    Start {
        id: RequestId(id),
        model: "fake".to_owned(),
        tenant: TenantId::from("t"),
        priority: Priority::Normal,
        generation: Generation(0),
        prompt: prompt.bytes().map(|b| Token(u32::from(b))).collect(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens: 40,
        stop: Vec::new(),
        ignore_eos: false,
        logprobs: None,
    }
}

struct Bench {
    worker: Worker,
    engine: FakeEngine,
    events: Vec<Event>,
    now: Duration,
}

impl Bench {
    fn new(limits: EngineLimits, samplers: Arc<dyn SamplerHook>) -> Self {
        Self::with(limits, samplers, Reserve::Full, PrefixCache::new(1 << 20))
    }

    fn with(limits: EngineLimits, samplers: Arc<dyn SamplerHook>, reserve: Reserve, cache: PrefixCache) -> Self {
        let vocabulary = FakeEngine::info(limits).vocabulary;
        let step_target = Duration::from_millis(50);
        let worker =
            Worker::new(WorkerOptions { id: WorkerId(0), limits, vocabulary, samplers, reserve, cache, step_target });
        Self { worker, engine: FakeEngine::new(limits, 3), events: Vec::new(), now: Duration::ZERO }
    }

    fn native() -> Self {
        Self::new(LIMITS, Arc::new(Native))
    }

    fn command(&mut self, command: Command) {
        self.worker.handle(command, &mut self.engine, &mut self.events);
        assert!(self.worker.check());
    }

    fn begin(&mut self, start: Start) {
        self.command(Command::Start(Box::new(start)));
    }

    fn step(&mut self) -> Step {
        let step = self.worker.step(self.now, &mut self.engine, &mut self.events);
        assert!(self.worker.check());
        step
    }

    fn steps(&mut self, count: usize) {
        for _ in 0..count {
            self.step();
        }
    }

    fn run(&mut self) {
        while self.step() != Step::Idle {}
        assert!(self.worker.is_idle() && self.engine.used() == 0);
    }

    /// Text and last event of each request.
    fn results(&self) -> BTreeMap<u64, (String, Option<Event>)> {
        let mut out: BTreeMap<u64, (String, Option<Event>)> = BTreeMap::new();
        for event in &self.events {
            let Some(id) = event.id() else { continue };
            let entry = out.entry(id.0).or_default();
            assert!(entry.1.is_none(), "nothing follows the end: {event:?}");
            match event {
                Event::Delta { delta, .. } => entry.0 += &delta.text,
                Event::Finished { .. } | Event::Failed { .. } => entry.1 = Some(event.clone()),
                _ => {}
            }
        }
        out
    }
}

/// How much was cached depends on what ran before; nothing else may.
fn ignore_cached(mut result: (String, Option<Event>)) -> (String, Option<Event>) {
    if let Some(Event::Finished { usage, .. }) = &mut result.1 {
        usage.cached_tokens = 0;
    }
    result
}

fn alone(request: Start) -> (String, Option<Event>) {
    let id = request.id.0;
    let mut bench = Bench::native();
    bench.begin(request);
    bench.run();
    bench.results().remove(&id).unwrap()
}

#[test]
fn output_does_not_depend_on_the_neighbours() {
    let requests: Vec<Start> = (0..8u64)
        .map(|i| {
            let mut request = start(i, &"prompt ".repeat(1 + 3 * i as usize));
            request.max_tokens = 5 + 3 * i as u32;
            request.params = SamplingParams { seed: i, ..SamplingParams::default() };
            request
        })
        .collect();
    let mut bench = Bench::native();
    bench.engine.end_logit = -5.0;
    for (i, request) in requests.iter().enumerate() {
        bench.begin(request.clone());
        for _ in 0..i {
            bench.step();
        }
    }
    bench.run();
    for (request, (id, result)) in requests.into_iter().zip(bench.results()) {
        let mut single = Bench::native();
        single.engine.end_logit = -5.0;
        single.begin(request);
        single.run();
        assert_eq!(ignore_cached(single.results()[&id].clone()), ignore_cached(result));
    }
}

#[test]
fn ends_at_max_tokens_at_the_context_and_at_an_end_token() {
    let mut request = start(1, "abc");
    request.ignore_eos = true;
    let (text, end) = alone(request.clone());
    let usage = Usage { prompt_tokens: 3, cached_tokens: 0, generated_tokens: 40 };
    assert_eq!(end, Some(Event::Finished { id: RequestId(1), reason: FinishReason::Length, usage }));
    assert_eq!(text.len(), 40);
    request.max_tokens = 1;
    assert_eq!(alone(request.clone()).0.len(), 1);
    request.max_tokens = 10_000;
    let (text, end) = alone(request);
    assert_eq!(text.len(), 256 - 3);
    assert!(matches!(end, Some(Event::Finished { reason: FinishReason::Length, .. })));
    let mut bench = Bench::native();
    bench.engine.end_logit = 100.0;
    bench.begin(start(2, "abc"));
    bench.run();
    let usage = Usage { prompt_tokens: 3, cached_tokens: 0, generated_tokens: 1 };
    let end = Event::Finished { id: RequestId(2), reason: FinishReason::Stop, usage };
    assert_eq!(bench.results()[&2], (String::new(), Some(end)));
}

#[test]
fn stop_strings_end_the_text_before_them_and_hide_their_tokens() {
    let mut request = start(1, "abc");
    request.ignore_eos = true;
    request.logprobs = Some(2);
    let whole = alone(request.clone()).0;
    request.stop = vec![whole[7..10].to_owned()];
    let at = whole.find(&request.stop[0]).unwrap();
    let mut bench = Bench::native();
    bench.begin(request);
    bench.run();
    assert_eq!(bench.results()[&1].0, whole[..at]);
    let tokens: u32 =
        bench.events.iter().map(|e| if let Event::Delta { delta, .. } = e { delta.tokens } else { 0 }).sum();
    assert_eq!(tokens as usize, at);
}

#[test]
fn reports_log_probabilities_of_every_visible_token() {
    let mut request = start(1, "abc");
    (request.logprobs, request.max_tokens, request.ignore_eos) = (Some(3), 5, true);
    let mut bench = Bench::native();
    bench.begin(request);
    bench.run();
    let deltas: Vec<&Delta> = bench
        .events
        .iter()
        .filter_map(|e| if let Event::Delta { delta, .. } = e { Some(delta) } else { None })
        .collect();
    assert_eq!(deltas.len(), 5);
    for delta in deltas {
        let [logprob] = &delta.logprobs[..] else { panic!("one token a delta") };
        assert_eq!((logprob.top.len(), logprob.top[0].0), (3, logprob.token), "greedy draws the most probable");
        assert!(logprob.logprob < 0.0 && logprob.logprob == logprob.top[0].1);
    }
}

#[test]
fn refuses_what_its_limits_do_not_allow_at_the_bound() {
    let refused = |request: Start| {
        let id = request.id.0;
        let mut bench = Bench::native();
        bench.begin(request);
        bench.run();
        matches!(bench.results()[&id].1, Some(Event::Failed { error: WorkerError::Refused(_), .. }))
    };
    assert!(!refused(start(1, &"x".repeat(255))));
    assert!(refused(start(1, &"x".repeat(256))));
    assert!(refused(start(1, "")));
    assert!(refused(Start { max_tokens: 0, ..start(1, "x") }));
    assert!(refused(Start { prompt: vec![Token(257)].into(), ..start(1, "x") }));
    let mut bench = Bench::native();
    (0..9).for_each(|id| bench.begin(start(id, "x")));
    assert!(matches!(bench.events.last(), Some(Event::Failed { id: RequestId(8), error: WorkerError::Refused(_) })));
}

#[test]
fn what_does_not_fit_waits_for_room_in_order() {
    let mut bench = Bench::native();
    // 4 x 256 KV tokens are all there is.
    (0..6).for_each(|id| bench.begin(Start { max_tokens: 255, ..start(id, &id.to_string()) }));
    let admitted = |bench: &Bench| -> Vec<u64> {
        let id = |event: &Event| if let Event::Admitted { id } = event { Some(id.0) } else { None };
        bench.events.iter().filter_map(id).collect()
    };
    assert_eq!((admitted(&bench), bench.worker.facts().kv_free), (vec![0, 1, 2, 3], 0));
    bench.command(Command::Cancel { id: RequestId(2) });
    assert_eq!(admitted(&bench), [0, 1, 2, 3, 4]);
    bench.run();
    assert_eq!(admitted(&bench), [0, 1, 2, 3, 4, 5]);
    assert!(bench.results().values().all(|(_, end)| matches!(end, Some(Event::Finished { .. }))));
}

#[test]
fn cancels_at_the_next_step_whether_prefilling_or_decoding() {
    let mut bench = Bench::native();
    bench.begin(start(1, &"long ".repeat(40)));
    bench.begin(Start { ignore_eos: true, ..start(2, "a") });
    bench.begin(Start { ignore_eos: true, ..start(3, "a") });
    bench.step();
    bench.command(Command::Cancel { id: RequestId(1) });
    bench.step();
    bench.command(Command::Cancel { id: RequestId(2) });
    bench.command(Command::Cancel { id: RequestId(99) });
    bench.run();
    let results = bench.results();
    for id in [1, 2] {
        assert!(matches!(results[&id].1, Some(Event::Finished { reason: FinishReason::Cancelled, .. })));
    }
    assert_eq!(results[&3].0, alone(Start { ignore_eos: true, ..start(3, "a") }).0);
}

#[test]
fn decodes_running_sequences_while_a_long_prompt_is_prefilled_in_chunks() {
    let mut bench = Bench::native();
    bench.begin(Start { ignore_eos: true, ..start(1, "a") });
    bench.step();
    bench.command(Command::PrefillBudget { tokens: 10 });
    bench.begin(start(2, &"y".repeat(35)));
    for expected in [11, 11, 11, 6, 2] {
        assert_eq!(bench.step(), Step::Decoded { tokens: expected });
    }
}

#[test]
fn idle_time_is_not_taken_for_slow_steps() {
    let limits = EngineLimits { sequences: 4, kv_tokens: 1000, batch_tokens: 512, context_tokens: 500 };
    let mut bench = Bench::new(limits, Arc::new(Native));
    // A millisecond for each token; a step is to take 50 at the most.
    let step = |bench: &mut Bench| {
        let Step::Decoded { tokens } = bench.step() else { return 0 };
        bench.now += Duration::from_millis(tokens as u64);
        tokens
    };
    for id in [1, 2] {
        bench.begin(Start { ignore_eos: true, max_tokens: 4, ..start(id, "some prompt") });
        while step(&mut bench) > 0 && !bench.worker.is_idle() {}
        bench.now += Duration::from_secs(60);
    }
    bench.begin(Start { ignore_eos: true, max_tokens: 40, ..start(3, "another prompt") });
    for _ in 0..4 {
        step(&mut bench);
    }
    bench.begin(start(4, &"x".repeat(300)));
    for _ in 0..4 {
        let tokens = step(&mut bench);
        assert!((40..=50).contains(&tokens), "{tokens}");
    }
}

#[test]
fn a_failed_step_ends_its_sequences_and_later_ones_run() {
    let mut bench = Bench::native();
    bench.begin(start(1, "a"));
    bench.engine.fail_in = Some(1);
    bench.step();
    bench.step();
    assert!(matches!(bench.results()[&1].1, Some(Event::Failed { error: WorkerError::Engine(_), .. })));
    bench.begin(start(2, "abc"));
    bench.run();
    assert_eq!(bench.results()[&2], alone(start(2, "abc")));
}

#[derive(Debug)]
struct Hostile;

impl SamplerHook for Hostile {
    fn open(&self, _: Generation, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, Fault> {
        let fault = Fault { plugin: "hostile".into(), kind: FaultKind::Trap, detail: "test".to_owned() };
        struct Answer(Result<Option<Token>, Fault>);
        impl TokenSampler for Answer {
            fn sample(&mut self, row: &mut Row) -> Result<Option<Token>, Fault> {
                row.keep_best();
                self.0.clone()
            }
        }
        match request.request.0 {
            0 => Err(fault),
            1 => Ok(Box::new(Answer(Err(fault)))),
            2 => Ok(Box::new(Answer(Ok(Some(Token(9999)))))),
            _ => Ok(Box::new(Answer(Ok(Some(Token(u32::from(b'q'))))))),
        }
    }
}

#[test]
fn a_faulting_sampler_ends_its_own_request_only() {
    let mut bench = Bench::new(LIMITS, Arc::new(Hostile));
    (0..4).for_each(|id| bench.begin(start(id, "x")));
    bench.run();
    let results = bench.results();
    for id in 0..3 {
        assert!(matches!(results[&id].1, Some(Event::Failed { error: WorkerError::PolicyFault { .. }, .. })), "{id}");
    }
    assert_eq!(results[&3].0, "q".repeat(40));
}

fn cached(bench: &Bench, id: u64) -> u32 {
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
fn what_a_request_leaves_behind_serves_the_next_turn_of_its_tenant_only() {
    let mut bench = Bench::native();
    bench.begin(Start { ignore_eos: true, ..start(1, "the first turn of a conversation") });
    bench.run();
    let whole = format!("the first turn of a conversation{} and more", bench.results()[&1].0);
    let before = bench.engine.decoded;
    bench.begin(Start { max_tokens: 1, ..start(2, &whole) });
    bench.begin(Start { max_tokens: 1, tenant: TenantId::from("other"), ..start(3, &whole) });
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
            let parks = bench.events.iter().filter(|event| matches!(event, Event::Parked { .. })).count();
            match reserve {
                Reserve::None => assert!(parks > 0),
                Reserve::Full => assert_eq!(parks, 0),
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
fn parks_the_lowest_class_and_of_it_the_latest() {
    let limits = EngineLimits { sequences: 8, kv_tokens: 160, batch_tokens: 64, context_tokens: 128 };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::None, PrefixCache::new(1 << 20));
    for (id, priority) in [(1, Priority::Low), (2, Priority::Normal), (3, Priority::Normal), (4, Priority::High)] {
        let prompt = id.to_string();
        bench.begin(Start { priority, max_tokens: 100, ignore_eos: true, ..start(id, &prompt) });
    }
    bench.run();
    let parked: Vec<u64> = bench
        .events
        .iter()
        .filter_map(|event| if let Event::Parked { id } = event { Some(id.0) } else { None })
        .collect();
    assert_eq!(parked[..2], [1, 3], "{parked:?}");
    assert!(!parked.contains(&4));
}

#[test]
fn a_request_parked_by_command_goes_on_unchanged_after_the_others() {
    let mut bench = Bench::native();
    let request = |id: u64| Start { ignore_eos: true, ..start(id, &format!("request {id}")) };
    (1..3).for_each(|id| bench.begin(request(id)));
    bench.steps(5);
    bench.command(Command::Park { id: RequestId(1) });
    assert_eq!(bench.worker.facts().running_sequences, 1);
    bench.run();
    for id in [1, 2] {
        assert_eq!(bench.results()[&id].0, alone(request(id)).0);
    }
}

/// A random life of a worker with little room.
#[derive(Debug, Clone)]
enum Act {
    Begin { prompt: Vec<u8>, max_tokens: u32, tenant: bool, low: bool },
    Cancel(u64),
    Park(u64),
    Step(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let begin = (prop::collection::vec(0u8..2, 1..40), 1u32..50, any::<bool>(), any::<bool>());
    prop_oneof![
        4 => begin.prop_map(|(prompt, max_tokens, tenant, low)| Act::Begin { prompt, max_tokens, tenant, low }),
        1 => (0u64..12).prop_map(Act::Cancel),
        1 => (0u64..12).prop_map(Act::Park),
        4 => (1u8..9).prop_map(Act::Step),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn sharing_keeping_and_parking_change_no_output(
        acts in prop::collection::vec(act(), 1..60),
        ram in prop_oneof![Just(0u64), Just(300), Just(1 << 20)],
        reserve in prop_oneof![Just(Reserve::None), Just(Reserve::Expected), Just(Reserve::Full)],
    ) {
        let limits = EngineLimits { sequences: 6, kv_tokens: 128, batch_tokens: 24, context_tokens: 96 };
        let mut bench = Bench::with(limits, Arc::new(Native), reserve, PrefixCache::new(ram));
        let mut begun = BTreeMap::new();
        for act in acts {
            match act {
                Act::Begin { prompt, max_tokens, tenant, low } => {
                    if bench.worker.facts().free_sequences == 0 { continue }
                    let id = begun.len() as u64;
                    let text: String = prompt.iter().map(|&b| if b == 0 { "left " } else { "right " }).take(14).collect();
                    let mut request = Start { max_tokens, ignore_eos: true, ..start(id, &text) };
                    request.tenant = TenantId::from(if tenant { "a" } else { "b" });
                    request.priority = if low { Priority::Low } else { Priority::Normal };
                    begun.insert(id, request.clone());
                    bench.begin(request);
                }
                Act::Cancel(id) => bench.command(Command::Cancel { id: RequestId(id) }),
                Act::Park(id) => bench.command(Command::Park { id: RequestId(id) }),
                Act::Step(n) => bench.steps(n.into()),
            }
        }
        bench.run();
        let results = bench.results();
        for (id, request) in begun {
            let (text, end) = &results[&id];
            match end {
                Some(Event::Finished { reason: FinishReason::Cancelled, .. }) => {}
                Some(Event::Finished { .. }) => {
                    let mut single = Bench::with(limits, Arc::new(Native), Reserve::Full, PrefixCache::new(0));
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
