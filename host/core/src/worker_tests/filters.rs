//! Filters under a worker: what they take back is drawn anew, and everything else is as without them.
use proptest::prelude::*;

use super::*;
use crate::fake::ScriptedFilter;
use crate::filter::{FilterHook, FilterVerdict, FilteringRequest, Piece, TextFilter, TextWindow};
use crate::filter_stage::{REWINDS, TAKEN_BACK_TOKENS};
use crate::message::TokenLogprob;

type Script = fn(Piece, &str) -> FilterVerdict;

/// The same script for every request; `None`: phrases are taken back.
#[derive(Debug)]
struct Scripted {
    denies: bool,
    script: Option<Script>,
}

impl FilterHook for Scripted {
    fn open(&self, _: PolicyDigest, _: &FilteringRequest) -> Result<Vec<Box<dyn TextFilter>>, Fault> {
        let denies = self.denies;
        Ok(vec![match self.script {
            Some(script) => Box::new(ScriptedFilter { denies, script }),
            None => Box::new(WithoutPhrases),
        }])
    }
}

fn pass(piece: Piece, text: &str) -> FilterVerdict {
    FilterVerdict::Pass(piece.start + text.len())
}

/// Phrases that the fake engine writes often.
const PHRASES: [&str; 8] = ["e", "tq", "qa", "zz", "m", "ab", "xk", "vt"];

/// Takes back every phrase, and holds what may become one.
struct WithoutPhrases;

impl TextFilter for WithoutPhrases {
    fn check(&mut self, piece: Piece, text: &mut TextWindow) -> Result<FilterVerdict, Fault> {
        // What was passed may begin a phrase, too: something else followed it then, which was taken back since.
        let from = piece.start.saturating_sub(1);
        let seen = text.since(from);
        // Whatever was taken back, the tokens are those of the text.
        let spelled: String = text.tokens(from, usize::MAX).map(|token| char::from(token.token.0 as u8)).collect();
        assert_eq!(spelled, seen);
        if let Some(at) = PHRASES.iter().filter_map(|phrase| seen.find(phrase)).min() {
            return Ok(FilterVerdict::Rewind((from + at).max(piece.start)));
        }
        let begins = PHRASES.iter().any(|phrase| phrase.len() > 1 && seen.ends_with(&phrase[..1]));
        let end = text.end();
        Ok(FilterVerdict::Pass(if begins && !piece.last { end - 1 } else { end }))
    }

    fn refused(&mut self, why: String) -> Fault {
        panic!("{why}")
    }

    fn denies(&self) -> bool {
        true
    }
}

fn filtered(start: Start) -> Start {
    Start { filter_chain: PolicyDigest::new([7; 32]), ..start }
}

fn bench(denies: bool, script: impl Into<Option<Script>>) -> Bench {
    let script = script.into();
    let mut bench = Bench::native();
    bench.worker.intake.filters = Arc::new(Scripted { denies, script });
    bench
}

/// The deltas of a request, joined, and its tokens with log-probabilities.
fn told(bench: &Bench, id: u64) -> (String, u32, Vec<Token>) {
    let mut all = (String::new(), 0, Vec::new());
    for event in &bench.events {
        if let Event::Delta { id: of, delta } = event
            && of.0 == id
        {
            all.0.push_str(&delta.text);
            all.1 += delta.tokens;
            all.2.extend(delta.logprobs.iter().map(|logprob| logprob.token));
        }
    }
    all
}

#[test]
fn a_filter_that_passes_leaves_every_event_as_it_is() {
    let events = |with: bool| {
        let mut bench = bench(true, Some(pass as Script));
        bench.draft_by_lookup(4);
        for id in 0..6u64 {
            let mut request = start(id, "a prompt");
            request.params = SamplingParams { seed: id, ..SamplingParams::default() };
            (request.logprobs, request.stop) = (Some(2), vec!["ty".to_owned(), "q".to_owned()]);
            bench.begin(if with { filtered(request) } else { request });
        }
        bench.run();
        let deltas: Vec<_> = (0..6).map(|id| told(&bench, id)).collect();
        (deltas, bench.results())
    };
    assert_eq!(events(true), events(false));
}

fn request(id: u64, seed: u64, temperature: f32) -> Start {
    let mut request = start(id, "some words to begin with");
    (request.max_tokens, request.ignore_eos, request.logprobs) = (120, true, Some(0));
    request.params = SamplingParams { temperature, seed, repeat_penalty: 1.1, ..SamplingParams::default() };
    filtered(request)
}

/// Runs a request whose phrases are taken back, and asserts what holds of every such text.
fn run(mut bench: Bench, request: Start) -> (String, u64) {
    let id = request.id;
    bench.begin(request);
    bench.run();
    let counters = bench.worker.take_counters();
    let (text, tokens, logprobs) = told(&bench, id.0);
    let (_, end) = bench.results().remove(&id.0).unwrap();
    let Some(Event::Finished { reason: FinishReason::Length, usage, .. }) = end else { panic!("{end:?}") };
    assert!(PHRASES.iter().all(|phrase| !text.contains(phrase)), "{text}");
    assert_eq!((text.len(), tokens, usage.generated_tokens), (120, 120, 120), "it goes on to its end");
    let spelled: String = logprobs.iter().map(|token| char::from(token.0 as u8)).collect();
    assert_eq!(spelled, text);
    assert!(counters.tokens_taken_back >= counters.rewinds);
    (text, counters.rewinds)
}

#[test]
fn what_is_taken_back_never_appears_and_the_text_goes_on() {
    let mut rewinds = 0;
    for seed in 0..40 {
        for (temperature, memory) in [(0.0, usize::MAX), (1.0, usize::MAX), (1.0, 2)] {
            let make = |drafts: u32, reuse: Reuse| {
                let mut bench = bench(true, None);
                (bench.engine.memory, bench.engine.reuse) = (memory, reuse);
                if drafts > 0 {
                    bench.draft_by_lookup(drafts);
                }
                bench
            };
            let (text, count) = run(make(0, Reuse::Ranges), request(1, seed, temperature));
            rewinds += count;
            assert_eq!(
                run(make(6, Reuse::Ranges), request(1, seed, temperature)),
                (text.clone(), count),
                "with drafts"
            );
            assert_eq!(run(make(0, Reuse::Whole), request(1, seed, temperature)), (text, count), "computed anew");
        }
    }
    assert!(rewinds > 500, "{rewinds}");
}

#[test]
fn a_token_taken_back_is_drawn_anew_from_the_same_logits_without_it() {
    // Greedy: the second best token of the position follows, as if the best one was biased away.
    let script: Script = |piece, text| match piece.rewinds {
        0 if text.len() >= 5 => FilterVerdict::Rewind(3),
        0 => FilterVerdict::Pass(piece.start),
        _ => FilterVerdict::Pass(piece.start + text.len()),
    };
    let mut bench = bench(true, script);
    let plain = alone(Start { filter_chain: PolicyDigest::NATIVE, ..start(1, "abc") }).0;
    bench.begin(filtered(start(1, "abc")));
    bench.run();
    let (text, _) = bench.results().remove(&1).unwrap();
    assert!(text.starts_with(&plain[..3]) && text[3..4] != plain[3..4], "{plain} {text}");
    let mut other = start(2, &format!("abc{}", &plain[..3]));
    other.params.logit_bias =
        vec![crate::sampling::LogitBias { token: Token(plain.as_bytes()[3].into()), bias: -100.0 }];
    other.max_tokens = 1;
    assert_eq!(alone(other).0, text[3..4]);
}

#[test]
fn whoever_rewinds_without_end_faults_at_the_bound() {
    // The fake engine writes nothing but letters and the end.
    let rewinds: Script = |piece, text| match text.len() {
        0 => FilterVerdict::Pass(piece.start),
        _ => FilterVerdict::Rewind(piece.start),
    };
    let mut denied = bench(true, rewinds);
    let unending = || Start { ignore_eos: true, ..filtered(start(1, "abc")) };
    denied.begin(unending());
    denied.run();
    let (text, end) = denied.results().remove(&1).unwrap();
    let Some(Event::Failed { error: WorkerError::FilterFault { detail }, .. }) = end else { panic!("{end:?}") };
    // Each letter but those that were banned before; the vocabulary has more tokens than the bound.
    assert!(detail.contains("rewinds more than 128 times") && text.is_empty(), "{detail}");
    assert_eq!(denied.worker.take_counters().rewinds, u64::from(REWINDS));
    let mut skipped = bench(false, rewinds);
    skipped.begin(unending());
    skipped.run();
    assert!(matches!(skipped.results()[&1].1, Some(Event::Finished { .. })), "it goes on without the filter");
}

#[test]
fn tokens_taken_back_are_bounded_together() {
    let limits = EngineLimits { kv_tokens: 4096, context_tokens: 4096, ..LIMITS };
    let mut bench = Bench::new(limits, Arc::new(Native));
    // Holds a thousand letters, then takes all of them back.
    let script: Script = |piece, text| match text.len() {
        1000.. => FilterVerdict::Rewind(piece.start),
        _ => FilterVerdict::Pass(piece.start),
    };
    bench.worker.intake.filters = Arc::new(Scripted { denies: true, script: Some(script) });
    let mut request = filtered(start(1, "abc"));
    (request.max_tokens, request.ignore_eos) = (2000, true);
    bench.begin(request);
    bench.run();
    let (_, end) = bench.results().remove(&1).unwrap();
    let Some(Event::Failed { error: WorkerError::FilterFault { detail }, .. }) = end else { panic!("{end:?}") };
    assert!(detail.contains("takes back 17000 tokens, at most 16384"), "{detail}");
    assert_eq!(bench.worker.take_counters().tokens_taken_back as usize, TAKEN_BACK_TOKENS / 1000 * 1000);
}

#[test]
fn a_text_that_ends_in_a_phrase_is_taken_back_too() {
    // At its end by an end token, by a stop string and by its length: nothing is decided before.
    let late: Script = |piece, text| match (piece.last, piece.rewinds) {
        (true, 0) => FilterVerdict::Rewind(0),
        (true, _) => FilterVerdict::Pass(piece.start + text.len()),
        (false, _) => FilterVerdict::Pass(0),
    };
    let plain = alone(start(1, "abc")).0;
    for (stop, max_tokens) in [(vec![], 40), (vec![plain[2..4].to_owned()], 40), (vec![], 3)] {
        let mut bench = bench(true, late);
        let mut request = filtered(start(1, "abc"));
        (request.stop, request.max_tokens) = (stop, max_tokens);
        bench.begin(request);
        bench.run();
        let (text, end) = bench.results().remove(&1).unwrap();
        assert!(matches!(end, Some(Event::Finished { .. })) && text[..1] != plain[..1], "{text} {end:?}");
        assert_eq!(bench.worker.take_counters().rewinds, 1);
    }
}

#[test]
fn the_pool_hears_of_each_stage_of_progress_once() {
    let mut bench = bench(true, None);
    bench.begin(request(1, 3, 1.0));
    bench.run();
    let progress = bench.events.iter().filter_map(|event| match event {
        Event::Progressed { generated_tokens, .. } => Some(*generated_tokens),
        _ => None,
    });
    assert_eq!(progress.collect::<Vec<_>>(), [1, 33, 65, 97]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Under preemption and neighbours the text is as alone, and the books add up after every step (`Bench::step`).
    #[test]
    fn rewinds_do_not_depend_on_neighbours_or_preemption(
        seeds in prop::collection::vec(0u64..1000, 1..6),
        preempted in prop::collection::vec((0usize..6, 1usize..9), 0..12),
        small in any::<bool>(),
    ) {
        let limits = if small { EngineLimits { kv_tokens: 220, ..LIMITS } } else { LIMITS };
        let mut together = Bench::with(limits, Arc::new(Native), Reserve::None, PrefixCache::new(1 << 20));
        together.worker.intake.filters = Arc::new(Scripted { denies: true, script: None });
        for (id, &seed) in (0..).zip(&seeds) {
            together.begin(request(id, seed, 1.0));
        }
        for (victim, steps) in preempted {
            together.command(Command::Preempt { id: RequestId((victim % seeds.len()) as u64) });
            together.steps(steps);
        }
        together.run();
        for (id, &seed) in (0..).zip(&seeds) {
            prop_assert_eq!(told(&together, id).0, run(bench(true, None), request(id, seed, 1.0)).0);
        }
    }
}

#[test]
fn regression_what_was_taken_back_is_no_alternative_of_what_replaces_it() {
    let deltas = |with: bool| {
        let mut bench = bench(true, None);
        let mut request = request(0, 0, 0.0);
        (request.params.repeat_penalty, request.logprobs) = (1.0, Some(1));
        request.filter_chain = if with { request.filter_chain } else { PolicyDigest::NATIVE };
        bench.begin(request);
        bench.run();
        bench.events
    };
    let told = |events: &[Event]| -> Vec<TokenLogprob> {
        let of = |event: &Event| match event {
            Event::Delta { delta, .. } => delta.logprobs.clone(),
            _ => Vec::new(),
        };
        events.iter().flat_map(of).collect()
    };
    let (without, with) = (told(&deltas(false)), told(&deltas(true)));
    assert_ne!(without, with, "something was taken back");
    for logprob in with {
        // Greedy: the best that is left is drawn.
        assert_eq!(logprob.top.first().map(|(token, _)| *token), Some(logprob.token));
        assert_eq!(logprob.top.len(), 1);
    }
}

/// A sampler that makes one token all but certain, whatever was banned before it was asked.
#[derive(Debug)]
struct Insistent;

impl SamplerHook for Insistent {
    fn open(&self, _: PolicyDigest, _: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        struct Writes;
        impl TokenSampler for Writes {
            fn sample(&mut self, row: &mut Row) -> Result<Option<Token>, Fault> {
                row.write(b'e'.into(), &[100.0]).unwrap();
                Ok(None)
            }
        }
        Ok(Box::new(Writes))
    }
}

#[test]
fn regression_a_sampler_that_writes_logits_allows_nothing_that_was_taken_back() {
    let mut bench = Bench::new(LIMITS, Arc::new(Insistent));
    bench.worker.intake.filters = Arc::new(Scripted { denies: true, script: None });
    let mut request = request(1, 0, 1.0);
    request.max_tokens = 20;
    bench.begin(request);
    bench.run();
    let (text, end) = bench.results().remove(&1).unwrap();
    assert!(matches!(end, Some(Event::Finished { reason: FinishReason::Length, .. })), "{end:?}");
    assert!(text.len() == 20 && !text.contains('e'), "{text}");
    assert!(bench.worker.take_counters().rewinds >= 20, "it insists at every position");
}
