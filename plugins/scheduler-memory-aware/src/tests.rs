//! The policy at scheduling points, and in long runs.
use camshaft_plugin::scheduler::testing::{arrival, check_load, check_placement, dispatched, point, worker, workers};
use camshaft_plugin::scheduler::{Arrival, CachedPrefix};
use proptest::prelude::*;

use super::*;

fn policy() -> MemoryAware {
    MemoryAware::new(Classes::default()).unwrap()
}

#[test]
fn takes_the_most_room_and_counts_what_is_cached() {
    let down = Worker { healthy: false, ..worker(3, 9, 9000) };
    let workers = [worker(0, 9, 300), worker(1, 9, 320), worker(2, 9, 100), down];
    let arrivals: Vec<Arrival> = (1..=3).map(arrival).collect();
    // Each takes 20: 320, then 300 twice, of which the first has fewer sequences.
    assert_eq!(dispatched(&policy().schedule(&point(&arrivals, &workers))), [(1, 1), (2, 0), (3, 1)]);
    let known = Arrival { cached: vec![CachedPrefix { worker: 0, tokens: 64 }], ..arrival(4) };
    assert_eq!(dispatched(&policy().schedule(&point(&[known], &workers))), [(4, 0)]);
}

proptest! {
    #[test]
    fn never_takes_a_worker_without_room(
        states in prop::collection::vec((any::<bool>(), 0u32..5, 0u32..5, 0u32..300), 1..5),
        need in 1u32..300,
        cached in 0u32..300,
    ) {
        let workers = workers(states);
        // What is cached does not make room for what does not fit.
        let request = Arrival { need, cached: vec![CachedPrefix { worker: 0, tokens: cached }], ..arrival(1) };
        let placed = dispatched(&policy().schedule(&point(&[request], &workers)));
        let fits = |w: &&Worker| w.healthy && w.free_sequences > 0 && w.kv_free >= need;
        prop_assert_eq!(placed.len(), usize::from(workers.iter().any(|w| fits(&w))));
        prop_assert!(placed.iter().all(|(_, on)| fits(&&workers[*on as usize])));
    }
}

#[test]
fn spreads_equal_requests_and_uses_a_worker_again_that_was_down() {
    check_placement(policy);
}

#[test]
fn serves_every_request_of_any_load() {
    (0..50).for_each(|seed| check_load(seed, policy));
}
