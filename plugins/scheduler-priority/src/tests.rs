//! The policy at scheduling points.
use camshaft_plugin::scheduler::Worker;

use super::*;

fn policy(settings: &str) -> StrictClasses {
    StrictClasses::new(serde_json::from_str(settings).unwrap()).unwrap()
}

fn arrival(id: u64, arrived_ms: u64, priority: Priority) -> Arrival {
    Arrival {
        id,
        arrived_ms,
        tenant: 0,
        priority,
        weight: 1.0,
        deadline_ms: 0,
        prompt_tokens: 5,
        max_tokens: 5,
        cached_tokens: 0,
    }
}

fn point(arrivals: &[Arrival], free_sequences: u32) -> Point {
    let mut point = Point::at(100_000);
    arrivals.iter().for_each(|arrival| point.arrived.push(*arrival));
    point.workers.push(Worker {
        id: 0,
        healthy: true,
        free_sequences,
        running_sequences: 1,
        kv_free: 1000,
        kv_total: 1000,
        prefilling_tokens: 0,
        tokens_per_second: 0.0,
        can_park: true,
    });
    point
}

#[test]
fn the_first_class_with_work_goes_first_and_within_it_who_came_first() {
    use Priority::{High, Low, Normal};
    let arrivals = [arrival(1, 1, Low), arrival(2, 2, Normal), arrival(3, 9, High), arrival(4, 8, High)];
    assert_eq!(policy("{}").schedule(&point(&arrivals, 9)).dispatch_ids, [4, 3, 2, 1]);
}

#[test]
fn a_low_request_counts_as_high_after_two_spans_and_not_before() {
    let low = arrival(1, 0, Priority::Low);
    for (arrived_ms, first) in [(19_999, 2), (20_001, 1)] {
        let arrivals = [low, arrival(2, arrived_ms, Priority::High)];
        assert_eq!(policy(r#"{"ageing": "10s"}"#).schedule(&point(&arrivals, 1)).dispatch_ids, [first]);
    }
}

#[test]
fn the_reserve_is_for_high_requests_only_up_to_its_bound() {
    let normal: Vec<Arrival> = (1..=4).map(|id| arrival(id, id, Priority::Normal)).collect();
    let mut policy = policy(r#"{"reserved-for-high": 2}"#);
    assert_eq!(policy.schedule(&point(&normal, 4)).dispatch_ids, [1, 2]);
    assert!(policy.schedule(&point(&[], 2)).dispatch_ids.is_empty());
    let high: Vec<Arrival> = (5..=7).map(|id| arrival(id, id, Priority::High)).collect();
    assert_eq!(policy.schedule(&point(&high, 2)).dispatch_ids, [5, 6]);
}

#[test]
fn refuses_to_age_in_no_time() {
    let settings = serde_json::from_str(r#"{"ageing": 0}"#).unwrap();
    assert!(StrictClasses::new(settings).unwrap_err().contains("ageing"));
}
