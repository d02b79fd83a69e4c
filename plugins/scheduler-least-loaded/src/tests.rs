//! The policy at scheduling points, and in long runs.
use camshaft_plugin::scheduler::Arrival;
use camshaft_plugin::scheduler::testing::{arrival, check_load, check_placement, dispatched, point, worker, workers};
use proptest::prelude::*;

use super::*;

fn policy() -> LeastLoaded {
    LeastLoaded::new(Classes::default()).unwrap()
}

#[test]
fn takes_the_fewest_active_sequences_then_the_fewest_prompt_tokens_then_the_most_free_kv() {
    let busy = Worker { running_sequences: 2, ..worker(0, 9, 9000) };
    let computing = Worker { prefilling_tokens: 5, ..worker(1, 9, 8000) };
    let workers =
        [busy, computing, worker(2, 9, 100), worker(3, 9, 200), Worker { healthy: false, ..worker(4, 9, 9000) }];
    let arrivals: Vec<Arrival> = (1..=4).map(arrival).collect();
    assert_eq!(dispatched(&policy().schedule(&point(&arrivals, &workers))), [(1, 3), (2, 2), (3, 1), (4, 0)]);
}

proptest! {
    #[test]
    fn no_worker_with_room_has_fewer_active_sequences_than_the_chosen_one(
        states in prop::collection::vec((any::<bool>(), 0u32..5, 0u32..5, 0u32..300), 1..5),
        need in 1u32..300,
    ) {
        let workers = workers(states);
        let request = Arrival { need, ..arrival(1) };
        let placed = dispatched(&policy().schedule(&point(&[request], &workers)));
        let fits = |w: &&Worker| w.healthy && w.free_sequences > 0 && w.kv_free >= need;
        let fewest = workers.iter().filter(fits).map(|w| w.running_sequences).min();
        prop_assert_eq!(placed.first().map(|(_, on)| workers[*on as usize].running_sequences), fewest);
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
