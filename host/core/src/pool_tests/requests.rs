//! Deadlines, cancellations, lost workers: how requests end, and what the books say then.
use super::*;

#[test]
fn a_cancelled_generation_leaves_the_queue_or_is_reported_to_its_worker_once() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=3).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(1));
    assert_eq!(pool.cancel(RequestId(3), CancelReason::Client), None);
    assert_eq!(pool.waiting(), 0);
    let tell = Output::Send { worker: W, command: Command::Cancel { id: RequestId(1) } };
    assert_eq!(pool.cancel(RequestId(1), CancelReason::Client), Some(tell));
    assert_eq!(pool.cancel(RequestId(1), CancelReason::Client), None);
    assert_eq!(pool.cancel(RequestId(77), CancelReason::Client), None);
    assert!(pool.check());
}

#[test]
fn a_deadline_is_kept_at_the_bound() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=2).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(0));
    pool.submit(NewRequest { deadline: Some(ms(100)), ..new(3, ms(0)) }).unwrap();
    assert_eq!(pool.next_call(), Some(ms(100)));
    assert_eq!(pool.schedule(ms(99)), []);
    assert_eq!(pool.schedule(ms(100)), [Output::Fail { id: RequestId(3), error: WorkerError::DeadlineExceeded }]);
}

#[test]
fn regression_cancelled_generations_do_not_shorten_what_is_reserved() {
    let mut pool = Pool::new(Arc::new(Scripted::default()), Watermarks { high: 100, low: 50 }, Reserve::Expected);
    pool.add_worker(W, EngineLimits { sequences: 4, kv_tokens: 10_000, batch_tokens: 64, context_tokens: 10_000 });
    let add = |pool: &mut Pool, id| {
        let start = Box::new(Start { max_tokens: 5000, ..*start(id) });
        pool.submit(NewRequest { start, ..new(id, ms(0)) }).unwrap();
        pool.queue()[0].need
    };
    let before = add(&mut pool, 1);
    pool.schedule(ms(0));
    for id in 1..30 {
        let reason = FinishReason::Cancelled;
        tell(&mut pool, Event::Finished { id: RequestId(id), reason, usage: Usage::default() });
        assert_eq!(add(&mut pool, id + 1), before);
        pool.schedule(ms(0));
    }
}

const fn tokens(kv_tokens: u32) -> EngineLimits {
    EngineLimits { sequences: 4, kv_tokens, batch_tokens: 64, context_tokens: kv_tokens }
}

fn large(id: u64, max_tokens: u32) -> NewRequest {
    NewRequest { start: Box::new(Start { max_tokens, ..*start(id) }), ..new(id, ms(0)) }
}

fn needs(pool: &Pool) -> Vec<u32> {
    pool.queue().iter().map(|waiting| waiting.need).collect()
}

#[test]
fn regression_what_waits_needs_no_more_than_a_worker_that_was_made_smaller_has() {
    for faulty in [false, true] {
        let hook = Arc::new(Scripted::default());
        if faulty {
            // The native scheduler decides in the place of one that has no turn before its pause is over.
            hook.answers
                .lock()
                .unwrap()
                .push(Box::new(|_| Err(Fault { plugin: "s".into(), kind: FaultKind::Trap, detail: String::new() })));
        }
        let mut pool = Pool::new(hook, Watermarks { high: 100, low: 50 }, Reserve::Full);
        pool.add_worker(W, tokens(32_000));
        (1..=5).for_each(|id| pool.submit(large(id, 9000)).unwrap());
        let sent =
            |outputs: Vec<Output>| outputs.iter().filter(|output| matches!(output, Output::Start { .. })).count();
        assert_eq!(sent(pool.schedule(ms(0))), 3);
        pool.worker_lost(W);
        assert_eq!(sent(pool.schedule(ms(1))), 0);
        pool.add_worker(W, tokens(8192));
        assert_eq!(needs(&pool), [8192, 8192]);
        assert_eq!(sent(pool.schedule(ms(2))), 1, "one takes all of it, and does not wait until its deadline");
        assert!(pool.check());
    }
}

#[test]
fn regression_a_small_worker_is_not_sent_what_only_another_one_holds() {
    let mut pool = Pool::new(Arc::new(Scripted::default()), Watermarks { high: 100, low: 50 }, Reserve::Full);
    let other = WorkerId(W.0 + 1);
    [W, other].iter().for_each(|&worker| pool.add_worker(worker, tokens(9100)));
    (1..=3).for_each(|id| pool.submit(large(id, 9000)).unwrap());
    assert_eq!(pool.schedule(ms(0)).len(), 2);
    pool.worker_lost(other);
    pool.add_worker(other, tokens(8192));
    assert_eq!(needs(&pool), [9010]);
    assert_eq!(pool.schedule(ms(1)), [], "it waits for the larger one");
    pool.worker_lost(W);
    pool.add_worker(W, tokens(512));
    assert_eq!(needs(&pool), [8192], "there is none that is larger any more");
    let sent = pool.schedule(ms(2));
    assert!(matches!(sent[..], [Output::Start { worker, .. }] if worker == other), "{sent:?}");
}

#[test]
fn the_generations_of_a_lost_worker_are_named_and_nothing_is_dispatched_to_it() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=3).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(1));
    let mut lost = pool.worker_lost(W);
    lost.sort();
    assert_eq!(lost, [RequestId(1), RequestId(2)]);
    assert!(!pool.is_healthy() && pool.check());
    assert_eq!(pool.schedule(ms(2)), []);
}

proptest! {
    #[test]
    fn the_books_add_up_under_any_order_of_events(acts in prop::collection::vec((0u8..5, 0u64..12), 0..150)) {
        let hook = Arc::new(Scripted::default());
        let mut pool = pool(&hook);
        let (mut now, mut on_worker, mut next) = (ms(0), Vec::new(), 0);
        for (act, n) in acts {
            now += ms(n);
            match act {
                0 | 1 => { next += 1; let _ = submit(&mut pool, next, now); }
                2 => { pool.cancel(RequestId(n), CancelReason::Client); }
                3 if !on_worker.is_empty() => {
                    let id = on_worker.remove(n as usize % on_worker.len());
                    tell(&mut pool, finished(id));
                }
                _ => on_worker.extend(started(&pool.schedule(now))),
            }
            prop_assert!(pool.check());
            prop_assert_eq!(pool.running(), on_worker.len());
        }
    }
}

#[test]
fn regression_a_deadline_binds_until_the_first_token_wherever_a_generation_is() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=2).for_each(|id| pool.submit(NewRequest { deadline: Some(ms(100)), ..new(id, ms(0)) }).unwrap());
    assert_eq!(started(&pool.schedule(ms(1))), [1, 2]);
    // The prompt of one is computed, the other one drew its first token.
    tell(&mut pool, Event::Started { id: RequestId(1), cached_tokens: 0 });
    tell(&mut pool, Event::Progressed { id: RequestId(2), prompt_tokens: 10, generated_tokens: 1 });
    assert_eq!(pool.next_call(), Some(ms(100)));
    assert_eq!(pool.schedule(ms(99)), []);
    let cancel = Output::Send { worker: W, command: Command::Cancel { id: RequestId(1) } };
    let fail = Output::Fail { id: RequestId(1), error: WorkerError::DeadlineExceeded };
    assert_eq!(pool.schedule(ms(100)), [fail, cancel], "the client hears of it before the worker can answer");
    assert_eq!((pool.next_call(), pool.running()), (None, 2), "its KV is not back yet");
    assert_eq!(pool.schedule(ms(200)), []);
    let reason = FinishReason::Cancelled;
    tell(&mut pool, Event::Finished { id: RequestId(1), reason, usage: Usage::default() });
    assert!(pool.running() == 1 && pool.check());
}

#[test]
fn regression_a_running_generation_that_is_cancelled_reaches_the_scheduler_as_cancelled() {
    let hook = Arc::new(Scripted::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    hook.answers.lock().unwrap().push(Box::new(move |point| {
        sink.lock().unwrap().extend(point.events.clone());
        let waits = |event: &SchedulerEvent| if let SchedulerEvent::Arrived(a) = event { Some(a.id) } else { None };
        Ok(point.events.iter().filter_map(waits).map(|id| Action::Dispatch { id, worker: W }).collect())
    }));
    let mut pool = pool(&hook);
    (1..=2).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(1));
    pool.cancel(RequestId(1), CancelReason::Client);
    seen.lock().unwrap().clear();
    tell(&mut pool, Event::Finished { id: RequestId(1), reason: FinishReason::Cancelled, usage: Usage::default() });
    tell(&mut pool, finished(2));
    pool.schedule(ms(2));
    let ends = [
        SchedulerEvent::Cancelled { id: RequestId(1), reason: CancelReason::Client },
        SchedulerEvent::Finished { id: RequestId(2), generated_tokens: 0, ending: Ending::Stop },
    ];
    assert!(seen.lock().unwrap().ends_with(&ends), "{seen:?}");
}

#[test]
fn regression_a_report_about_a_request_that_the_worker_does_not_have_changes_no_account() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=2).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    assert_eq!(started(&pool.schedule(ms(1))), [1, 2]);
    submit(&mut pool, 3, ms(1)).unwrap();
    let other = WorkerId(7);
    pool.add_worker(other, LIMITS);
    let before = pool.worker_facts();
    let running = |pool: &Pool| pool.worker_facts().iter().map(|facts| facts.running_sequences).collect::<Vec<_>>();
    // One that waits, one that another worker has, one that nobody knows.
    for (worker, id) in [(W, 3), (other, 1), (other, 99), (W, 99)] {
        let id = RequestId(id);
        let stray = [
            Event::Paused { id },
            Event::Admitted { id },
            Event::Preempted { id },
            Event::Resumed { id },
            finished(id.0),
        ];
        for event in stray {
            tell_of(&mut pool, worker, event);
            assert!(pool.check());
        }
    }
    assert_eq!((running(&pool), pool.waiting()), (before.iter().map(|facts| facts.running_sequences).collect(), 1));
    tell(&mut pool, Event::Paused { id: RequestId(1) });
    assert_eq!((pool.running(), pool.check()), (1, true));
    tell(&mut pool, Event::Resumed { id: RequestId(1) });
    (1..=2).for_each(|id| tell(&mut pool, finished(id)));
    assert_eq!((pool.running(), pool.check()), (0, true));
}
