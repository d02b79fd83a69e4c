//! The policy at scheduling points.
use camshaft_plugin::scheduler::testing::{check_load, check_placement, dispatched, point, sized, worker};
use camshaft_plugin::scheduler::{CachedPrefix, Priority};

use super::*;

fn policy(settings: &str) -> ShortestFirst {
    ShortestFirst::new(serde_json::from_str(settings).unwrap()).unwrap()
}

fn arrival(id: u64, arrived_ms: u64, tokens: u32) -> Arrival {
    Arrival { arrived_ms, ..sized(id, tokens) }
}

#[test]
fn dispatches_the_shortest_first_and_equals_by_arrival() {
    let arrivals = [arrival(1, 1, 30), arrival(2, 2, 10), arrival(3, 4, 20), arrival(4, 3, 20)];
    let actions = policy("{}").schedule(&point(&arrivals, &[worker(1, 9, 1000)]));
    assert_eq!(dispatched(&actions), [(2, 1), (4, 1), (3, 1), (1, 1)]);
}

#[test]
fn what_a_prefix_cache_probably_holds_does_not_count() {
    let cached = vec![CachedPrefix { worker: 1, tokens: 32 }];
    let known = Arrival { cached, prompt_tokens: 40, max_tokens: 5, need: 45, ..arrival(2, 2, 0) };
    let actions = policy("{}").schedule(&point(&[arrival(1, 1, 20), known], &[worker(1, 9, 1000)]));
    assert_eq!(dispatched(&actions), [(2, 1), (1, 1)]);
}

#[test]
fn serves_by_arrival_what_has_waited_too_long() {
    let arrivals = [arrival(1, 100, 90), arrival(2, 200, 80), arrival(3, 501, 10), arrival(4, 990, 5)];
    let point = point(&arrivals, &[worker(1, 9, 1000)]);
    let actions = policy(r#"{"max-wait": "500ms"}"#).schedule(&point);
    assert_eq!(dispatched(&actions), [(1, 1), (2, 1), (4, 1), (3, 1)]);
}

#[test]
fn lets_no_short_request_overtake_an_overdue_one_that_fits_nowhere() {
    let arrivals = [arrival(1, 0, 900), arrival(2, 999, 5)];
    let mut policy = policy(r#"{"max-wait": 500}"#);
    assert_eq!(dispatched(&policy.schedule(&point(&arrivals, &[worker(1, 9, 899)]))), []);
    assert_eq!(dispatched(&policy.schedule(&point(&[], &[worker(1, 9, 905)]))), [(1, 1), (2, 1)]);
}

#[test]
fn puts_priority_classes_before_size_and_overdue_requests_before_both() {
    let urgent = Arrival { priority: Priority::HIGH, ..arrival(1, 990, 90) };
    let overdue = Arrival { priority: Priority::LOW, ..arrival(3, 100, 50) };
    let point = point(&[urgent, arrival(2, 980, 10), overdue], &[worker(1, 9, 1000)]);
    let actions = policy(r#"{"max-wait": "500ms"}"#).schedule(&point);
    assert_eq!(dispatched(&actions), [(3, 1), (1, 1), (2, 1)]);
    let actions = policy(r#"{"max-wait": "500ms", "priority-classes": false}"#).schedule(&point);
    assert_eq!(dispatched(&actions), [(3, 1), (2, 1), (1, 1)]);
}

#[test]
fn keeps_its_book_through_dispatch_preemption_and_the_end() {
    let mut policy = policy("{}");
    let first = policy.schedule(&point(&[arrival(1, 1, 10), arrival(2, 2, 20)], &[worker(1, 1, 90)]));
    assert_eq!(dispatched(&first), [(1, 1)]);
    let mut preempted = point(&[], &[worker(1, 1, 90)]);
    preempted.dispatched_ids.push(1);
    preempted.dispatched_workers.push(1);
    preempted.preempted_ids.push(1);
    // Its worker resumes what it preempted.
    assert_eq!(dispatched(&policy.schedule(&preempted)), [(2, 1)]);
    let mut ended = point(&[], &[]);
    ended.finished_ids.push(1);
    ended.finished_generated.push(5);
    ended.cancelled_ids.push(2);
    policy.schedule(&ended);
    assert_eq!((policy.book.live(), policy.book.waiting()), (0, 0));
}

#[test]
fn refuses_a_wait_that_is_not_a_time() {
    let error = serde_json::from_str::<Settings>(r#"{"max-wait": "soon"}"#).unwrap_err().to_string();
    assert!(error.contains("a time like \"10s\""), "{error}");
}

#[test]
fn spreads_load_over_workers_and_follows_their_health() {
    check_placement(|| policy("{}"));
}

#[test]
fn keeps_the_books_under_any_load_and_serves_everybody() {
    (0..50).for_each(|seed| check_load(seed, || policy("{}")));
}
