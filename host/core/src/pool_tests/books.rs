//! What a scheduler may ask of the pool, the truth about ends and pauses, rejections, and calls that it asks for.
use super::*;
use crate::ids::SessionId;
use crate::policy::{Attributes, Hints, LatencyTarget, PoolBooks, RequestFacts};

/// What a request's facts are at the next point, with the workers' cached tokens.
type Told = (u32, u64, u32, Vec<u64>, Option<String>, Vec<u32>);

fn told(books: &dyn PoolBooks, id: u64) -> Option<Told> {
    let RequestFacts { need, group, turns, prefix_blocks, hints, .. } = books.request(RequestId(id))?;
    let mut cached = Vec::new();
    books.cached(RequestId(id), &mut cached);
    Some((need, group, turns, prefix_blocks.to_vec(), hints.get("a").map(str::to_owned), cached))
}

/// Asks the scheduler once, of which this is all that it does.
fn asked<R: Send + 'static>(
    pool: &mut Pool,
    hook: &Arc<Scripted>,
    ask: impl Fn(&SchedulingPoint) -> R + Send + 'static,
) -> R {
    let answer = Arc::new(Mutex::new(None));
    let sink = answer.clone();
    hook.answers.lock().unwrap().push(Box::new(move |point| {
        *sink.lock().unwrap() = Some(ask(point));
        Ok(Vec::new())
    }));
    *hook.generation.lock().unwrap() += 1;
    pool.schedule(ms(1000));
    assert!(hook.refusals.lock().unwrap().is_empty());
    answer.lock().unwrap().take().unwrap()
}

#[test]
fn a_scheduler_may_ask_of_any_request_that_lives_or_that_the_point_names() {
    let hook = Arc::new(Scripted::default());
    hook.answers.lock().unwrap().push(Box::new(|point| {
        let known = |id: u64| point.books.request(RequestId(id)).is_some();
        match point.events.len() {
            0 => assert_eq!(point.books.requests(), 0),
            // Both arrived, and one of them left before anybody was told of it.
            3 => assert!(known(1) && known(2) && !known(3) && point.books.requests() == 2),
            _ => assert!(known(1) && !known(2) && point.books.requests() == 2, "{point:?}"),
        }
        Ok(Vec::new())
    }));
    let mut pool = pool(&hook);
    pool.schedule(ms(0));
    (1..=2).for_each(|id| submit(&mut pool, id, ms(1)).unwrap());
    pool.cancel(RequestId(2), CancelReason::Client);
    pool.schedule(ms(2));
    submit(&mut pool, 4, ms(3)).unwrap();
    pool.schedule(ms(4));
    assert!(hook.turns.lock().unwrap().is_empty() && pool.check());
}

#[test]
fn needs_are_what_the_pool_compares_when_it_checks_a_dispatch() {
    for (kv_free, fits) in [(40, true), (39, false)] {
        let hook = Arc::new(Scripted::default());
        hook.answers.lock().unwrap().push(Box::new(|point| {
            let need = point.books.request(RequestId(1)).map(|facts| facts.need);
            assert_eq!(need, Some(40));
            Ok(vec![Action::Dispatch { id: RequestId(1), worker: W }])
        }));
        let mut pool = pool(&hook);
        submit(&mut pool, 1, ms(0)).unwrap();
        let facts = WorkerFacts { kv_free, ..pool.worker_facts()[0].clone() };
        pool.apply(W, Report::of(facts));
        pool.schedule(ms(1));
        assert_eq!(hook.refusals.lock().unwrap().is_empty(), fits, "{kv_free} free");
    }
}

#[test]
fn choices_of_one_request_and_requests_of_one_session_belong_together() {
    let hook = Arc::new(Scripted::default());
    let mut pool = Pool::new(hook.clone(), Watermarks { high: 99, low: 9 }, Reserve::Full);
    pool.add_worker(W, EngineLimits { sequences: 0, ..LIMITS });
    let mut enter = |id: u64, first: u64, tenant: &str, session: Option<&str>| {
        let session = session.map(SessionId::from);
        let start = Box::new(Start { tenant: tenant.into(), session, ..*start(id) });
        pool.submit(NewRequest { start, first_choice: RequestId(first), ..new(id, ms(id)) }).unwrap();
    };
    enter(0, 0, "a", None);
    enter(1, 0, "a", None);
    enter(2, 2, "a", None);
    // Two choices of a session's first request, then a second one; another tenant's session of the same name.
    enter(3, 3, "a", Some("s"));
    enter(4, 3, "a", Some("s"));
    enter(5, 5, "a", Some("s"));
    enter(6, 6, "b", Some("s"));
    let facts = asked(&mut pool, &hook, |point| (0..=6).map(|id| told(&*point.books, id).unwrap()).collect::<Vec<_>>());
    let groups: Vec<u64> = facts.iter().map(|told| told.1).collect();
    assert!(!groups.contains(&0));
    assert!(groups[0] == groups[1] && groups[3] == groups[4] && groups[4] == groups[5]);
    let distinct: std::collections::BTreeSet<_> = groups.iter().collect();
    assert_eq!(distinct.len(), 4, "{groups:?}");
    assert_eq!(facts.iter().map(|told| told.2).collect::<Vec<_>>(), [0, 0, 0, 0, 0, 1, 0]);
    // A session outlives its requests.
    (3..=5).for_each(|id| drop(pool.cancel(RequestId(id), CancelReason::Client)));
    let start = Box::new(Start { session: Some(SessionId::from("s")), tenant: "a".into(), ..*start(7) });
    pool.submit(NewRequest { start, ..new(7, ms(7)) }).unwrap();
    let later = asked(&mut pool, &hook, |point| told(&*point.books, 7).unwrap());
    assert_eq!((later.1, later.2), (groups[3], 2));
}

#[test]
fn prefix_blocks_are_equal_as_far_as_prompts_are_within_one_namespace() {
    let hook = Arc::new(Scripted::default());
    let mut pool = Pool::new(hook.clone(), Watermarks { high: 99, low: 9 }, Reserve::Full);
    pool.add_worker(W, EngineLimits { kv_tokens: 1000, context_tokens: 1000, ..LIMITS });
    for (id, tenant, end) in [(1, "a", 7), (2, "a", 8), (3, "b", 7)] {
        let mut prompt = vec![crate::ids::Token(1); 70];
        prompt.extend(vec![crate::ids::Token(end); 30]);
        let namespace = Namespace::Tenant(tenant.into());
        let start = Box::new(Start { prompt: prompt.into(), namespace, ..*start(id) });
        pool.submit(NewRequest { start, ..new(id, ms(id)) }).unwrap();
    }
    let facts = asked(&mut pool, &hook, |point| (1..=3).map(|id| told(&*point.books, id).unwrap()).collect::<Vec<_>>());
    let blocks: Vec<&[u64]> = facts.iter().map(|told| &told.3[..]).collect();
    assert_eq!(blocks[0].len(), 3);
    assert!(blocks[0][..2] == blocks[1][..2] && blocks[0][2] != blocks[1][2]);
    assert!(blocks[0].iter().all(|block| !blocks[2].contains(block)), "another tenant's cannot be compared");
    assert_eq!(facts[0].5, [0]);
    // Once it was sent, others of its beginning find it there.
    hook.answers.lock().unwrap().push(Box::new(|_| Ok(vec![Action::Dispatch { id: RequestId(1), worker: W }])));
    *hook.generation.lock().unwrap() += 1;
    pool.schedule(ms(2000));
    let cached = asked(&mut pool, &hook, |point| [2, 3].map(|id| told(&*point.books, id).unwrap().5));
    assert_eq!(cached, [vec![64], vec![0]], "as it is now, not as it was when the request arrived");
}

#[test]
fn hints_reach_the_scheduler_as_the_client_wrote_them() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    let hints = Arc::new(Hints::new(vec![("a".to_owned(), "batch".to_owned())]));
    pool.submit(NewRequest { hints, ..new(1, ms(0)) }).unwrap();
    submit(&mut pool, 2, ms(0)).unwrap();
    let hints = asked(&mut pool, &hook, |point| [1, 2].map(|id| told(&*point.books, id).unwrap().4));
    assert_eq!(hints, [Some("batch".to_owned()), None]);
}

#[test]
fn attributes_and_the_targets_among_them_are_what_policies_have_set() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    let mut attributes = Attributes::default();
    attributes.set("tier", "gold".to_owned()).unwrap();
    attributes.set("target.first-token-ms", "250".to_owned()).unwrap();
    let mut start = start(1);
    start.context.attributes = Arc::new(attributes);
    pool.submit(NewRequest { start, ..new(1, ms(0)) }).unwrap();
    let told = asked(&mut pool, &hook, |point| {
        let attributes = point.books.request(RequestId(1)).unwrap().attributes;
        let targets = [LatencyTarget::FirstToken, LatencyTarget::PerToken].map(|target| target.of(attributes));
        (attributes.get("tier").map(str::to_owned), targets)
    });
    assert_eq!(told, (Some("gold".to_owned()), [250, 0]));
}

#[test]
fn the_book_is_shared_with_a_scheduler_and_copied_only_for_one_that_keeps_it() {
    let hook = Arc::new(Scripted::default());
    let kept: Arc<Mutex<Vec<Arc<dyn PoolBooks>>>> = Arc::default();
    let sink = kept.clone();
    hook.answers.lock().unwrap().push(Box::new(move |point| {
        sink.lock().unwrap().push(point.books.clone());
        Ok(Vec::new())
    }));
    let mut pool = pool(&hook);
    pool.schedule(ms(0));
    submit(&mut pool, 1, ms(1)).unwrap();
    pool.schedule(ms(1));
    let kept = kept.lock().unwrap();
    assert_eq!(kept.iter().map(|books| books.requests()).collect::<Vec<_>>(), [0, 1], "as it was at its point");
    assert!(pool.check() && pool.waiting() == 1);
}

/// What is told of request 1, which runs, after these events.
fn events_after(events: Vec<Event>) -> Vec<SchedulerEvent> {
    let hook = Arc::new(Scripted::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    hook.answers.lock().unwrap().push(Box::new(move |point| {
        sink.lock().unwrap().extend(point.events.clone());
        let dispatch = Action::Dispatch { id: RequestId(1), worker: W };
        Ok(if point.replay { vec![dispatch] } else { Vec::new() })
    }));
    let mut pool = pool(&hook);
    submit(&mut pool, 1, ms(0)).unwrap();
    pool.schedule(ms(1));
    seen.lock().unwrap().clear();
    events.into_iter().for_each(|event| tell(&mut pool, event));
    pool.schedule(ms(2));
    seen.lock().unwrap().iter().filter(|event| !matches!(event, SchedulerEvent::Dispatched { .. })).cloned().collect()
}

#[test]
fn a_request_resumes_when_nothing_keeps_it_away_any_more() {
    let id = RequestId(1);
    let (preempted, admitted) = (Event::Preempted { id }, Event::Admitted { id });
    let (paused, back) = (Event::Paused { id }, Event::Resumed { id });
    let (away, resumed) = (SchedulerEvent::Preempted { id }, SchedulerEvent::Resumed { id });
    for (events, told) in [
        (vec![admitted.clone()], vec![]),
        (vec![preempted.clone(), admitted.clone()], vec![away.clone(), resumed.clone()]),
        (vec![paused.clone(), back.clone()], vec![away.clone(), resumed.clone()]),
        // Its KV was taken while it was paused: it runs once both are over.
        (vec![paused.clone(), preempted.clone(), back.clone()], vec![away.clone(), away.clone()]),
        (vec![paused, preempted, back.clone(), admitted], vec![away.clone(), away, resumed]),
        (vec![back], vec![]),
    ] {
        assert_eq!(events_after(events.clone()), told, "{events:?}");
    }
}

#[test]
fn ends_are_told_with_their_reason() {
    let id = RequestId(1);
    let finish = |reason| Event::Finished { id, reason, usage: Usage { generated_tokens: 7, ..Usage::default() } };
    let fail = |error| Event::Failed { id, error };
    let finished = |generated_tokens, ending| SchedulerEvent::Finished { id, generated_tokens, ending };
    let cancelled = |reason| SchedulerEvent::Cancelled { id, reason };
    for (event, told) in [
        (finish(FinishReason::Stop), finished(7, Ending::Stop)),
        (finish(FinishReason::Length), finished(7, Ending::Length)),
        (finish(FinishReason::Filtered), finished(7, Ending::Filter)),
        (fail(WorkerError::InvalidLogits), finished(0, Ending::Error)),
        // Nobody told the worker to end it.
        (finish(FinishReason::Cancelled), cancelled(CancelReason::SlowReader)),
        (fail(WorkerError::SlowReader), cancelled(CancelReason::SlowReader)),
    ] {
        assert_eq!(events_after(vec![event.clone()]), [told], "{event:?}");
    }
}

#[test]
fn a_lost_worker_a_deadline_and_a_rejection_are_told_as_such() {
    let hook = Arc::new(Scripted::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    let rejection = Rejection { code: "no_room".to_owned(), retry_after: ms(1500), ..Rejection::new("full") };
    let said = rejection.clone();
    hook.answers.lock().unwrap().push(Box::new(move |point| {
        sink.lock().unwrap().extend(point.events.clone());
        let dispatch = Action::Dispatch { id: RequestId(1), worker: W };
        let reject = Action::Reject { id: RequestId(2), rejection: said.clone() };
        Ok(if point.replay { vec![reject, dispatch] } else { Vec::new() })
    }));
    let mut pool = pool(&hook);
    (1..=2).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.submit(NewRequest { deadline: Some(ms(5)), ..new(3, ms(0)) }).unwrap();
    let fail = Output::Fail { id: RequestId(2), error: WorkerError::Rejected(Box::new(rejection)) };
    assert!(pool.schedule(ms(1)).contains(&fail));
    pool.worker_lost(W);
    pool.schedule(ms(5));
    let seen = seen.lock().unwrap();
    for event in [
        SchedulerEvent::Cancelled { id: RequestId(2), reason: CancelReason::Rejected },
        SchedulerEvent::Finished { id: RequestId(1), generated_tokens: 0, ending: Ending::WorkerLost },
        SchedulerEvent::Cancelled { id: RequestId(3), reason: CancelReason::Deadline },
    ] {
        assert!(seen.contains(&event), "{event:?} in {seen:?}");
    }
}

#[test]
fn a_request_cannot_be_rejected_twice() {
    let hook = Arc::new(Scripted::default());
    let reject = Action::Reject { id: RequestId(1), rejection: Rejection::new("no") };
    hook.answers.lock().unwrap().push(Box::new(move |_| Ok(vec![reject.clone(), reject.clone()])));
    let mut pool = pool(&hook);
    submit(&mut pool, 1, ms(0)).unwrap();
    assert_eq!(started(&pool.schedule(ms(1))), [1], "the native scheduler serves on");
    assert!(hook.refusals.lock().unwrap()[0].contains("twice"));
}

#[test]
fn a_scheduler_is_called_when_it_asked_to_be_and_not_after_another_took_its_place() {
    let hook = Arc::new(Scripted::default());
    let calls = Arc::new(Mutex::new(Vec::new()));
    let sink = calls.clone();
    hook.answers.lock().unwrap().push(Box::new(move |point| {
        sink.lock().unwrap().push(point.now);
        Ok(vec![Action::WakeAt { at: if point.replay { ms(500) } else { ms(0) } }])
    }));
    let mut pool = pool(&hook);
    pool.schedule(ms(1));
    assert_eq!(pool.next_call(), Some(ms(500)));
    pool.submit(NewRequest { deadline: Some(ms(300)), ..new(1, ms(0)) }).unwrap();
    assert_eq!(pool.next_call(), Some(ms(300)), "the deadline comes first");
    pool.cancel(RequestId(1), CancelReason::Client);
    // What has passed is as soon as may be, and a tight loop of wishes is a call each 10 ms.
    (2..=40).for_each(|now| drop(pool.schedule(ms(now))));
    assert_eq!(*calls.lock().unwrap(), [1, 2, 12, 22, 32].map(ms));
    assert_eq!(pool.next_call(), Some(ms(42)));
    *hook.generation.lock().unwrap() = 1;
    pool.schedule(ms(41));
    assert_eq!(pool.next_call(), None);
}
