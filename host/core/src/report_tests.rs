//! When a worker reports, and that commands and reports survive the way to another process.
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::*;
use crate::adapters::AdapterSet;
use crate::cache::PrefixCache;
use crate::engine::EngineLimits;
use crate::fake::{FakeEngine, NoFilters};
use crate::grammar::{Grammar, GrammarSpec, GrammarStore};
use crate::ids::AdapterDigest;
use crate::ids::{PolicyDigest, RequestId, SessionId, TenantId, Token, WorkerId};
use crate::message::{
    Command, Delta, Ends, FinishReason, OpenSession, ShownToken, Start, TokenLogprob, Usage, WorkerError,
};
use crate::policy::{Priority, Refusal, Rejection};
use crate::sampling::{LogitBias, SamplingParams};
use crate::segments::Namespace;
use crate::thinking::ThinkingBudget;
use crate::worker::WorkerOptions;

fn namespace() -> impl Strategy<Value = Namespace> {
    let whole = prop_oneof![
        Just(Namespace::Shared),
        ".{0,12}".prop_map(|name| Namespace::Tenant(TenantId::new(name.as_str())))
    ];
    (whole, prop::option::of(".{1,8}"), adapters()).prop_map(|(whole, key, adapters)| match key {
        Some(key) => whole.keyed(&key).under(&adapters),
        None => whole.under(&adapters),
    })
}

fn adapters() -> impl Strategy<Value = AdapterSet> {
    let one = (any::<u8>(), -100f32..100.0).prop_map(|(digest, scale)| (AdapterDigest::new([digest; 32]), scale));
    prop::collection::vec(one, 0..3).prop_map(AdapterSet::new)
}

fn id() -> impl Strategy<Value = RequestId> {
    any::<u64>().prop_map(RequestId)
}

fn params() -> impl Strategy<Value = SamplingParams> {
    let floats = (-2f32..2.0, 0f32..1.0, 0f32..1.0, 0f32..1.0, 0.01f32..10.0);
    let bias = prop::collection::vec((any::<u32>(), -100f32..100.0), 0..4);
    (floats, bias, any::<(u32, u32, u64)>()).prop_map(|((penalty, p, min_p, typical_p, repeat), bias, numbers)| {
        let logit_bias = bias.into_iter().map(|(token, bias)| LogitBias { token: Token(token), bias }).collect();
        SamplingParams {
            temperature: p * 2.0,
            top_k: numbers.0,
            top_p: p,
            min_p,
            typical_p,
            repeat_penalty: repeat,
            repeat_last_n: numbers.1,
            frequency_penalty: penalty,
            presence_penalty: -penalty,
            logit_bias,
            seed: numbers.2,
        }
    })
}

prop_compose! {
    fn open_session()(
        session in ".{1,12}".prop_map(SessionId::new),
        namespace in namespace(),
        tokens in any::<u32>(),
        expires_in in any::<u32>().prop_map(|ms| Duration::from_millis(ms.into())),
    ) -> OpenSession {
        OpenSession { session, namespace, tokens, expires_in }
    }
}

prop_compose! {
    fn ends()(
        tokens in prop::collection::vec(any::<u32>().prop_map(Token), 0..4),
        min_tokens in any::<u32>(),
        max_duration in prop::option::of(any::<u32>().prop_map(|ms| Duration::from_millis(ms.into()))),
        thinking in prop::option::of((any::<u32>(), ".{1,8}", any::<bool>())),
    ) -> Ends {
        let thinking = thinking.map(|(tokens, begin, is_open)| ThinkingBudget {
            tokens,
            end: begin.clone(),
            begin,
            close: vec![tokens],
            is_open,
            repeats: !is_open,
        });
        Ends { tokens, min_tokens, max_duration, thinking }
    }
}

prop_compose! {
    fn start()(
        id in id(),
        (namespace, adapters, session) in (namespace(), adapters(), prop::option::of(".{1,12}")),
        priority in prop::sample::select(vec![Priority::High, Priority::Normal, Priority::Low]),
        params in params(),
        prompt in prop::collection::vec(any::<u32>().prop_map(Token), 1..40),
        samplers in prop::option::of(prop::collection::vec("[a-z]{1,8}", 0..3)),
        stop in prop::collection::vec(".{1,8}", 0..4),
        (choice, max_tokens, logprobs, ignore_eos, score_prompt) in any::<(u32, u32, Option<u32>, bool, bool)>(),
        ends in ends(),
        model in ".{0,12}",
    ) -> Box<Start> {
        Box::new(Start {
            id,
            tenant: TenantId::new(model.as_str()),
            model,
            namespace,
            adapters,
            session: session.map(SessionId::new),
            priority,
            endpoint: crate::policy::Endpoint::Completion,
            sampler_chain: PolicyDigest::NATIVE,
            filter_chain: PolicyDigest::NATIVE,
            context: Default::default(),
            prompt: prompt.into(),
            params,
            samplers,
            choice,
            max_tokens,
            shown: stop.iter().map(|text| ShownToken { token: Token(7), text: text.clone() }).collect(),
            grammar: ignore_eos.then(|| Arc::new(Grammar::new(GrammarSpec::Choice { texts: stop.clone() }))),
            stop,
            ignore_eos,
            ends,
            score_prompt,
            logprobs,
        })
    }
}

fn command() -> impl Strategy<Value = Command> {
    prop_oneof![
        (start(), any::<u32>()).prop_map(|(start, need)| Command::Start { start, need }),
        id().prop_map(|id| Command::Cancel { id }),
        id().prop_map(|id| Command::Preempt { id }),
        id().prop_map(|id| Command::Pause { id }),
        id().prop_map(|id| Command::Resume { id }),
        any::<u32>().prop_map(|tokens| Command::PrefillBudget { tokens }),
        (id(), namespace()).prop_map(|(id, namespace)| Command::ListSessions { id, namespace }),
        (id(), namespace(), ".{1,12}").prop_map(|(id, namespace, session)| Command::CloseSession {
            id,
            namespace,
            session: SessionId::new(session)
        }),
        any::<u8>().prop_map(|digest| Command::ForgetAdapter { adapter: AdapterDigest::new([digest; 32]) }),
        any::<(u64, u64, u32)>().prop_map(|(ram_bytes, seconds, nanos)| Command::CacheLimits {
            ram_bytes,
            session_ttl: Duration::new(seconds, nanos % 1_000_000_000)
        }),
    ]
}

fn error() -> impl Strategy<Value = WorkerError> {
    prop_oneof![
        Just(WorkerError::InvalidLogits),
        ".{0,12}".prop_map(|detail| WorkerError::PolicyFault { detail }),
        ".{0,12}".prop_map(WorkerError::Refused),
        ".{0,12}".prop_map(|text| WorkerError::Rejected(Box::new(Rejection::new(text)))),
        ".{0,12}".prop_map(WorkerError::Engine),
        Just(WorkerError::SamplersBusy),
        ".{0,12}".prop_map(|detail| WorkerError::FilterFault { detail }),
        Just(WorkerError::FiltersBusy),
        ".{0,12}".prop_map(|detail| WorkerError::GrammarsBusy { detail }),
        ".{0,12}".prop_map(|detail| WorkerError::GrammarExhausted { detail }),
        (any::<u16>(), ".{0,12}", ".{0,12}", prop::option::of(".{0,12}")).prop_map(|(status, code, message, param)| {
            WorkerError::Declined(Box::new(Refusal { status, code, message, param }))
        }),
        Just(WorkerError::QueueFull),
        Just(WorkerError::DeadlineExceeded),
        Just(WorkerError::SlowReader),
        Just(WorkerError::WorkerLost),
        Just(WorkerError::ShuttingDown),
    ]
}

/// Of a token that the model rules out, it is minus infinity.
fn logprob() -> impl Strategy<Value = f32> {
    prop_oneof![-50f32..=0.0, Just(f32::NEG_INFINITY)]
}

/// What goes to clients only.
fn delta() -> impl Strategy<Value = Event> {
    let top = prop::collection::vec((any::<u32>().prop_map(Token), logprob()), 0..4);
    let drawn = (any::<u32>().prop_map(Token), logprob(), top, any::<u32>());
    let drawn = drawn.prop_map(|(token, logprob, top, skipped)| TokenLogprob { token, logprob, top, skipped });
    (id(), ".{0,12}", any::<u32>(), prop::collection::vec(drawn, 0..4)).prop_map(|(id, text, tokens, logprobs)| {
        Event::Delta { id, delta: Delta { text: text.into(), tokens, logprobs } }
    })
}

/// All that stands in a report.
fn event() -> impl Strategy<Value = Event> {
    let reasons = vec![
        FinishReason::Stop,
        FinishReason::Length,
        FinishReason::Expired,
        FinishReason::Filtered,
        FinishReason::Cancelled,
    ];
    let reason = prop::sample::select(reasons);
    let usage = any::<(u32, u32, u32, u32, u32)>().prop_map(|numbers| Usage {
        prompt_tokens: numbers.0,
        cached_tokens: numbers.1,
        generated_tokens: numbers.2,
        drafted_tokens: numbers.3,
        accepted_tokens: numbers.4,
    });
    prop_oneof![
        (id(), any::<u32>()).prop_map(|(id, position)| Event::Queued { id, position }),
        id().prop_map(|id| Event::Admitted { id }),
        (id(), any::<bool>()).prop_map(|(id, existed)| Event::SessionClosed { id, existed }),
        (id(), prop::collection::vec(open_session(), 0..4)).prop_map(|(id, sessions)| Event::Sessions { id, sessions }),
        id().prop_map(|id| Event::Preempted { id }),
        id().prop_map(|id| Event::Paused { id }),
        id().prop_map(|id| Event::Resumed { id }),
        (id(), any::<u32>()).prop_map(|(id, cached_tokens)| Event::Started { id, cached_tokens }),
        (id(), any::<(u32, u32)>()).prop_map(|(id, (prompt_tokens, generated_tokens))| Event::Progressed {
            id,
            prompt_tokens,
            generated_tokens
        }),
        (id(), reason, usage).prop_map(|(id, reason, usage)| Event::Finished { id, reason, usage }),
        (id(), error()).prop_map(|(id, error)| Event::Failed { id, error }),
    ]
}

prop_compose! {
    fn report()(
        events in prop::collection::vec(event(), 0..8),
        batches in prop::collection::vec(any::<u32>(), 0..8),
        (worker, healthy, can_preempt) in any::<(u32, bool, bool)>(),
        numbers in any::<[u32; 6]>(),
        tokens_per_second in 0f32..1e6,
        cache in any::<[u64; 5]>(),
        counted in any::<u64>(),
    ) -> Report {
        let facts = WorkerFacts {
            worker: WorkerId(worker),
            healthy,
            free_sequences: numbers[0],
            running_sequences: numbers[1],
            kv_free: numbers[2],
            kv_used: numbers[3],
            kv_total: numbers[4],
            prefilling_tokens: numbers[5],
            tokens_per_second,
            can_preempt,
        };
        let cache = CacheFacts {
            segments: cache[0],
            tokens: cache[1],
            ram_bytes: cache[2],
            live_tokens: cache[3],
            sessions: cache[4],
        };
        let counters = WorkerCounters { drafts_accepted: counted, ..WorkerCounters::default() };
        Report { events, facts, cache, batches, counters }
    }
}

fn there_and_back<T: Serialize + DeserializeOwned>(sent: &T) -> T {
    serde_json::from_str(&serde_json::to_string(sent).unwrap()).unwrap()
}

proptest! {
    #[test]
    fn a_command_is_read_as_it_was_written(command in command()) {
        prop_assert_eq!(there_and_back(&command), command);
    }

    #[test]
    fn regression_a_delta_is_read_as_it_was_written(delta in delta()) {
        prop_assert_eq!(there_and_back(&delta), delta);
    }

    #[test]
    fn a_report_is_read_as_it_was_written(report in report()) {
        prop_assert_eq!(there_and_back(&report), report);
    }
}

#[derive(Debug)]
struct Native;

impl crate::policy::SamplerHook for Native {
    fn open(
        &self,
        _: PolicyDigest,
        request: &crate::policy::SamplingRequest,
    ) -> Result<Box<dyn crate::policy::TokenSampler>, crate::policy::NoSampler> {
        Ok(Box::new(crate::sampling::StandardChain::new(request.params.clone())))
    }
}

const LIMITS: EngineLimits = EngineLimits { sequences: 4, kv_tokens: 2048, batch_tokens: 128, context_tokens: 512 };

fn worker() -> Worker {
    Worker::new(WorkerOptions {
        id: WorkerId(0),
        limits: LIMITS,
        vocabulary: FakeEngine::info(LIMITS).vocabulary,
        samplers: std::sync::Arc::new(Native),
        filters: std::sync::Arc::new(NoFilters),
        cache: PrefixCache::new(0),
        step_target: Duration::from_secs(1),
        grammars: Arc::new(GrammarStore::new(FakeEngine::info(LIMITS).vocabulary)),
        masks: None,
        speculation: None,
    })
}

fn request(id: u64) -> Box<Start> {
    Box::new(Start {
        id: RequestId(id),
        model: "fake".to_owned(),
        tenant: "t".into(),
        namespace: Namespace::Shared,
        adapters: Default::default(),
        session: None,
        priority: Priority::Normal,
        endpoint: crate::policy::Endpoint::Completion,
        sampler_chain: PolicyDigest::NATIVE,
        filter_chain: PolicyDigest::NATIVE,
        context: Default::default(),
        prompt: vec![Token(id as u32); 10].into(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens: 300,
        stop: Vec::new(),
        ignore_eos: true,
        ends: Default::default(),
        score_prompt: false,
        logprobs: None,
        grammar: None,
        shown: Arc::default(),
    })
}

#[test]
fn the_limits_of_an_engine_are_read_as_they_were_written() {
    assert_eq!(there_and_back(&LIMITS), LIMITS);
}

#[test]
fn a_report_tells_of_at_most_so_many_batches() {
    let (mut worker, mut reporter) = (worker(), Reporter::default());
    assert!(reporter.take(&mut worker).is_some_and(|first| first.batches.is_empty()));
    for _ in 1..MAX_BATCHES {
        reporter.decoded(1, Duration::ZERO);
        assert_eq!(reporter.take(&mut worker), None);
    }
    reporter.decoded(2, Duration::ZERO);
    let report = reporter.take(&mut worker).unwrap();
    assert_eq!((report.batches.len(), report.batches[MAX_BATCHES - 1]), (MAX_BATCHES, 2));
    reporter.decoded(3, Duration::ZERO);
    assert_eq!(reporter.take(&mut worker), None, "the next one begins anew");
}

#[test]
fn regression_slow_steps_are_reported_although_nothing_else_happens() {
    let (mut worker, mut reporter) = (worker(), Reporter::default());
    assert!(reporter.take(&mut worker).is_some());
    let moment = Duration::from_nanos(1);
    for (now, reports) in [
        (MAX_AGE - moment, false),
        (MAX_AGE, true),
        (2 * MAX_AGE - moment, false),
        (2 * MAX_AGE, true),
        (9 * MAX_AGE, true),
        (10 * MAX_AGE - moment, false),
    ] {
        reporter.decoded(1, now);
        assert_eq!(reporter.take(&mut worker).is_some(), reports, "{now:?}");
    }
    // Without a step nothing has changed.
    reporter.decoded(1, 10 * MAX_AGE);
    assert!(reporter.take(&mut worker).is_some());
    assert_eq!(reporter.take(&mut worker), None);
}

#[test]
fn regression_the_pool_hears_of_kv_that_running_sequences_grow_into() {
    let (mut worker, mut reporter, mut engine) = (worker(), Reporter::default(), FakeEngine::new(LIMITS, 1));
    let (mut told, mut reports) = (None, 0);
    for step in 0..280 {
        let mut events = Vec::new();
        if step < 4 {
            // Their growth is out of step with their progress, which is reported anyway.
            worker.handle(Command::Start { start: request(step), need: 50 }, &mut engine, &mut events);
        }
        worker.step(Duration::from_millis(step), &mut engine, &mut events);
        events.iter().for_each(|event| reporter.note(event));
        if let Some(report) = reporter.take(&mut worker) {
            told = Some(report.facts.kv_free);
            reports += 1;
        }
        let free = worker.facts().kv_free;
        assert!(told.unwrap().abs_diff(free) < GROWTH_TOKENS, "step {step}: told {told:?}, free {free}");
    }
    assert!(reports < 140, "{reports} reports of 280 steps: tokens alone wake nobody");
}
