use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::adapters::AdapterSet;
use crate::cache::PrefixCache;
use crate::engine::Reuse;
use crate::fake::{FakeEngine, NoFilters};
use crate::grammar::GrammarStore;
use crate::ids::{AdapterDigest, PolicyDigest, TenantId, Token};
use crate::message::{Delta, Start, Usage};
use crate::policy::{Fault, FaultKind, NoSampler, Priority, SamplerHook, SamplingRequest, TokenSampler};
use crate::reserve::{Reservation, Reserve};
use crate::sampling::{Row, SamplingParams, StandardChain};
use crate::segments::Namespace;

#[path = "worker_tests/adapters.rs"]
mod adapters;
#[path = "worker_tests/asked.rs"]
mod asked;
#[path = "worker_tests/bounds.rs"]
mod bounds;
#[path = "worker_tests/bounds_of_output.rs"]
mod bounds_of_output;
#[path = "worker_tests/certain_text.rs"]
mod certain_text;
#[path = "worker_tests/ends.rs"]
mod ends;
#[path = "worker_tests/filters.rs"]
mod filters;
#[path = "worker_tests/grammars.rs"]
mod grammars;
#[path = "worker_tests/kv.rs"]
mod kv;
#[path = "worker_tests/pauses.rs"]
mod pauses;
#[path = "worker_tests/reports.rs"]
mod reports;
#[path = "worker_tests/restores.rs"]
mod restores;
#[path = "worker_tests/scores.rs"]
mod scores;
#[path = "worker_tests/sessions.rs"]
mod sessions;
#[path = "worker_tests/speculation.rs"]
mod speculation;

const LIMITS: EngineLimits = EngineLimits { sequences: 8, kv_tokens: 1024, batch_tokens: 64, context_tokens: 256 };

#[derive(Debug)]
struct Native;

impl SamplerHook for Native {
    fn open(&self, _: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        Ok(Box::new(StandardChain::new(request.params.clone())))
    }
}

fn start(id: u64, prompt: &str) -> Start {
    Start {
        id: RequestId(id),
        model: "fake".to_owned(),
        tenant: TenantId::from("t"),
        namespace: Namespace::Tenant("t".into()),
        adapters: Default::default(),
        session: None,
        priority: Priority::Normal,
        endpoint: crate::policy::Endpoint::Completion,
        sampler_chain: PolicyDigest::NATIVE,
        filter_chain: PolicyDigest::NATIVE,
        context: Default::default(),
        prompt: prompt.bytes().map(|b| Token(u32::from(b))).collect(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens: 40,
        stop: Vec::new(),
        ignore_eos: false,
        ends: Default::default(),
        score_prompt: false,
        logprobs: None,
        grammar: None,
        shown: Arc::default(),
    }
}

/// Adapters that differ by number. Number 0 is none.
fn set(number: u8) -> AdapterSet {
    AdapterSet::new([(AdapterDigest::new([number; 32]), f32::from(number))])
}

struct Bench {
    worker: Worker,
    engine: FakeEngine,
    reservation: Reservation,
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
        let grammars = Arc::new(GrammarStore::new(vocabulary.clone()));
        let speculation = None;
        let worker = Worker::new(WorkerOptions {
            id: WorkerId(0),
            limits,
            vocabulary,
            samplers,
            filters: Arc::new(NoFilters),
            cache,
            step_target,
            grammars,
            masks: None,
            speculation,
        });
        let mut reservation = Reservation::new(reserve);
        reservation.bound(limits.context_tokens.min(limits.kv_tokens));
        Self { worker, engine: FakeEngine::new(limits, 3), reservation, events: Vec::new(), now: Duration::ZERO }
    }

    fn native() -> Self {
        Self::new(LIMITS, Arc::new(Native))
    }

    fn draft_by_lookup(&mut self, draft_tokens: u32) {
        let drafter = Box::new(crate::speculate::PromptLookup);
        self.worker.speculation = Some(Speculation { drafter, draft_tokens });
    }

    fn command(&mut self, command: Command) {
        self.worker.handle(command, &mut self.engine, &mut self.events);
        assert!(self.worker.check());
    }

    fn begin(&mut self, start: Start) {
        let need = self.reservation.need(start.prompt.len() as u32, start.max_tokens);
        self.command(Command::Start { start: Box::new(start), need });
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
        // Paused sequences keep theirs.
        let used = self.worker.facts().kv_used as usize;
        assert!(self.worker.is_idle() && self.engine.used() <= used);
    }

    /// Text and last event of each request.
    fn results(&self) -> BTreeMap<u64, (String, Option<Event>)> {
        let mut out: BTreeMap<u64, (String, Option<Event>)> = BTreeMap::new();
        for event in &self.events {
            let entry = out.entry(event.id().0).or_default();
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
    let usage = Usage { prompt_tokens: 3, generated_tokens: 40, ..Usage::default() };
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
    let usage = Usage { prompt_tokens: 3, generated_tokens: 1, ..Usage::default() };
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
    assert!(refused(Start { prompt: vec![Token(257)].into(), ..start(1, "x") }));
}

#[test]
fn what_comes_past_the_last_sequence_waits_for_one() {
    let mut bench = Bench::native();
    (0..9).for_each(|id| bench.begin(start(id, "x")));
    assert_eq!(bench.worker.facts().running_sequences, 8);
    bench.run();
    assert!(bench.results().values().all(|(_, end)| matches!(end, Some(Event::Finished { .. }))));
    assert_eq!(bench.results().len(), 9);
}

#[test]
fn what_does_not_fit_waits_for_capacity_in_order() {
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
    let limits = EngineLimits { sequences: 9, kv_tokens: 1000, batch_tokens: 512, context_tokens: 500 };
    let mut bench = Bench::new(limits, Arc::new(Native));
    // A millisecond for each token; a step shall take no more than 50.
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
    for id in 3..11 {
        bench.begin(Start { ignore_eos: true, max_tokens: 40, ..start(id, "another prompt") });
    }
    for _ in 0..4 {
        step(&mut bench);
    }
    bench.begin(start(11, &"x".repeat(300)));
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
    fn open(&self, _: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        let fault = Fault { plugin: "hostile".into(), kind: FaultKind::Trap, detail: "test".to_owned() };
        struct Answer(Result<Option<Token>, Fault>);
        impl TokenSampler for Answer {
            fn sample(&mut self, row: &mut Row) -> Result<Option<Token>, Fault> {
                row.keep_best();
                self.0.clone()
            }
        }
        match request.request.0 {
            0 => Err(fault.into()),
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
