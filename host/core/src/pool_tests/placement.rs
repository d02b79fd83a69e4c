//! Where the native scheduler sends generations, and what the pool knows of workers' prefix caches.
use super::*;
use crate::fcfs::Fcfs;
use crate::policy::CachedPrefix;

const LARGE: EngineLimits = EngineLimits { sequences: 8, kv_tokens: 1000, batch_tokens: 64, context_tokens: 1000 };

fn pool_of(workers: u32, hook: &Arc<Scripted>) -> Pool {
    let mut pool = Pool::new(hook.clone(), Watermarks { high: 1000, low: 500 }, Reserve::Full);
    (0..workers).for_each(|id| pool.add_worker(WorkerId(id), LARGE));
    pool
}

fn active(pool: &Pool) -> Vec<u32> {
    pool.worker_facts().iter().map(|facts| facts.running_sequences).collect()
}

/// Where each started generation went.
fn placed(outputs: &[Output]) -> Vec<(u64, u32)> {
    let start = |output: &Output| match output {
        Output::Start { worker, start, .. } => Some((start.id.0, worker.0)),
        _ => None,
    };
    outputs.iter().filter_map(start).collect()
}

#[test]
fn load_spreads_over_workers_and_follows_their_health() {
    for workers in [2, 4] {
        let mut pool = pool_of(workers, &Arc::default());
        let mut ids = 1..;
        let mut submit = |pool: &mut Pool, count: u32| {
            ids.by_ref().take(count as usize).for_each(|id| submit(pool, id, ms(id)).unwrap());
        };
        for round in 1..=3 {
            submit(&mut pool, workers);
            pool.schedule(ms(0));
            assert_eq!(active(&pool), vec![round; workers as usize], "one more on each");
        }
        pool.worker_lost(WorkerId(0));
        submit(&mut pool, 5 * (workers - 1));
        pool.schedule(ms(0));
        let others = vec![8; workers as usize - 1];
        assert_eq!(active(&pool), [vec![0], others.clone()].concat(), "the others take what the lost one cannot");
        pool.add_worker(WorkerId(0), LARGE);
        submit(&mut pool, 8);
        pool.schedule(ms(0));
        assert_eq!(active(&pool), [vec![8], others].concat(), "a returned worker is used again");
        assert!(pool.waiting() == 0 && pool.check());
    }
}

proptest! {
    #[test]
    fn natively_each_goes_to_the_least_busy_worker_that_fits(
        workers in prop::sample::select(vec![2u32, 4]),
        acts in prop::collection::vec((0u8..4, 0u32..8, 1u32..400), 1..80),
    ) {
        let mut pool = pool_of(workers, &Arc::default());
        let (mut next, mut running, mut needs) = (0, Vec::new(), vec![0]);
        for (act, n, max_tokens) in acts {
            match act {
                0 | 1 => {
                    next += 1;
                    needs.push(10 + max_tokens);
                    let start = Box::new(Start { max_tokens, ..*start(next) });
                    pool.submit(NewRequest { start, ..new(next, ms(next)) }).unwrap();
                }
                2 if !running.is_empty() => {
                    let (id, on) = running.remove(n as usize % running.len());
                    tell_of(&mut pool, WorkerId(on), finished(id));
                }
                3 if pool.worker_facts()[0].healthy => {
                    pool.worker_lost(WorkerId(0));
                    running.retain(|&(_, on)| on != 0);
                }
                _ => pool.add_worker_if_lost(WorkerId(0)),
            }
            let before = pool.worker_facts();
            let placed = placed(&pool.schedule(ms(next)));
            // Later ones of the same point see the load of earlier ones.
            if let Some(&(id, first)) = placed.first() {
                let fits = |w: &&WorkerFacts| w.healthy && w.free_sequences > 0 && w.kv_free >= needs[id as usize];
                let least = before.iter().filter(fits).map(|w| (w.running_sequences, std::cmp::Reverse(w.kv_free))).min();
                let chosen = &before[first as usize];
                prop_assert!(fits(&chosen));
                prop_assert_eq!(least, Some((chosen.running_sequences, std::cmp::Reverse(chosen.kv_free))));
            }
            running.extend(placed);
            prop_assert!(pool.check());
        }
    }
}

impl Pool {
    fn add_worker_if_lost(&mut self, worker: WorkerId) {
        if self.worker_facts().iter().any(|facts| facts.worker == worker && !facts.healthy) {
            self.add_worker(worker, LARGE);
        }
    }
}

type Estimates = Arc<Mutex<Vec<(u64, Vec<CachedPrefix>)>>>;

/// What a scheduler is told about the caches, for each request that arrives.
fn estimates(hook: &Arc<Scripted>) -> Estimates {
    let seen = Estimates::default();
    let sink = seen.clone();
    let mut native = Fcfs::default();
    hook.answers.lock().unwrap().push(Box::new(move |point| {
        let arrived = point.events.iter().filter_map(|event| match event {
            SchedulerEvent::Arrived(arrival) => Some((arrival.id.0, arrival.cached.clone())),
            _ => None,
        });
        sink.lock().unwrap().extend(arrived);
        native.schedule(point)
    }));
    seen
}

#[test]
fn regression_positions_in_the_queue_age_as_the_native_scheduler_does() {
    let mut pool = Pool::new(Arc::<Scripted>::default(), Watermarks { high: 9, low: 5 }, Reserve::Full);
    for (id, at, priority) in [(1, 30, Priority::Low), (2, 89, Priority::High), (3, 91, Priority::High)] {
        let start = Box::new(Start { priority, ..*start(id) });
        pool.submit(NewRequest { start, ..new(id, Duration::from_secs(at)) }).unwrap();
    }
    let queue: Vec<u64> = pool.queue().iter().map(|arrival| arrival.id.0).collect();
    assert_eq!(queue, [2, 1, 3]);
}

#[test]
fn regression_schedulers_learn_what_each_worker_probably_has_cached() {
    let hook = Arc::new(Scripted::default());
    let seen = estimates(&hook);
    let mut pool = pool_of(2, &hook);
    let prompt: Arc<[crate::ids::Token]> = vec![crate::ids::Token(1); 100].into();
    let ask = |pool: &mut Pool, id: u64, tenant: &str| {
        let namespace = Namespace::Tenant(tenant.into());
        let start = Box::new(Start { namespace, prompt: prompt.clone(), tenant: tenant.into(), ..*start(id) });
        pool.submit(NewRequest { start, ..new(id, ms(id)) }).unwrap();
        pool.schedule(ms(id));
    };
    let on = |worker, tokens| CachedPrefix { worker: WorkerId(worker), tokens };
    ask(&mut pool, 1, "a");
    ask(&mut pool, 2, "a");
    ask(&mut pool, 3, "a");
    ask(&mut pool, 4, "b");
    pool.worker_lost(WorkerId(0));
    ask(&mut pool, 5, "a");
    let expected =
        [(1, vec![]), (2, vec![on(0, 96)]), (3, vec![on(0, 96), on(1, 96)]), (4, vec![]), (5, vec![on(1, 96)])];
    assert_eq!(*seen.lock().unwrap(), expected);
}

/// A session whose requests go to this one of two idle workers.
fn session_of(worker: u32) -> crate::ids::SessionId {
    let lands = |session: &crate::ids::SessionId| {
        let mut pool = pool_of(2, &Arc::default());
        let start = Box::new(Start { session: Some(session.clone()), ..*start(1) });
        pool.submit(NewRequest { start, ..new(1, ms(0)) }).unwrap();
        placed(&pool.schedule(ms(0))) == [(1, worker)]
    };
    (0..100).map(|n: u32| crate::ids::SessionId::new(n.to_string())).find(lands).unwrap()
}

/// Where two requests of 400 and 500 KV tokens go if the scheduler sends the first to worker 0 and the second to worker 1,
/// while the first one's session is kept by worker 1, which has 600 tokens free.
fn placed_beside_a_session(free_on_0: u32) -> Vec<(u64, u32)> {
    let hook = Arc::new(Scripted::default());
    hook.answers.lock().unwrap().push(Box::new(|_| {
        Ok([(1, 0), (2, 1)].map(|(id, w)| Action::Dispatch { id: RequestId(id), worker: WorkerId(w) }).into())
    }));
    let mut pool = pool_of(2, &hook);
    for (worker, kv_free) in [(0, free_on_0), (1, 600)] {
        let facts = WorkerFacts { kv_free, ..pool.worker_facts()[worker].clone() };
        pool.apply(WorkerId(worker as u32), Report::of(facts));
    }
    for (id, max_tokens, session) in [(1, 390, Some(session_of(1))), (2, 490, None)] {
        let start = Box::new(Start { max_tokens, session, ..*start(id) });
        pool.submit(NewRequest { start, ..new(id, ms(0)) }).unwrap();
    }
    let placed = placed(&pool.schedule(ms(0)));
    assert!(hook.refusals.lock().unwrap().is_empty() && pool.check());
    placed
}

#[test]
fn regression_a_session_that_goes_home_never_sends_another_request_where_its_kv_does_not_fit() {
    assert_eq!(placed_beside_a_session(600), [(1, 1), (2, 0)], "the second goes to the other worker, where it fits");
    assert_eq!(placed_beside_a_session(450), [(1, 0), (2, 1)], "it would fit nowhere, so both go where they were sent");
}
