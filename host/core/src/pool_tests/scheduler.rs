//! Schedulers that fault, are replaced, come back, or are swapped.
use super::*;

#[test]
fn refuses_actions_that_break_the_books_and_falls_back_to_native_at_once() {
    let dispatch = |id: u64, worker: u32| Action::Dispatch { id: RequestId(id), worker: WorkerId(worker) };
    let cases: Vec<(Vec<Action>, &str)> = vec![
        (vec![dispatch(9, 0)], "unknown"),
        (vec![dispatch(1, 7)], "worker 7"),
        (vec![dispatch(1, 0), dispatch(1, 0)], "twice"),
        (vec![dispatch(1, 0), dispatch(2, 0), dispatch(3, 0)], "full"),
        (vec![Action::Preempt { id: RequestId(1) }], "preempts"),
        (vec![Action::PrefillBudget { worker: WorkerId(3), tokens: 1 }], "budget"),
    ];
    for (actions, reason) in cases {
        let hook = Arc::new(Scripted::default());
        hook.answers.lock().unwrap().push(Box::new(move |_| Ok(actions.clone())));
        let mut pool = pool(&hook);
        (1..=3).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
        assert_eq!(started(&pool.schedule(ms(1))), [1, 2], "the native scheduler answers in its place");
        let refusals = hook.refusals.lock().unwrap();
        assert!(matches!(&refusals[..], [one] if one.contains(reason)), "{refusals:?} says {reason}");
        assert!(pool.check());
    }
}

#[test]
fn for_each_request_that_gives_way_another_goes_to_its_worker() {
    let preempt = |id: u64| Action::Preempt { id: RequestId(id) };
    let dispatch = |id: u64| Action::Dispatch { id: RequestId(id), worker: W };
    for (actions, refused) in [
        (vec![preempt(1), dispatch(3)], false),
        (vec![preempt(1), preempt(2), dispatch(3), dispatch(4)], false),
        (vec![dispatch(3)], true),
        (vec![dispatch(3), preempt(1)], true),
        (vec![preempt(1), dispatch(3), dispatch(4)], true),
        (vec![preempt(1), preempt(1), dispatch(3), dispatch(4)], true),
    ] {
        let hook = Arc::new(Scripted::default());
        let mut pool = pool(&hook);
        (1..=4).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
        assert_eq!(started(&pool.schedule(ms(1))), [1, 2]);
        let (scripted, mut asked) = (actions.clone(), 0);
        hook.answers.lock().unwrap().push(Box::new(move |_| {
            asked += 1;
            Ok(if asked == 1 { scripted.clone() } else { Vec::new() })
        }));
        *hook.generation.lock().unwrap() = 1;
        let outputs = pool.schedule(ms(2));
        assert_eq!(!hook.refusals.lock().unwrap().is_empty(), refused, "{actions:?}");
        let dispatches = actions.iter().filter(|action| matches!(action, Action::Dispatch { .. })).count();
        assert_eq!(started(&outputs).len(), if refused { 0 } else { dispatches }, "{actions:?}");
        // The worker's sequences are taken until one more ends than gave way.
        let facts = pool.worker_facts().pop().unwrap();
        assert_eq!(facts.free_sequences, 0, "{actions:?}");
        assert!(pool.check());
    }
}

#[test]
fn regression_what_is_off_the_engine_gives_no_way() {
    let preempted = Event::Preempted { id: RequestId(1) };
    let admitted = Event::Admitted { id: RequestId(1) };
    let (paused, resumed) = (Event::Paused { id: RequestId(1) }, Event::Resumed { id: RequestId(1) });
    for (events, refused) in [
        (vec![], false),
        (vec![preempted.clone()], true),
        (vec![preempted.clone(), admitted], false),
        (vec![paused.clone(), preempted], true),
        (vec![paused, resumed], false),
    ] {
        let hook = Arc::new(Scripted::default());
        let told = Arc::new(Mutex::new(Vec::new()));
        let mut pool = pool(&hook);
        (1..=2).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
        pool.schedule(ms(1));
        events.iter().for_each(|event| tell(&mut pool, event.clone()));
        // The place of a paused request is taken.
        (3..=4).for_each(|id| submit(&mut pool, id, ms(2)).unwrap());
        if pool.worker_facts()[0].free_sequences > 0 {
            pool.schedule(ms(3));
        }
        let sink = told.clone();
        let dispatch = Action::Dispatch { id: RequestId(4), worker: W };
        hook.answers.lock().unwrap().push(Box::new(move |point| {
            sink.lock().unwrap().clone_from(&point.events);
            Ok(if point.replay { vec![Action::Preempt { id: RequestId(1) }, dispatch.clone()] } else { Vec::new() })
        }));
        *hook.generation.lock().unwrap() = 1;
        pool.schedule(ms(4));
        assert_eq!(!hook.refusals.lock().unwrap().is_empty(), refused, "{events:?}");
        let says = told.lock().unwrap().contains(&SchedulerEvent::Preempted { id: RequestId(1) });
        assert_eq!(says, refused, "it is told: {events:?}");
    }
}

#[test]
fn a_worker_gets_four_times_as_many_requests_as_it_runs_at_once_and_no_more() {
    let hook = Arc::new(Scripted::default());
    let mut pool = Pool::new(hook.clone(), Watermarks { high: 40, low: 30 }, Reserve::Full);
    pool.add_worker(W, LIMITS);
    (1..=20).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(1));
    // Each one that was sent gives way to the next.
    hook.answers.lock().unwrap().push(Box::new(|point| {
        let next = point.now.as_millis() as u64 + 1;
        let dispatch = Action::Dispatch { id: RequestId(next), worker: W };
        Ok(if next > 2 { vec![Action::Preempt { id: RequestId(next - 2) }, dispatch] } else { Vec::new() })
    }));
    *hook.generation.lock().unwrap() = 1;
    for now in 2..=8 {
        tell(&mut pool, Event::Progressed { id: RequestId(now), prompt_tokens: 1, generated_tokens: 1 });
        let sent = started(&pool.schedule(ms(now)));
        assert_eq!(sent, if now < 8 { vec![now + 1] } else { vec![] }, "at {now}");
        assert_eq!(hook.refusals.lock().unwrap().is_empty(), now < 8);
    }
}

#[test]
fn a_faulted_scheduler_is_tried_again_after_a_back_off_that_doubles() {
    let hook = Arc::new(Scripted::default());
    let fault = |_: &SchedulingPoint| Err(Fault { plugin: "s".into(), kind: FaultKind::Trap, detail: String::new() });
    for _ in 0..3 {
        hook.answers.lock().unwrap().push(Box::new(fault));
    }
    let mut pool = pool(&hook);
    let opened = || *hook.opened.lock().unwrap();
    pool.schedule(ms(0));
    assert_eq!(opened(), 1);
    for (now, expected) in [(999, 1), (1000, 2), (2999, 2), (3000, 3), (6999, 3), (7000, 4)] {
        pool.schedule(ms(now));
        assert_eq!(opened(), expected, "at {now} ms");
    }
}

#[test]
fn regression_a_take_over_and_a_return_are_told_once_each_and_success_resets_the_back_off() {
    let fault = || Fault { plugin: "s".into(), kind: FaultKind::Trap, detail: "trapped".to_owned() };
    let hook = Arc::new(Scripted::default());
    // Opened from the last to the first: two faults, then one that answers three times and faults again, then none.
    let mut asked = 0;
    let lasting: Answer = Box::new(move |_| {
        asked += 1;
        if asked < 4 { Ok(Vec::new()) } else { Err(fault()) }
    });
    hook.answers.lock().unwrap().extend([lasting, Box::new(move |_| Err(fault())), Box::new(move |_| Err(fault()))]);
    let mut pool = pool(&hook);
    let turns = || std::mem::take(&mut *hook.turns.lock().unwrap());
    let told = |replaced, text: &str| vec![(replaced, text.to_owned())];
    pool.schedule(ms(0));
    assert_eq!(turns(), told(true, "trapped"));
    pool.schedule(ms(1000));
    assert_eq!(turns(), [], "replaced already");
    pool.schedule(ms(3000));
    assert_eq!(turns(), told(false, "scripted"));
    for (now, expected) in [(3001, vec![]), (7000, vec![]), (7001, told(true, "trapped")), (8000, vec![])] {
        submit(&mut pool, now, ms(now)).unwrap();
        pool.schedule(ms(now));
        assert_eq!(turns(), expected, "at {now} ms");
    }
    pool.schedule(ms(8001));
    assert_eq!(turns(), told(false, "native"), "the first back-off again, and no policy is left");
}

#[test]
fn regression_a_scheduler_that_faults_at_every_second_point_is_tried_ever_less_often() {
    let hook = Arc::new(Scripted::default());
    for _ in 0..8 {
        let mut asked = 0;
        hook.answers.lock().unwrap().push(Box::new(move |_| {
            asked += 1;
            let fault = || Fault { plugin: "s".into(), kind: FaultKind::Trap, detail: String::new() };
            if asked == 1 { Ok(Vec::new()) } else { Err(fault()) }
        }));
    }
    let mut pool = pool(&hook);
    // A point each 100 ms for 20 s: opened at 0, and after pauses of 1, 2, 4 and 8 s.
    for n in 0..200 {
        submit(&mut pool, n, ms(100 * n)).unwrap();
        pool.schedule(ms(100 * n));
        // It ends at once, wherever it is.
        pool.cancel(RequestId(n), CancelReason::Client);
        tell(&mut pool, Event::Finished { id: RequestId(n), reason: FinishReason::Cancelled, usage: Usage::default() });
    }
    assert_eq!(*hook.opened.lock().unwrap(), 5);
}

#[test]
fn regression_a_scheduler_that_was_promoted_is_judged_by_its_own_breaker() {
    let hook = Arc::new(Scripted::default());
    let fault = |_: &SchedulingPoint| Err(Fault { plugin: "s".into(), kind: FaultKind::Trap, detail: String::new() });
    for _ in 0..4 {
        hook.answers.lock().unwrap().push(Box::new(fault));
    }
    let mut pool = pool(&hook);
    // The trial is over before its first point.
    *hook.breaker.lock().unwrap() = Some(BreakerSettings { faults: 3, ..BreakerSettings::SINGLE });
    for (now, opened) in [(0, 1), (1, 2), (2, 3), (3, 3), (1001, 3), (1002, 4)] {
        pool.schedule(ms(now));
        assert_eq!(*hook.opened.lock().unwrap(), opened, "at {now} ms");
    }
}

#[test]
fn regression_a_swapped_scheduler_gets_the_whole_state_replayed() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=4).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(1));
    tell(&mut pool, Event::Progressed { id: RequestId(1), prompt_tokens: 10, generated_tokens: 1 });
    tell(&mut pool, Event::Preempted { id: RequestId(1) });
    tell(&mut pool, Event::Preempted { id: RequestId(2) });
    tell(&mut pool, Event::Admitted { id: RequestId(2) });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    hook.answers.lock().unwrap().push(Box::new(move |point| {
        assert!(point.replay);
        sink.lock().unwrap().clone_from(&point.events);
        Ok(Vec::new())
    }));
    *hook.generation.lock().unwrap() = 1;
    pool.schedule(ms(2));
    let a = |id| SchedulerEvent::Arrived(arrival(id, ms(0)));
    let d = |id| SchedulerEvent::Dispatched { id: RequestId(id), worker: W };
    let progress = SchedulerEvent::Progressed { id: RequestId(1), prompt_tokens: 10, generated_tokens: 1 };
    let preempted = SchedulerEvent::Preempted { id: RequestId(1) };
    assert_eq!(*seen.lock().unwrap(), [a(1), d(1), progress, preempted, a(2), d(2), a(3), a(4)]);
}
