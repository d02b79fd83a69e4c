//! Speculative decoding changes how long a text takes, and nothing else.
use super::*;
use crate::ids::SeqId;
use crate::speculate::{DraftRequest, Drafter, ModelDrafter};

/// Runs one request on an engine whose text repeats itself. Returns its text, usage and number of steps.
fn run(request: &Start, speculation: Option<Speculation>) -> (String, Usage, usize) {
    let mut bench = Bench::native();
    bench.engine.memory = 2;
    bench.worker.speculation = speculation;
    bench.begin(request.clone());
    let mut steps = 0;
    while bench.step() != Step::Idle {
        steps += 1;
    }
    assert_eq!(bench.engine.used(), 0);
    let counters = bench.worker.take_counters();
    match bench.results().remove(&request.id.0) {
        Some((text, Some(Event::Finished { usage, .. }))) => {
            let counted = (counters.drafts_accepted, counters.drafts_accepted + counters.drafts_rejected);
            assert_eq!(counted, (usage.accepted_tokens.into(), usage.drafted_tokens.into()));
            (text, usage, steps)
        }
        other => panic!("{other:?}"),
    }
}

fn lookup(draft_tokens: u32) -> Option<Speculation> {
    Some(Speculation { drafter: Box::new(crate::speculate::PromptLookup), draft_tokens })
}

/// Drafts with an engine equal to the target: a draft is wrong only where the target draws at random.
fn model(draft_tokens: u32) -> Option<Speculation> {
    let mut engine = FakeEngine::new(LIMITS, 3);
    engine.memory = 2;
    Some(Speculation { drafter: Box::new(ModelDrafter::new(engine)), draft_tokens })
}

#[test]
fn drafts_save_steps_and_leave_the_text_as_it_is() {
    for (temperature, min_saved) in [(0.0, 40), (0.3, 10), (1.0, 0)] {
        let mut request = start(1, "some words to begin with");
        (request.max_tokens, request.ignore_eos, request.logprobs) = (200, true, Some(1));
        request.params = SamplingParams { temperature, seed: 5, ..SamplingParams::default() };
        let (text, _, steps) = run(&request, None);
        assert_eq!(text.len(), 200);
        for speculation in [lookup(1), lookup(4), lookup(16), model(3)] {
            let (drafted, usage, fewer) = run(&request, speculation);
            assert_eq!(drafted, text);
            assert!(usage.accepted_tokens <= usage.drafted_tokens);
            assert_eq!(fewer, steps - usage.accepted_tokens as usize, "each accepted token saves a step");
            assert!(usage.accepted_tokens >= min_saved, "{usage:?} at {temperature}");
        }
    }
}

#[test]
fn drafts_do_not_move_the_end_of_a_text() {
    let mut request = start(1, "some words to begin with");
    (request.max_tokens, request.ignore_eos) = (200, true);
    let whole = run(&request, None).0;
    for max_tokens in [1, 2, 3, 99, 100, 101] {
        request.max_tokens = max_tokens;
        let (text, usage, _) = run(&request, lookup(16));
        assert_eq!((text.as_str(), usage.generated_tokens), (&whole[..max_tokens as usize], max_tokens));
    }
    request.max_tokens = 200;
    request.stop = vec![whole[150..160].to_owned()];
    let at = whole.find(&request.stop[0]).unwrap();
    assert_eq!(run(&request, lookup(16)).0, whole[..at]);
    // The end of the context.
    let long = "x".repeat(100);
    let request = Start { max_tokens: 1000, ignore_eos: true, ..start(1, &long) };
    assert_eq!(run(&request, lookup(16)).0, run(&request, None).0);
}

/// Drafts that are always wrong, and one token too long.
struct Wrong;

impl Drafter for Wrong {
    fn draft(&mut self, requests: &mut [DraftRequest<'_>]) {
        requests.iter_mut().for_each(|r| r.draft.extend(std::iter::repeat_n(Token(0), r.max_tokens + 1)));
    }
    fn forget(&mut self, _: SeqId) {}
}

#[test]
fn stops_drafting_when_drafts_are_rejected_and_rows_cost_time() {
    let mut bench = Bench::native();
    bench.worker.speculation = Some(Speculation { drafter: Box::new(Wrong), draft_tokens: 4 });
    let request = Start { max_tokens: 200, ignore_eos: true, ..start(1, "abc") };
    bench.begin(request.clone());
    let mut rows = 0;
    while let Step::Decoded { tokens } = bench.step() {
        // A step costs a millisecond, and each row another one.
        bench.now += Duration::from_millis(1 + tokens as u64);
        rows += tokens;
    }
    assert!(rows < 250, "{rows}");
    assert_eq!(bench.results()[&1].0, alone(request).0);
}

#[test]
fn a_full_batch_or_cache_bounds_drafts_and_not_the_text() {
    let limits = EngineLimits { sequences: 4, kv_tokens: 96, batch_tokens: 6, context_tokens: 90 };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::None, PrefixCache::new(1 << 20));
    bench.engine.memory = 2;
    bench.draft_by_lookup(8);
    let requests: Vec<Start> =
        (0..4).map(|id| Start { max_tokens: 60, ignore_eos: true, ..start(id, &format!("p{id}")) }).collect();
    requests.iter().for_each(|request| bench.begin(request.clone()));
    while let Step::Decoded { tokens } = bench.step() {
        assert!(tokens <= 6);
    }
    for request in requests {
        let mut single = Bench::with(limits, Arc::new(Native), Reserve::Full, PrefixCache::new(0));
        single.engine.memory = 2;
        single.begin(request.clone());
        single.run();
        assert_eq!(bench.results()[&request.id.0].0, single.results()[&request.id.0].0);
    }
}
