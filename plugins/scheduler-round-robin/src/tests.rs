//! The policy at scheduling points, and in long runs.
use camshaft_plugin::scheduler::testing::{arrival, check_load, check_placement, dispatched, point, worker};
use camshaft_plugin::scheduler::{Arrival, Worker};

use super::*;

fn policy() -> RoundRobin {
    RoundRobin::new(Classes::default()).unwrap()
}

#[test]
fn takes_the_next_worker_that_has_room() {
    let workers =
        [worker(0, 9, 1000), worker(1, 9, 19), worker(2, 9, 1000), Worker { healthy: false, ..worker(3, 9, 1000) }];
    let mut policy = policy();
    let arrivals: Vec<Arrival> = (1..=4).map(arrival).collect();
    assert_eq!(dispatched(&policy.schedule(&point(&arrivals, &workers))), [(1, 0), (2, 2), (3, 0), (4, 2)]);
    // Goes on where it was at the point before, and round again.
    let workers = [0, 1, 2, 3].map(|id| worker(id, 9, 1000));
    let arrivals: Vec<Arrival> = (5..=7).map(arrival).collect();
    assert_eq!(dispatched(&policy.schedule(&point(&arrivals, &workers))), [(5, 3), (6, 0), (7, 1)]);
}

#[test]
fn spreads_equal_requests_and_uses_a_worker_again_that_was_down() {
    check_placement(policy);
}

#[test]
fn serves_every_request_of_any_load() {
    (0..50).for_each(|seed| check_load(seed, policy));
}

#[test]
fn a_new_version_goes_on_after_the_worker_that_the_last_one_used() {
    let workers = [0, 1, 2].map(|id| worker(id, 9, 1000));
    let mut old = policy();
    let mut new = policy();
    assert!(old.save().is_empty());
    old.restore(&[]).unwrap();
    assert_eq!(dispatched(&old.schedule(&point(&[arrival(1), arrival(2)], &workers))), [(1, 0), (2, 1)]);
    new.restore(&old.save()).unwrap();
    assert_eq!(dispatched(&new.schedule(&point(&[arrival(3)], &workers))), [(3, 2)]);
    for bad in [&[1][..], &[1, 2, 3], &[1, 2, 3, 4, 5]] {
        assert!(new.restore(bad).unwrap_err().contains(&format!("{} bytes", bad.len())));
    }
}
