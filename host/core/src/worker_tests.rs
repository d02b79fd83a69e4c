use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::fake::FakeEngine;
use crate::ids::{Generation, TenantId, Token};
use crate::message::{Delta, Usage};
use crate::policy::{Fault, FaultKind, TokenSampler};
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
}

impl Bench {
    fn new(limits: EngineLimits, samplers: Arc<dyn SamplerHook>) -> Self {
        let vocabulary = FakeEngine::info(limits).vocabulary;
        let worker = Worker::new(WorkerId(0), limits, vocabulary, samplers);
        Self { worker, engine: FakeEngine::new(limits, 3), events: Vec::new() }
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
        let step = self.worker.step(Duration::ZERO, &mut self.engine, &mut self.events);
        assert!(self.worker.check());
        step
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
        assert_eq!(single.results()[&id], result);
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
    assert!(matches!(&bench.events[..], [Event::Failed { id: RequestId(8), error: WorkerError::Refused(_) }]));
    let mut bench = Bench::native();
    (0..5).for_each(|id| bench.begin(Start { max_tokens: 250, ..start(id, "abcdef") }));
    assert!(
        matches!(&bench.events[..], [Event::Failed { id: RequestId(4), .. }]),
        "4 x 256 KV tokens are all there is"
    );
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
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
