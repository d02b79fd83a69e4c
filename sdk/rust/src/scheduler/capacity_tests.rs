//! Properties of placement, over whole runs of a policy that consists of a book and a capacity.
use proptest::prelude::*;

use super::*;
use crate::NoSettings;
use crate::scheduler::testing::{self, Cluster, arrival, sized, worker};
use crate::scheduler::{Actions, Book, Point, Policy};

/// The shortest first-come-first-served policy.
struct InOrder(Book<u64>);

impl Policy for InOrder {
    const NAME: &'static str = "in-order";
    type Settings = NoSettings;

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self(Book::new(|request| request.id)))
    }

    fn schedule(&mut self, point: &Point<'_>) -> Actions {
        self.0.apply(point);
        let mut actions = Actions::none();
        let mut capacity = Capacity::of(&point.workers);
        while let Some(request) = self.0.first() {
            let Some(worker) = capacity.place(request) else { break };
            let id = request.id;
            self.0.leave(id);
            actions.dispatch(id, worker);
        }
        actions
    }
}

fn in_order() -> InOrder {
    InOrder(Book::new(|request| request.id))
}

#[test]
fn places_on_the_fewest_active_sequences_then_on_the_most_free_kv() {
    let busy = Worker { running_sequences: 5, ..worker(0, 9, 9000) };
    let point = testing::point(&[], &[busy, worker(1, 9, 300), worker(2, 9, 400), worker(3, 9, 19)]);
    let mut capacity = Capacity::of(&point.workers);
    let placed: Vec<Option<u32>> = (1..=6).map(|id| capacity.place(&arrival(id))).collect();
    assert_eq!(placed, [2, 1, 2, 1, 2, 1].map(Some), "worker 3 lacks KV for it, worker 0 is the busiest");
}

#[test]
fn a_request_fits_at_its_need_and_not_one_token_below() {
    for (kv_free, fits) in [(99, None), (100, Some(1))] {
        let point = testing::point(&[], &[worker(1, 1, kv_free)]);
        let mut capacity = Capacity::of(&point.workers);
        assert_eq!(capacity.place(&sized(1, 100)), fits);
        assert_eq!(capacity.is_exhausted(), fits.is_some());
    }
}

#[test]
fn nothing_is_placed_on_a_worker_that_is_down() {
    let down = Worker { healthy: false, ..worker(1, 9, 1000) };
    let point = testing::point(&[], &[down]);
    assert!(Capacity::of(&point.workers).is_exhausted());
}

#[test]
fn a_reserve_is_kept_free_but_never_the_whole_worker() {
    let idle = Worker { running_sequences: 0, ..worker(1, 3, 1000) };
    for (reserve, placed) in [(0, 3), (1, 2), (2, 1), (3, 1), (99, 1)] {
        let point = testing::point(&[], &[idle]);
        let mut capacity = Capacity::of(&point.workers);
        let count = (1..=4).filter(|&id| capacity.place_reserving(&arrival(id), reserve).is_some()).count();
        assert_eq!(count, placed, "of 3 sequences, {reserve} reserved");
    }
}

#[test]
fn the_smallest_policy_places_well() {
    testing::check_placement(in_order);
    (0..50).for_each(|seed| testing::check_load(seed, in_order));
}

proptest! {
    #[test]
    fn equal_requests_never_run_more_than_one_apart(
        workers in prop::sample::select(vec![2u32, 4]),
        arrivals in prop::collection::vec(0usize..5, 1..30),
        lost in prop::option::of(0u32..2),
    ) {
        // No request ends, so the placements alone decide the load.
        let mut cluster = Cluster::new(in_order(), workers, 1000, 1_000_000);
        if let Some(lost) = lost {
            cluster.lose(lost);
        }
        let mut ids = 1..;
        for count in arrivals {
            ids.by_ref().take(count).for_each(|id| cluster.submit(arrival(id)));
            cluster.schedule();
            let active: Vec<u32> = (0..).zip(cluster.active()).filter(|(id, _)| Some(*id) != lost).map(|(_, n)| n).collect();
            prop_assert!(active.iter().max() <= active.iter().min().map(|min| min + 1).as_ref(), "{:?}", active);
            prop_assert_eq!(cluster.waiting(), 0);
        }
        if let Some(lost) = lost {
            // A worker that returned is the least busy one until it has caught up.
            cluster.restore(lost);
            let max = cluster.active().into_iter().max().unwrap_or(0);
            ids.by_ref().take(max as usize).for_each(|id| cluster.submit(arrival(id)));
            prop_assert!(cluster.schedule().iter().all(|&(_, on)| on == lost));
        }
    }

    #[test]
    fn every_request_goes_to_the_least_busy_worker_that_fits(
        states in prop::collection::vec((any::<bool>(), 0u32..5, 0u32..5, 0u32..300), 1..5),
        need in 1u32..300,
    ) {
        let facts = testing::workers(states);
        let point = testing::point(&[], &facts);
        let chosen = Capacity::of(&point.workers).place(&sized(1, need));
        let fits = |w: &&Worker| w.healthy && w.free_sequences > 0 && w.kv_free >= need;
        match chosen {
            None => prop_assert!(!facts.iter().any(|w| fits(&w))),
            Some(id) => {
                let chosen = facts[id as usize];
                prop_assert!(fits(&&chosen));
                for other in facts.iter().filter(fits) {
                    let key = |w: &Worker| (w.running_sequences, Reverse(w.kv_free));
                    prop_assert!(key(&chosen) <= key(other));
                }
            }
        }
    }
}
