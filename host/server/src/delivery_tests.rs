//! Tests of delivery to clients that read, that read slowly, and that have left.
use std::future::ready;
use std::sync::Arc;

use camshaft_api::backend::Shared;
use camshaft_core::answering::Answering;
use camshaft_core::ids::{Generation, PolicyDigest};
use camshaft_core::message::{Delta, FinishReason, Usage, WorkerError};
use camshaft_core::policy::{
    AuthOutcome, AuthRequest, Authentication, PolicySet, ValidateOutcome, ValidateRequest, Validation,
};
use tokio::sync::mpsc;

use super::*;

#[derive(Debug)]
pub(crate) struct NoPolicies;

impl PolicySet for NoPolicies {
    fn generation(&self) -> Generation {
        Generation(0)
    }
    fn has_auth(&self) -> bool {
        false
    }
    fn authenticate<'a>(&'a self, _: &'a Arc<AuthRequest>) -> Answering<'a, Authentication> {
        Box::pin(ready(AuthOutcome::Allow(camshaft_core::policy::Principal::anonymous()).into()))
    }
    fn validators(&self) -> usize {
        0
    }
    fn validate(&self, _: usize, _: &Arc<ValidateRequest>) -> Answering<'static, Validation> {
        Box::pin(ready(ValidateOutcome::Accept.into()))
    }
    fn sampler_chain(&self) -> PolicyDigest {
        PolicyDigest::NATIVE
    }

    fn filter_chain(&self) -> PolicyDigest {
        PolicyDigest::NATIVE
    }
    fn samplers(&self, _: camshaft_core::policy::Target<'_>) -> Vec<camshaft_core::ids::PolicyName> {
        Vec::new()
    }
}

const ID: RequestId = RequestId(1);
const CUT_AFTER: Duration = Duration::from_secs(5);

fn delta(text: &str) -> Event {
    Event::Delta { id: ID, delta: Delta { text: text.into(), tokens: 1, logprobs: Vec::new() } }
}

#[test]
fn a_slow_reader_gets_every_word_merged_and_in_order() {
    let now = Instant::now();
    let (sender, mut receiver) = mpsc::channel(2);
    let mut streams = Delivery::new(Duration::ZERO, CUT_AFTER);
    streams.insert(ID, Stream::new(sender, Shared::default(), Arc::new(NoPolicies)));
    for word in ["a", "b", "c", "d", "e"] {
        streams.send(delta(word), now);
    }
    let end = Event::Finished { id: ID, reason: FinishReason::Stop, usage: Usage::default() };
    streams.send(end.clone(), now);
    assert!(streams.send_due(now));
    let (mut text, mut tokens, mut last) = (String::new(), 0, None);
    while last.is_none() {
        match receiver.try_recv().unwrap() {
            Event::Delta { delta, .. } => {
                text += &delta.text;
                tokens += delta.tokens;
            }
            other => last = Some(other),
        }
        streams.send_due(now);
    }
    assert_eq!((text.as_str(), tokens, last), ("abcde", 5, Some(end)));
    assert!(!streams.send_due(now) && streams.streams.is_empty());
}

#[test]
fn regression_what_nobody_reads_is_spent() {
    let now = Instant::now();
    let (sender, receiver) = mpsc::channel(1);
    let mut streams = Delivery::new(Duration::ZERO, CUT_AFTER);
    let spent = camshaft_api::Spent::default();
    streams.insert(ID, Stream::new(sender, Shared { spent: spent.clone(), ..Shared::default() }, Arc::new(NoPolicies)));
    (0..100).for_each(|_| streams.send(delta("a"), now));
    assert_eq!(spent.tokens(), 100);
    drop(receiver);
    streams.send(delta("b"), now);
    // One token had no text.
    let usage = Usage { generated_tokens: 102, ..Usage::default() };
    streams.send(Event::Finished { id: ID, reason: FinishReason::Stop, usage }, now);
    assert_eq!(spent.tokens(), 102);
}

#[test]
fn regression_a_cancelled_generation_says_nothing_more_to_its_client() {
    let (sender, mut receiver) = mpsc::channel(8);
    let mut streams = Delivery::new(Duration::ZERO, CUT_AFTER);
    streams.insert(ID, Stream::new(sender, Shared::default(), Arc::new(NoPolicies)));
    streams.send(Event::Finished { id: ID, reason: FinishReason::Cancelled, usage: Usage::default() }, Instant::now());
    assert!(receiver.try_recv().is_err() && streams.streams.is_empty(), "the pool said why");
}

#[test]
fn fast_text_shares_a_frame_but_the_first_and_the_end_wait_for_nothing() {
    let now = Instant::now();
    let (sender, mut receiver) = mpsc::channel(8);
    let mut streams = Delivery::new(Duration::from_secs(3600), Duration::ZERO);
    streams.insert(ID, Stream::new(sender, Shared::default(), Arc::new(NoPolicies)));
    let mut next = || match receiver.try_recv() {
        Ok(Event::Delta { delta, .. }) => Some(delta.text.to_string()),
        Ok(Event::Finished { .. }) => Some("END".to_owned()),
        _ => None,
    };
    streams.send(delta("a"), now);
    assert_eq!(next().as_deref(), Some("a"), "the first goes at once");
    assert!(!streams.send_due(now), "nothing waits");
    streams.send(delta("b"), now);
    streams.send(delta("c"), now);
    assert!(streams.send_due(now), "it waits for more, which the worker has to know");
    assert_eq!(next(), None);
    assert!(streams.review(now).is_empty(), "no reader is behind");
    streams.send_gathered(now);
    assert_eq!(next().as_deref(), Some("bc"), "nothing may come for a while");
    streams.send(delta("d"), now);
    streams.send(Event::Finished { id: ID, reason: FinishReason::Stop, usage: Usage::default() }, now);
    assert_eq!((next().as_deref(), next().as_deref()), (Some("d"), Some("END")));
    assert!(streams.streams.is_empty());
}

#[test]
fn text_waits_no_longer_than_the_interval() {
    let (sender, mut receiver) = mpsc::channel(8);
    let mut streams = Delivery::new(Duration::from_millis(1), CUT_AFTER);
    streams.insert(ID, Stream::new(sender, Shared::default(), Arc::new(NoPolicies)));
    let begun = Instant::now();
    let at = |micros: u64| begun + Duration::from_micros(micros);
    streams.send(delta("a"), at(0));
    streams.send(delta("b"), at(400));
    assert!(streams.send_due(at(999)), "it still waits");
    streams.send(delta("c"), at(999));
    assert!(!streams.send_due(at(1000)), "now it does not");
    // What comes at the interval's end does not wait at all.
    streams.send(delta("d"), at(2000));
    let text = std::iter::from_fn(|| receiver.try_recv().ok()).map(|event| match event {
        Event::Delta { delta, .. } => delta.text.to_string(),
        other => format!("{other:?}"),
    });
    assert_eq!(text.collect::<Vec<_>>(), ["a", "bc", "d"]);
}

#[test]
fn regression_a_slow_reader_is_paused_until_it_has_read_half_and_cut_in_the_end() {
    let (sender, mut receiver) = mpsc::channel(4);
    let mut streams = Delivery::new(Duration::ZERO, CUT_AFTER);
    streams.insert(ID, Stream::new(sender, Shared::default(), Arc::new(NoPolicies)));
    let (begun, second) = (Instant::now(), Duration::from_secs(1));
    let now = begun;
    ["a", "b", "c", "d"].iter().for_each(|text| streams.send(delta(text), now));
    assert!(streams.review(begun).is_empty(), "nothing waits");
    streams.send(delta("e"), now);
    assert!(streams.review(begun).is_empty(), "it is waited for");
    assert_eq!(streams.review(begun + second), [Command::Pause { id: ID }]);
    assert!(streams.review(begun + 2 * second).is_empty(), "said once");
    receiver.try_recv().unwrap();
    assert!(streams.send_due(now), "the worker has to look again");
    assert!(streams.review(begun + 3 * second).is_empty(), "one event less is not enough");
    receiver.try_recv().unwrap();
    assert!(streams.send_due(now), "though nothing waits to be sent");
    assert!(streams.review(begun + 7 * second).is_empty(), "it reads, so it is not cut");
    receiver.try_recv().unwrap();
    assert_eq!(streams.review(begun + 8 * second), [Command::Resume { id: ID }]);
    ["f", "g", "h"].iter().for_each(|text| streams.send(delta(text), now));
    assert!(streams.review(begun + 9 * second).is_empty());
    assert_eq!(streams.review(begun + 14 * second), [Command::Cancel { id: ID }]);
    // What the worker says of the cancelled sequence is not for the client.
    streams.send(Event::Finished { id: ID, reason: FinishReason::Cancelled, usage: Usage::default() }, now);
    assert!(matches!(receiver.try_recv(), Ok(Event::Delta { delta, .. }) if delta.text == "d"));
    while receiver.try_recv().is_ok() {}
    streams.send_due(now);
    assert_eq!(receiver.try_recv(), Ok(Event::Failed { id: ID, error: WorkerError::SlowReader }));
    assert!(streams.streams.is_empty());
}

#[test]
fn the_stream_of_a_client_that_left_is_forgotten_with_its_last_event() {
    let now = Instant::now();
    let (sender, receiver) = mpsc::channel(2);
    let mut streams = Delivery::new(Duration::ZERO, CUT_AFTER);
    streams.insert(ID, Stream::new(sender, Shared::default(), Arc::new(NoPolicies)));
    drop(receiver);
    streams.send(delta("x"), now);
    assert_eq!(streams.streams.len(), 1, "its sequence still runs");
    let end = Event::Finished { id: ID, reason: FinishReason::Cancelled, usage: Usage::default() };
    streams.send(end, now);
    assert!(streams.streams.is_empty());
}
