//! The policy at scheduling points.
use camshaft_plugin::scheduler::testing::{check_load, check_placement, dispatched, point, sized, worker};
use camshaft_plugin::scheduler::{Arrival, Priority, Worker};

use super::*;

fn policy(settings: &str) -> FirstComeFirstServed {
    FirstComeFirstServed::new(serde_json::from_str(settings).unwrap()).unwrap()
}

fn arrival(id: u64, arrived_ms: u64, tokens: u32) -> Arrival {
    Arrival { arrived_ms, ..sized(id, tokens) }
}

#[test]
fn dispatches_in_the_order_of_arrival() {
    let arrivals = [arrival(3, 30, 10), arrival(1, 20, 10), arrival(2, 10, 10)];
    let actions = policy("{}").schedule(&point(&arrivals, &[worker(7, 2, 1000)]));
    assert_eq!(dispatched(&actions), [(2, 7), (1, 7)]);
}

#[test]
fn goes_to_the_worker_with_the_fewest_sequences_then_the_most_free_kv() {
    let arrivals = [arrival(1, 1, 60), arrival(2, 2, 60), arrival(3, 3, 60), arrival(4, 4, 60)];
    let sick = Worker { healthy: false, running_sequences: 0, ..worker(0, 9, 1000) };
    let busy = Worker { running_sequences: 2, ..worker(1, 9, 1000) };
    let actions = policy("{}").schedule(&point(&arrivals, &[sick, busy, worker(2, 9, 100), worker(3, 9, 200)]));
    assert_eq!(dispatched(&actions), [(1, 3), (2, 2), (3, 1), (4, 3)]);
}

#[test]
fn lets_all_others_wait_while_the_first_in_line_fits_no_worker() {
    let arrivals = [arrival(1, 1, 500), arrival(2, 2, 10)];
    let mut policy = policy("{}");
    assert_eq!(dispatched(&policy.schedule(&point(&arrivals, &[worker(1, 9, 499)]))), []);
    assert_eq!(dispatched(&policy.schedule(&point(&[], &[worker(1, 9, 510)]))), [(1, 1), (2, 1)]);
}

#[test]
fn asks_for_what_the_host_checks_and_not_for_all_that_may_be_generated() {
    let reserved = Arrival { max_tokens: 4000, need: 60, ..arrival(1, 1, 60) };
    assert_eq!(dispatched(&policy("{}").schedule(&point(&[reserved], &[worker(1, 9, 60)]))), [(1, 1)]);
    let over = Arrival { max_tokens: 1, need: 61, ..arrival(1, 1, 60) };
    assert_eq!(dispatched(&policy("{}").schedule(&point(&[over], &[worker(1, 9, 60)]))), []);
}

#[test]
fn serves_the_first_priority_class_with_work_unless_told_otherwise() {
    let urgent = Arrival { priority: Priority::HIGH, ..arrival(2, 2, 10) };
    let unhurried = Arrival { priority: Priority::LOW, ..arrival(1, 1, 10) };
    let point = point(&[unhurried, urgent], &[worker(1, 1, 1000)]);
    assert_eq!(dispatched(&policy("{}").schedule(&point)), [(2, 1)]);
    assert_eq!(dispatched(&policy(r#"{"priority-classes": false}"#).schedule(&point)), [(1, 1)]);
}

#[test]
fn forgets_cancelled_requests_and_never_dispatches_one_twice() {
    let mut policy = policy("{}");
    let first =
        policy.schedule(&point(&[arrival(1, 1, 10), arrival(2, 2, 10), arrival(3, 3, 10)], &[worker(1, 1, 90)]));
    assert_eq!(dispatched(&first), [(1, 1)]);
    let mut next = point(&[], &[worker(1, 9, 90)]);
    next.dispatched_ids.push(1);
    next.dispatched_workers.push(1);
    next.cancelled_ids.push(2);
    assert_eq!(dispatched(&policy.schedule(&next)), [(3, 1)]);
}

#[test]
fn regression_a_preempted_request_is_left_to_its_worker() {
    let mut policy = policy("{}");
    policy.schedule(&point(&[arrival(1, 1, 10), arrival(2, 2, 10)], &[worker(1, 1, 90)]));
    let mut next = point(&[], &[worker(1, 1, 90)]);
    next.preempted_ids.push(1);
    assert_eq!(dispatched(&policy.schedule(&next)), [(2, 1)]);
}

#[test]
fn a_low_request_is_overtaken_until_it_has_aged_and_not_longer() {
    for (arrived_ms, first) in [(1, 2), (19_999, 2), (20_001, 1)] {
        let low = Arrival { priority: Priority::LOW, ..arrival(1, 0, 10) };
        let high = Arrival { priority: Priority::HIGH, ..arrival(2, arrived_ms, 10) };
        let actions = policy(r#"{"ageing": "10s"}"#).schedule(&point(&[low, high], &[worker(1, 1, 1000)]));
        assert_eq!(dispatched(&actions), [(first, 1)], "high after {arrived_ms} ms");
    }
}

#[test]
fn a_replay_replaces_the_whole_book() {
    let mut policy = policy("{}");
    policy.schedule(&point(&[arrival(1, 1, 10), arrival(2, 2, 10)], &[]));
    let mut replay = point(&[arrival(2, 2, 10), arrival(3, 3, 10), arrival(4, 4, 10)], &[worker(1, 9, 90)]);
    replay.replay = true;
    replay.dispatched_ids.push(3);
    replay.dispatched_workers.push(1);
    assert_eq!(dispatched(&policy.schedule(&replay)), [(2, 1), (4, 1)]);
}

#[test]
fn the_book_holds_no_more_than_what_lives() {
    let mut policy = policy("{}");
    for id in 0..1000 {
        let mut point = point(&[arrival(id, id, 10)], &[worker(1, 9, 90)]);
        if id > 0 {
            point.finished_ids.push(id - 1);
            point.finished_generated.push(5);
        }
        policy.schedule(&point);
        assert!(policy.book.live() <= 2 && policy.book.waiting() == 0);
    }
}

#[test]
fn spreads_load_over_workers_and_follows_their_health() {
    check_placement(|| policy("{}"));
}

#[test]
fn keeps_the_books_under_any_load_and_serves_everybody() {
    (0..50).for_each(|seed| check_load(seed, || policy("{}")));
}
