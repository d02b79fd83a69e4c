//! Who may wait, and in which order the native scheduler serves those that do.
use super::*;

#[test]
fn dispatches_in_order_of_arrival_as_capacity_comes_free() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=4).for_each(|id| submit(&mut pool, id, ms(id)).unwrap());
    assert_eq!(submit(&mut pool, 5, ms(5)), Err(QueueFull { waiting: 4 }));
    assert_eq!(started(&pool.schedule(ms(10))), [1, 2]);
    assert_eq!((pool.waiting(), pool.running()), (2, 2));
    assert_eq!(started(&pool.schedule(ms(11))), [] as [u64; 0], "nothing happened");
    tell(&mut pool, finished(1));
    let out = pool.schedule(ms(12));
    assert!(matches!(&out[..], [Output::Start { start, waited, .. }] if start.id.0 == 3 && *waited == ms(9)));
    assert!(pool.check());
}

#[test]
fn stops_accepting_at_the_high_mark_and_accepts_again_at_the_low_one() {
    let hook = Arc::new(Scripted::default());
    let mut pool = Pool::new(hook, Watermarks { high: 4, low: 2 }, Reserve::Full);
    (1..=4).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    assert_eq!(submit(&mut pool, 5, ms(0)), Err(QueueFull { waiting: 4 }));
    pool.cancel(RequestId(1), CancelReason::Client);
    assert_eq!(submit(&mut pool, 5, ms(0)), Err(QueueFull { waiting: 3 }), "between the marks nothing changes");
    pool.cancel(RequestId(2), CancelReason::Client);
    assert!(pool.accepts() && submit(&mut pool, 5, ms(0)).is_ok());
    pool.set_watermarks(Watermarks { high: 3, low: 1 });
    assert!(!pool.accepts());
    pool.set_watermarks(Watermarks { high: 9, low: 1 });
    assert!(pool.accepts() && pool.check());
}

#[test]
fn a_tenant_takes_no_more_of_the_queue_than_its_share() {
    let hook = Arc::new(Scripted::default());
    let mut pool = Pool::new(hook, Watermarks { high: 8, low: 2 }, Reserve::Full);
    let of = |pool: &mut Pool, id: u64, tenant: &str, share| {
        let start = Box::new(Start { tenant: tenant.into(), ..*start(id) });
        pool.submit(NewRequest { start, queue_share: share, ..new(id, ms(0)) }).is_ok()
    };
    assert!(
        of(&mut pool, 1, "a", Some(0.25)) && of(&mut pool, 2, "a", Some(0.25)) && !of(&mut pool, 3, "a", Some(0.25))
    );
    assert!(of(&mut pool, 4, "b", Some(0.01)) && !of(&mut pool, 5, "b", Some(0.01)), "one may always wait");
    assert!(of(&mut pool, 6, "c", None));
    pool.cancel(RequestId(1), CancelReason::Client);
    assert!(of(&mut pool, 7, "a", Some(0.25)));
    assert!(pool.check());
}

#[test]
fn regression_one_tenant_fills_no_queue_for_another() {
    let hook = Arc::new(Scripted::default());
    let mut pool = Pool::new(hook, Watermarks { high: 4, low: 2 }, Reserve::Full);
    (1..=4).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    let mut of = |id: u64, tenant: &str| {
        let start = Box::new(Start { tenant: tenant.into(), ..*start(id) });
        pool.submit(NewRequest { start, ..new(id, ms(0)) })
    };
    assert_eq!(of(5, "t"), Err(QueueFull { waiting: 4 }));
    assert_eq!((of(6, "polite"), of(7, "polite")), (Ok(()), Err(QueueFull { waiting: 5 })));
    let others: Vec<bool> = (8..20).map(|id| of(id, &format!("tenant {id}")).is_ok()).collect();
    assert_eq!(others.iter().filter(|&&entered| entered).count(), 3, "twice the high watermark for all together");
    assert!(pool.check());
}

#[test]
fn natively_the_first_class_goes_first_and_a_low_request_ages() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    let now = Duration::from_secs(100);
    let mut add = |id: u64, at: u64, priority| {
        let start = Box::new(Start { priority, ..*start(id) });
        pool.submit(NewRequest { start, ..new(id, Duration::from_secs(at)) }).unwrap();
    };
    add(1, 30, Priority::Low);
    add(2, 89, Priority::High);
    add(3, 91, Priority::High);
    add(4, 10, Priority::Normal);
    // 30 s lift by a class: the normal one stands where a high one of 40 s would, the low one where one of 90 s would.
    let mut order = started(&pool.schedule(now));
    while order.len() < 4 {
        tell(&mut pool, finished(order[order.len() - 1]));
        order.extend(started(&pool.schedule(now)));
    }
    assert_eq!(order, [4, 2, 1, 3]);
}

proptest! {
    #[test]
    fn the_queue_opens_and_closes_at_its_marks_only(acts in prop::collection::vec(any::<bool>(), 0..200)) {
        let mut pool = Pool::new(Arc::new(Scripted::default()), Watermarks { high: 10, low: 5 }, Reserve::Full);
        let (mut next, mut live, mut open) = (0, Vec::new(), true);
        for arrives in acts {
            if arrives {
                next += 1;
                prop_assert_eq!(submit(&mut pool, next, ms(0)).is_ok(), open);
                if open {
                    live.push(next);
                }
            } else if let Some(id) = live.pop() {
                pool.cancel(RequestId(id), CancelReason::Client);
            }
            open = if live.len() >= 10 { false } else if live.len() <= 5 { true } else { open };
            prop_assert_eq!(pool.accepts(), open);
        }
    }
}

const CLASSES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

proptest! {
    #[test]
    fn natively_they_start_in_order_of_class_age_and_arrival(
        arrivals in prop::collection::vec((0u64..200, 0usize..3), 1..30),
    ) {
        let hook = Arc::new(Scripted::default());
        let mut pool = Pool::new(hook, Watermarks { high: 100, low: 50 }, Reserve::Full);
        let mut expected: Vec<(Duration, u64)> = Vec::new();
        for (id, (seconds, class)) in (1..).zip(arrivals) {
            let (arrived, priority) = (Duration::from_secs(seconds), CLASSES[class]);
            let start = Box::new(Start { priority, ..*start(id) });
            pool.submit(NewRequest { start, ..new(id, arrived) }).unwrap();
            expected.push((arrived + Duration::from_secs(30) * class as u32, id));
        }
        expected.sort();
        pool.add_worker(W, LIMITS);
        let (mut order, mut running): (Vec<u64>, Vec<u64>) = Default::default();
        while order.len() < expected.len() {
            let begun = started(&pool.schedule(Duration::from_secs(1000)));
            prop_assert!(!begun.is_empty() || !running.is_empty(), "{} of {} started", order.len(), expected.len());
            order.extend(&begun);
            running.extend(begun);
            tell(&mut pool, finished(running.remove(0)));
        }
        prop_assert_eq!(order, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
        prop_assert!(pool.check());
    }

    #[test]
    fn whoever_waits_past_its_deadline_is_answered_once_and_nobody_before(
        deadlines in prop::collection::vec(prop::option::of(1u64..100), 1..30),
        looks in prop::collection::btree_set(0u64..120, 1..10),
    ) {
        let hook = Arc::new(Scripted::default());
        let mut pool = Pool::new(hook, Watermarks { high: 100, low: 50 }, Reserve::Full);
        for (id, deadline) in (1..).zip(&deadlines) {
            pool.submit(NewRequest { deadline: deadline.map(ms), ..new(id, ms(0)) }).unwrap();
        }
        let mut before = None;
        for now in looks {
            let mut failed: Vec<u64> = pool.schedule(ms(now)).iter().map(|output| match output {
                Output::Fail { id, error: WorkerError::DeadlineExceeded } => id.0,
                other => panic!("{other:?}"),
            }).collect();
            failed.sort_unstable();
            let due = |&deadline: &u64| deadline <= now && before.is_none_or(|before| deadline > before);
            let expected: Vec<u64> = (1..).zip(&deadlines).filter(|(_, d)| d.as_ref().is_some_and(due)).map(|(id, _)| id).collect();
            prop_assert_eq!(failed, expected, "at {} ms", now);
            let left = deadlines.iter().flatten().filter(|&&deadline| deadline > now).min();
            prop_assert_eq!(pool.next_call(), left.map(|&left| ms(left)));
            before = Some(now);
        }
        prop_assert_eq!(pool.waiting(), deadlines.iter().filter(|d| d.is_none_or(|d| before.is_none_or(|now| d > now))).count());
        prop_assert!(pool.check());
    }
}

#[test]
fn regression_both_choices_of_a_request_enter_a_full_queue() {
    let hook = Arc::new(Scripted::default());
    let mut pool = Pool::new(hook, Watermarks { high: 4, low: 2 }, Reserve::Full);
    (1..=4).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    let mut of = |id: u64, first: u64| {
        let start = Box::new(Start { tenant: "polite".into(), ..*start(id) });
        pool.submit(NewRequest { start, first_choice: RequestId(first), ..new(id, ms(0)) })
    };
    assert_eq!((of(5, 5), of(6, 5)), (Ok(()), Ok(())));
    assert_eq!(of(7, 7), Err(QueueFull { waiting: 6 }), "another request");
    assert_eq!((of(8, 5), of(9, 5)), (Ok(()), Ok(())));
    assert_eq!(of(10, 5), Err(QueueFull { waiting: 8 }), "past twice the mark");
    assert!(pool.check());
}
