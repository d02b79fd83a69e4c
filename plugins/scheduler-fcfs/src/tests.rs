//! The policy at scheduling points.
use camshaft_plugin::scheduler::{Priority, Worker};

use super::*;

fn policy(settings: &str) -> FirstComeFirstServed {
    FirstComeFirstServed::new(serde_json::from_str(settings).unwrap()).unwrap()
}

fn arrival(id: u64, arrived_ms: u64, tokens: u32) -> Arrival {
    Arrival {
        id,
        arrived_ms,
        tenant: 0,
        priority: Priority::Normal,
        weight: 1.0,
        deadline_ms: 0,
        prompt_tokens: tokens / 2,
        max_tokens: tokens - tokens / 2,
        cached_tokens: 0,
    }
}

fn worker(id: u32, free_sequences: u32, kv_free: u32) -> Worker {
    Worker {
        id,
        healthy: true,
        free_sequences,
        running_sequences: 1,
        kv_free,
        kv_total: 1000,
        prefilling_tokens: 0,
        tokens_per_second: 0.0,
        can_park: false,
    }
}

fn point(arrivals: &[Arrival], workers: &[Worker]) -> Point {
    let mut point = Point::at(1000);
    arrivals.iter().for_each(|arrival| point.arrived.push(*arrival));
    workers.iter().for_each(|worker| point.workers.push(*worker));
    point
}

fn dispatched(actions: &Actions) -> Vec<(u64, u32)> {
    actions.dispatch_ids.iter().copied().zip(actions.dispatch_workers.iter().copied()).collect()
}

#[test]
fn dispatches_in_the_order_of_arrival() {
    let arrivals = [arrival(3, 30, 10), arrival(1, 20, 10), arrival(2, 10, 10)];
    let actions = policy("{}").schedule(&point(&arrivals, &[worker(7, 2, 1000)]));
    assert_eq!(dispatched(&actions), [(2, 7), (1, 7)]);
}

#[test]
fn fills_the_first_worker_with_room_and_goes_on_to_the_next() {
    let arrivals = [arrival(1, 1, 60), arrival(2, 2, 60), arrival(3, 3, 60)];
    let sick = Worker { healthy: false, ..worker(0, 9, 1000) };
    let actions = policy("{}").schedule(&point(&arrivals, &[sick, worker(1, 1, 100), worker(2, 9, 100)]));
    assert_eq!(dispatched(&actions), [(1, 1), (2, 2)]);
}

#[test]
fn lets_everybody_wait_while_the_first_in_line_has_no_room() {
    let arrivals = [arrival(1, 1, 500), arrival(2, 2, 10)];
    let actions = policy("{}").schedule(&point(&arrivals, &[worker(1, 9, 499)]));
    assert_eq!(dispatched(&actions), []);
}

#[test]
fn gives_a_request_larger_than_the_cache_to_an_idle_worker() {
    let mut policy = policy("{}");
    let actions = policy.schedule(&point(&[arrival(1, 1, 5000)], &[worker(1, 9, 1000)]));
    assert_eq!(dispatched(&actions), []);
    let idle = Worker { running_sequences: 0, ..worker(1, 9, 900) };
    assert_eq!(dispatched(&policy.schedule(&point(&[], &[idle]))), [(1, 1)]);
}

#[test]
fn serves_the_first_priority_class_with_work_unless_told_otherwise() {
    let urgent = Arrival { priority: Priority::High, ..arrival(2, 2, 10) };
    let unhurried = Arrival { priority: Priority::Low, ..arrival(1, 1, 10) };
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
fn regression_a_parked_request_is_left_to_its_worker() {
    let mut policy = policy("{}");
    policy.schedule(&point(&[arrival(1, 1, 10), arrival(2, 2, 10)], &[worker(1, 1, 90)]));
    let mut next = point(&[], &[worker(1, 1, 90)]);
    next.parked_ids.push(1);
    assert_eq!(dispatched(&policy.schedule(&next)), [(2, 1)]);
}

#[test]
fn a_low_request_is_overtaken_until_it_has_aged_and_not_longer() {
    let low = Arrival { priority: Priority::Low, ..arrival(1, 0, 10) };
    for (arrived_ms, first) in [(1, 2), (19_999, 2), (20_001, 1)] {
        let high = Arrival { priority: Priority::High, ..arrival(2, arrived_ms, 10) };
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
