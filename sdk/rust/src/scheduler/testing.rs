//! Helpers for unit tests of scheduler policies: points built from arrivals and workers, and a cluster that checks a
//! policy over a whole run. Native only.
use std::collections::BTreeMap;

use super::lists::{Arrival, Worker};
use super::point::Point;
use super::policy::Policy;
pub use super::rehearsal::{Known, Rehearsal, Rejected};
use crate::Priority;
use crate::bindings::scheduler::{Actions, Arrivals, Point as Facts, Workers};

/// A request of 10 prompt tokens that needs 20 KV tokens and arrived `id` milliseconds after the pool started.
pub fn arrival(id: u64) -> Arrival {
    Arrival {
        id,
        arrived_ms: id,
        tenant: 0,
        priority: Priority::NORMAL,
        weight: 1.0,
        deadline_ms: 0,
        prompt_tokens: 10,
        max_tokens: 10,
        need: 20,
        cached: Vec::new(),
    }
}

/// A request of `tokens` tokens, half of them in the prompt.
pub fn sized(id: u64, tokens: u32) -> Arrival {
    Arrival { prompt_tokens: tokens / 2, max_tokens: tokens - tokens / 2, need: tokens, ..arrival(id) }
}

/// A healthy worker that runs one sequence, with this many free sequences and KV tokens.
pub fn worker(id: u32, free_sequences: u32, kv_free: u32) -> Worker {
    Worker {
        id,
        healthy: true,
        free_sequences,
        running_sequences: 1,
        kv_free,
        kv_total: kv_free.max(1000),
        prefilling_tokens: 0,
        tokens_per_second: 0.0,
        can_preempt: true,
    }
}

/// Workers 0, 1 and so on, by whether they are healthy, their free and running sequences, and their free KV tokens.
pub fn workers(states: impl IntoIterator<Item = (bool, u32, u32, u32)>) -> Vec<Worker> {
    let of = |(id, (healthy, free_sequences, running_sequences, kv_free))| Worker {
        healthy,
        running_sequences,
        ..worker(id, free_sequences, kv_free)
    };
    (0..).zip(states).map(of).collect()
}

/// A point at 1000 ms with these arrivals and workers.
pub fn point(arrivals: &[Arrival], workers: &[Worker]) -> Point<'static> {
    let mut point = Point::at(1000);
    point.workers = list_workers(workers);
    for arrival in arrivals {
        let list = &mut point.arrived;
        list.ids.push(arrival.id);
        list.arrived_ms.push(arrival.arrived_ms);
        list.tenants.push(arrival.tenant);
        list.priorities.push(arrival.priority);
        list.weights.push(arrival.weight);
        list.deadlines_ms.push(arrival.deadline_ms);
        list.prompt_tokens.push(arrival.prompt_tokens);
        list.max_tokens.push(arrival.max_tokens);
        list.need.push(arrival.need);
        list.cached_tokens.extend(workers.iter().map(|worker| arrival.cached_on(worker.id)));
    }
    point
}

fn list_workers(workers: &[Worker]) -> Workers {
    let mut list = no_workers();
    for worker in workers {
        list.ids.push(worker.id);
        list.healthy.push(worker.healthy);
        list.free_sequences.push(worker.free_sequences);
        list.running_sequences.push(worker.running_sequences);
        list.kv_free.push(worker.kv_free);
        list.kv_total.push(worker.kv_total);
        list.prefilling_tokens.push(worker.prefilling_tokens);
        list.tokens_per_second.push(worker.tokens_per_second);
        list.can_preempt.push(worker.can_preempt);
    }
    list
}

/// The dispatches of `actions`, as request and worker.
pub fn dispatched(actions: &Actions) -> Vec<(u64, u32)> {
    actions.dispatch_ids.iter().copied().zip(actions.dispatch_workers.iter().copied()).collect()
}

fn no_workers() -> Workers {
    Workers {
        ids: Vec::new(),
        healthy: Vec::new(),
        free_sequences: Vec::new(),
        running_sequences: Vec::new(),
        kv_free: Vec::new(),
        kv_total: Vec::new(),
        prefilling_tokens: Vec::new(),
        tokens_per_second: Vec::new(),
        can_preempt: Vec::new(),
    }
}

impl Point<'static> {
    /// A point without events and workers.
    pub fn at(now_ms: u64) -> Self {
        Self::test(Facts {
            now_ms,
            replay: false,
            arrived: Arrivals {
                ids: Vec::new(),
                arrived_ms: Vec::new(),
                tenants: Vec::new(),
                priorities: Vec::new(),
                weights: Vec::new(),
                deadlines_ms: Vec::new(),
                prompt_tokens: Vec::new(),
                max_tokens: Vec::new(),
                need: Vec::new(),
                cached_tokens: Vec::new(),
            },
            dispatched_ids: Vec::new(),
            dispatched_workers: Vec::new(),
            progressed_ids: Vec::new(),
            progressed_prompt: Vec::new(),
            progressed_generated: Vec::new(),
            finished_ids: Vec::new(),
            finished_generated: Vec::new(),
            cancelled_ids: Vec::new(),
            preempted_ids: Vec::new(),
            workers: no_workers(),
        })
    }
}

/// A policy and simulated workers that run the requests it dispatches. Keeps the host's books, and makes the host's
/// checks.
#[derive(Debug)]
pub struct Cluster<P> {
    policy: P,
    workers: Vec<Worker>,
    waiting: BTreeMap<u64, Arrival>,
    /// Sequences and KV tokens of each worker.
    size: (u32, u32),
    /// Requests that workers have, with those and whether they gave way.
    running: BTreeMap<u64, (Arrival, u32, bool)>,
    arrived: Vec<Arrival>,
    dispatched: Vec<(u64, u32)>,
    finished: Vec<u64>,
    now_ms: u64,
}

impl<P: Policy> Cluster<P> {
    /// Starts with idle workers, each with this many sequences and KV tokens.
    pub fn new(policy: P, workers: u32, sequences: u32, kv_tokens: u32) -> Self {
        let idle = |id| Worker { running_sequences: 0, ..worker(id, sequences, kv_tokens) };
        Self {
            policy,
            workers: (0..workers).map(idle).collect(),
            size: (sequences, kv_tokens),
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            arrived: Vec::new(),
            dispatched: Vec::new(),
            finished: Vec::new(),
            now_ms: 0,
        }
    }

    /// Adds a request, which arrives at the next point.
    pub fn submit(&mut self, arrival: Arrival) {
        self.waiting.insert(arrival.id, arrival.clone());
        self.arrived.push(arrival);
    }

    /// Calls the policy with everything since the last point. Panics if it dispatches what the host would refuse.
    pub fn schedule(&mut self) -> Vec<(u64, u32)> {
        self.now_ms += 1;
        let mut point =
            point(&std::mem::take(&mut self.arrived), &self.workers).tenants((0..8).map(|n| format!("tenant-{n}")));
        point.now_ms = self.now_ms;
        (point.dispatched_ids, point.dispatched_workers) = std::mem::take(&mut self.dispatched).into_iter().unzip();
        point.finished_generated = self.finished.iter().map(|_| 5).collect();
        point.finished_ids = std::mem::take(&mut self.finished);
        let actions = self.policy.schedule(&point);
        let mut ways = BTreeMap::new();
        for id in &actions.preempt_ids {
            let (_, on, gave_way) = self.running.get_mut(id).unwrap_or_else(|| panic!("request {id} does not run"));
            *ways.entry(*on).or_default() += 1;
            *gave_way = true;
        }
        let placed = dispatched(&actions);
        for &(id, on) in &placed {
            let arrival = self.waiting.remove(&id).unwrap_or_else(|| panic!("request {id} is not waiting"));
            let worker = &mut self.workers[on as usize];
            assert!(worker.healthy, "{worker:?}");
            if worker.free_sequences > 0 && worker.kv_free >= arrival.need {
                worker.free_sequences -= 1;
                worker.kv_free -= arrival.need;
            } else {
                let left: u32 = ways.get(&on).copied().unwrap_or_default();
                ways.insert(on, left.checked_sub(1).unwrap_or_else(|| panic!("{arrival:?} does not fit {worker:?}")));
            }
            self.running.insert(id, (arrival, on, false));
        }
        ways.keys().for_each(|&on| self.settle(on));
        placed.iter().for_each(|&(_, on)| self.settle(on));
        self.dispatched.clone_from(&placed);
        placed
    }

    /// What a worker says of itself. Where not all that it has fits, it offers nothing.
    fn settle(&mut self, on: u32) {
        let worker = &mut self.workers[on as usize];
        let needs = self.running.values().filter(|(_, of, _)| *of == on).map(|(arrival, ..)| arrival.need);
        let (count, need) = needs.fold((0, 0u32), |(count, all), need| (count + 1, all.saturating_add(need)));
        (worker.running_sequences, worker.free_sequences) = (count, self.size.0.saturating_sub(count));
        worker.kv_free = if count > self.size.0 { 0 } else { self.size.1.saturating_sub(need) };
    }

    /// Ends a running request.
    pub fn finish(&mut self, id: u64) {
        let (_, on, _) = self.running.remove(&id).unwrap_or_else(|| panic!("request {id} does not run"));
        self.settle(on);
        self.finished.push(id);
    }

    /// Takes a worker down and ends its requests.
    pub fn lose(&mut self, worker: u32) {
        self.workers[worker as usize].healthy = false;
        let lost: Vec<u64> = self.running.iter().filter(|(_, (_, on, _))| *on == worker).map(|(&id, _)| id).collect();
        lost.into_iter().for_each(|id| self.finish(id));
    }

    /// Brings a worker that was down back up.
    pub fn restore(&mut self, worker: u32) {
        self.workers[worker as usize].healthy = true;
    }

    /// Number of running requests of each worker.
    pub fn active(&self) -> Vec<u32> {
        self.workers.iter().map(|worker| worker.running_sequences).collect()
    }

    /// The requests that gave way to others, by id.
    pub fn gave_way(&self) -> Vec<u64> {
        self.running.iter().filter(|(_, (.., gave_way))| *gave_way).map(|(&id, _)| id).collect()
    }

    /// The running requests, by id.
    pub fn running(&self) -> Vec<u64> {
        self.running.keys().copied().collect()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a worker is idle while a waiting request fits on it.
    pub fn wastes_a_worker(&self) -> bool {
        let idle = |worker: &Worker| worker.healthy && worker.running_sequences == 0 && worker.free_sequences > 0;
        self.workers.iter().any(|w| idle(w) && self.waiting.values().any(|request| request.need <= w.kv_free))
    }
}

/// Checks that a policy spreads equal requests over 2 and 4 workers, that the other workers take over from one that is
/// down, and that the policy uses it again when it is back.
pub fn check_placement<P: Policy>(policy: impl Fn() -> P) {
    for workers in [2, 4] {
        let mut cluster = Cluster::new(policy(), workers, 8, 10_000);
        let mut ids = 1..;
        let mut submit =
            |cluster: &mut Cluster<P>, count| ids.by_ref().take(count).for_each(|id| cluster.submit(arrival(id)));
        for round in 1..=4 {
            submit(&mut cluster, workers as usize);
            cluster.schedule();
            assert_eq!(cluster.active(), vec![round; workers as usize], "one more on each");
        }
        cluster.lose(0);
        submit(&mut cluster, 4 * (workers as usize - 1));
        cluster.schedule();
        let others = vec![8; workers as usize - 1];
        assert_eq!(cluster.active(), [vec![0], others.clone()].concat(), "the others take what the lost one cannot");
        cluster.restore(0);
        submit(&mut cluster, 8);
        cluster.schedule();
        assert_eq!(cluster.active(), [vec![8], others].concat(), "a returned worker is used again");
        assert_eq!(cluster.waiting(), 0);
    }
}

/// Runs a random but repeatable load of requests of all sizes, classes and tenants on 1 to 4 workers, one of which goes
/// down and comes back. Checks that the policy dispatches nothing that the host would refuse, leaves no worker idle
/// while a request fits on it, and serves every request in the end.
pub fn check_load<P: Policy>(seed: u64, policy: impl Fn() -> P) {
    const REQUESTS: u64 = 200;
    const KV_TOKENS: u32 = 1000;
    for workers in 1..=4 {
        let mut numbers = Numbers(seed.wrapping_mul(4).wrapping_add(u64::from(workers)));
        let mut cluster = Cluster::new(policy(), workers, 4, KV_TOKENS);
        let mut next = 1;
        while next <= REQUESTS || cluster.waiting() + cluster.running().len() > 0 {
            for _ in 0..numbers.below(4).min(REQUESTS + 1 - next) {
                cluster.submit(any_arrival(next, cluster.now_ms, KV_TOKENS, &mut numbers));
                next += 1;
            }
            match numbers.below(20) {
                0 if workers > 1 => cluster.lose(0),
                1 | 2 => cluster.restore(0),
                _ => {}
            }
            let placed = cluster.schedule();
            assert!(!cluster.wastes_a_worker(), "a worker is idle beside a request that fits: {:?}", cluster.workers);
            let stuck = placed.is_empty() && cluster.running().is_empty() && cluster.waiting() > 0;
            assert!(!stuck, "nothing runs, nothing is dispatched: {:?}", cluster.workers);
            for id in cluster.running() {
                if numbers.below(3) == 0 {
                    cluster.finish(id);
                }
            }
        }
    }
}

fn any_arrival(id: u64, now_ms: u64, kv_tokens: u32, numbers: &mut Numbers) -> Arrival {
    let classes = [Priority::HIGH, Priority::NORMAL, Priority::LOW];
    let need = if numbers.below(10) == 0 { kv_tokens } else { 2 + numbers.below(300) as u32 };
    Arrival {
        arrived_ms: now_ms,
        tenant: numbers.below(3) as u32,
        priority: classes[numbers.below(3) as usize],
        // The host may reserve less than the request may generate.
        max_tokens: need * 2,
        ..sized(id, need)
    }
}

/// A repeatable random generator (Marsaglia, "Xorshift RNGs", 2003).
#[derive(Debug)]
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        let mut x = self.0 ^ 0x9e37_79b9_7f4a_7c15;
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0 = x;
        (x >> 16) % bound
    }
}
