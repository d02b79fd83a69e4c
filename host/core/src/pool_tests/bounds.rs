//! Bounds of what runs at once, changed while requests run and wait.
use std::collections::BTreeMap;

use super::*;

const WIDE: EngineLimits = EngineLimits { sequences: 6, kv_tokens: 1000, batch_tokens: 64, context_tokens: 100 };

fn wide() -> Pool {
    let mut pool = Pool::new(Arc::new(Scripted::default()), Watermarks { high: 64, low: 48 }, Reserve::Full);
    pool.add_worker(W, WIDE);
    pool
}

fn of(pool: &mut Pool, id: u64, tenant: &str) {
    let start = Box::new(Start { tenant: tenant.into(), ..*start(id) });
    pool.submit(NewRequest { start, ..new(id, ms(id)) }).unwrap();
}

fn tenant_bound(most: u32) -> Bounds {
    Bounds { tenant_sequences: Some(most), ..Bounds::default() }
}

#[test]
fn a_worker_runs_no_more_than_its_bound_and_more_once_that_rises() {
    let mut pool = wide();
    pool.set_bounds(Bounds { sequences: Some(2), ..Bounds::default() });
    (1..=5).for_each(|id| of(&mut pool, id, "t"));
    assert_eq!(started(&pool.schedule(ms(10))), [1, 2]);
    pool.set_bounds(Bounds { sequences: Some(3), ..Bounds::default() });
    assert_eq!(started(&pool.schedule(ms(11))), [3], "one more");
    pool.set_bounds(Bounds { sequences: Some(1), ..Bounds::default() });
    tell(&mut pool, finished(1));
    tell(&mut pool, finished(2));
    assert_eq!(started(&pool.schedule(ms(12))), [] as [u64; 0], "one runs still");
    tell(&mut pool, finished(3));
    assert_eq!(started(&pool.schedule(ms(13))), [4]);
    // One that begins anew is bound as well.
    pool.worker_lost(W);
    pool.add_worker(W, WIDE);
    of(&mut pool, 6, "t");
    assert_eq!(started(&pool.schedule(ms(14))), [5]);
    pool.set_bounds(Bounds::default());
    assert_eq!(started(&pool.schedule(ms(15))), [6]);
    assert!(pool.check());
}

#[test]
fn a_tenant_runs_no_more_than_its_bound_and_holds_nobody_up() {
    let mut pool = wide();
    pool.set_bounds(tenant_bound(2));
    (1..=4).for_each(|id| of(&mut pool, id, "greedy"));
    of(&mut pool, 5, "polite");
    assert_eq!(started(&pool.schedule(ms(10))), [1, 2, 5]);
    assert_eq!((pool.waiting(), pool.queue().len()), (2, 2), "those held back wait as others do");
    tell(&mut pool, finished(2));
    assert_eq!(started(&pool.schedule(ms(11))), [3]);
    // One that is held back may leave; the next one goes on.
    of(&mut pool, 6, "greedy");
    assert_eq!(pool.cancel(RequestId(4), CancelReason::Client), None);
    tell(&mut pool, finished(1));
    assert_eq!(started(&pool.schedule(ms(12))), [6]);
    assert!(pool.check());
}

#[test]
fn a_tenant_bound_that_falls_leaves_what_runs_and_holds_back_what_waits() {
    let mut pool = wide();
    (1..=9).for_each(|id| of(&mut pool, id, "t"));
    assert_eq!(started(&pool.schedule(ms(10))), [1, 2, 3, 4, 5, 6]);
    pool.set_bounds(tenant_bound(2));
    (1..=4).for_each(|id| tell(&mut pool, finished(id)));
    assert_eq!(started(&pool.schedule(ms(11))), [] as [u64; 0], "two run");
    tell(&mut pool, finished(5));
    assert_eq!(started(&pool.schedule(ms(12))), [7]);
    pool.set_bounds(tenant_bound(3));
    assert_eq!(started(&pool.schedule(ms(13))), [8]);
    pool.set_bounds(Bounds::default());
    assert_eq!(started(&pool.schedule(ms(14))), [9]);
    assert!(pool.check());
}

#[test]
fn of_a_tenants_requests_that_are_held_back_the_first_class_goes_first() {
    let mut pool = wide();
    pool.set_bounds(tenant_bound(1));
    let add = |pool: &mut Pool, id: u64, priority| {
        let start = Box::new(Start { priority, ..*start(id) });
        pool.submit(NewRequest { start, ..new(id, ms(id)) }).unwrap();
    };
    add(&mut pool, 1, Priority::Normal);
    add(&mut pool, 2, Priority::Low);
    add(&mut pool, 3, Priority::High);
    let mut order = Vec::new();
    for now in 10..13 {
        let now_started = started(&pool.schedule(ms(now)));
        now_started.iter().for_each(|&id| tell(&mut pool, finished(id)));
        order.extend(now_started);
    }
    assert_eq!(order, [1, 3, 2]);
}

#[test]
fn one_that_is_held_back_past_its_deadline_fails_as_others_do() {
    let mut pool = wide();
    pool.set_bounds(tenant_bound(1));
    of(&mut pool, 1, "t");
    pool.submit(NewRequest { deadline: Some(ms(50)), ..new(2, ms(2)) }).unwrap();
    assert_eq!(started(&pool.schedule(ms(10))), [1]);
    let out = pool.schedule(ms(60));
    assert!(matches!(out[..], [Output::Fail { id: RequestId(2), error: WorkerError::DeadlineExceeded }]), "{out:?}");
    assert!(pool.check() && pool.waiting() == 0);
}

#[test]
fn a_scheduler_cannot_send_what_it_was_not_told_of() {
    let hook = Arc::new(Scripted::default());
    let all = |_: &SchedulingPoint| Ok([1, 2].map(|id| Action::Dispatch { id: RequestId(id), worker: W }).to_vec());
    hook.answers.lock().unwrap().push(Box::new(all));
    let mut pool = Pool::new(hook.clone(), Watermarks { high: 4, low: 3 }, Reserve::Full);
    pool.add_worker(W, WIDE);
    pool.set_bounds(tenant_bound(1));
    (1..=2).for_each(|id| of(&mut pool, id, "t"));
    assert_eq!(started(&pool.schedule(ms(10))), [1], "the native one answers");
    assert_eq!(*hook.refusals.lock().unwrap(), ["request 2 waits for others of its tenant"]);
}

#[test]
fn a_scheduler_hears_of_a_bound_that_falls_by_a_replay() {
    let hook = Arc::new(Scripted::default());
    let heard: Arc<Mutex<Vec<(bool, usize)>>> = Arc::default();
    for _ in 0..2 {
        let heard = heard.clone();
        hook.answers.lock().unwrap().push(Box::new(move |point| {
            let arrivals = point.events.iter().filter(|event| matches!(event, SchedulerEvent::Arrived(_)));
            heard.lock().unwrap().push((point.replay, arrivals.count()));
            Ok(Vec::new())
        }));
    }
    let mut pool = Pool::new(hook, Watermarks { high: 9, low: 3 }, Reserve::Full);
    pool.add_worker(W, WIDE);
    (1..=5).for_each(|id| of(&mut pool, id, "t"));
    pool.schedule(ms(10));
    pool.set_bounds(tenant_bound(2));
    pool.schedule(ms(11));
    pool.set_bounds(tenant_bound(3));
    pool.schedule(ms(12));
    assert_eq!(*heard.lock().unwrap(), [(true, 5), (true, 2), (false, 1)]);
}

proptest! {
    #[test]
    fn whatever_comes_goes_and_is_bound_nobody_is_lost_and_no_tenant_begins_past_its_bound(
        deeds in prop::collection::vec((0u8..6, 0u64..4, 0u32..4), 1..120),
    ) {
        let mut pool = wide();
        let (mut bound, mut next) = (None::<u32>, 1);
        let (mut living, mut running): (BTreeMap<u64, u64>, Vec<u64>) = Default::default();
        for (step, (deed, which, most)) in deeds.into_iter().enumerate() {
            match deed {
                0 | 1 if living.len() < 40 => {
                    of(&mut pool, next, &which.to_string());
                    living.insert(next, which);
                    next += 1;
                }
                2 if !running.is_empty() => {
                    let id = running.remove(which as usize % running.len());
                    tell(&mut pool, finished(id));
                    living.remove(&id);
                }
                3 => {
                    if let Some((&id, _)) = living.iter().find(|(id, _)| !running.contains(id)) {
                        pool.cancel(RequestId(id), CancelReason::Client);
                        living.remove(&id);
                    }
                }
                4 => {
                    bound = Some(most.max(1));
                    pool.set_bounds(Bounds { tenant_sequences: bound, ..Bounds::default() });
                }
                5 if which == 0 => {
                    bound = None;
                    pool.set_bounds(Bounds::default());
                }
                _ => {}
            }
            for id in started(&pool.schedule(ms(1000 + step as u64))) {
                running.push(id);
                let of_tenant = running.iter().filter(|id| living[id] == living[running.last().unwrap()]).count();
                prop_assert!(bound.is_none_or(|bound| of_tenant <= bound as usize));
            }
            prop_assert!(pool.check());
        }
        // Everybody's turn comes.
        for step in 0..200 {
            running.drain(..).for_each(|id| { tell(&mut pool, finished(id)); living.remove(&id); });
            running = started(&pool.schedule(ms(5000 + step)));
        }
        prop_assert!(living.is_empty() && pool.check());
    }
}
