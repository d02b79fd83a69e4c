//! The policy at scheduling points.
use camshaft_plugin::scheduler::{Worker, testing};

use super::*;

fn policy(settings: &str) -> StrictClasses {
    StrictClasses::new(serde_json::from_str(settings).unwrap()).unwrap()
}

fn arrival(id: u64, arrived_ms: u64, priority: u8) -> Arrival {
    Arrival { arrived_ms, priority, ..testing::arrival(id) }
}

fn point(arrivals: &[Arrival], free_sequences: u32) -> Point<'static> {
    let mut point = testing::point(arrivals, &[testing::worker(0, free_sequences, 1000)]);
    point.now_ms = 100_000;
    point
}

#[test]
fn the_first_class_with_work_goes_first_and_within_it_who_came_first() {
    const HIGH: u8 = Priority::HIGH;
    const NORMAL: u8 = Priority::NORMAL;
    const LOW: u8 = Priority::LOW;
    let arrivals = [arrival(1, 1, LOW), arrival(2, 2, NORMAL), arrival(3, 9, HIGH), arrival(4, 8, HIGH)];
    assert_eq!(policy("{}").schedule(&point(&arrivals, 9)).dispatch_ids, [4, 3, 2, 1]);
}

#[test]
fn a_low_request_counts_as_high_after_two_spans_and_not_before() {
    for (arrived_ms, first) in [(19_999, 2), (20_001, 1)] {
        let arrivals = [arrival(1, 0, Priority::LOW), arrival(2, arrived_ms, Priority::HIGH)];
        assert_eq!(policy(r#"{"ageing": "10s"}"#).schedule(&point(&arrivals, 1)).dispatch_ids, [first]);
    }
}

#[test]
fn the_reserve_is_for_high_requests_only_up_to_its_bound() {
    let normal: Vec<Arrival> = (1..=4).map(|id| arrival(id, id, Priority::NORMAL)).collect();
    let mut policy = policy(r#"{"reserved-for-high": 2}"#);
    assert_eq!(policy.schedule(&point(&normal, 4)).dispatch_ids, [1, 2]);
    assert!(policy.schedule(&point(&[], 2)).dispatch_ids.is_empty());
    let high: Vec<Arrival> = (5..=7).map(|id| arrival(id, id, Priority::HIGH)).collect();
    assert_eq!(policy.schedule(&point(&high, 2)).dispatch_ids, [5, 6]);
}

#[test]
fn refuses_to_age_in_no_time() {
    let settings = serde_json::from_str(r#"{"ageing": 0}"#).unwrap();
    assert!(StrictClasses::new(settings).unwrap_err().contains("ageing"));
}

#[test]
fn regression_a_reserve_of_all_sequences_leaves_one_for_everybody() {
    let mut policy = policy(r#"{"reserved-for-high": 9}"#);
    let idle = Worker { running_sequences: 0, ..testing::worker(0, 4, 1000) };
    let normal = [1, 2].map(|id| arrival(id, id, Priority::NORMAL));
    assert_eq!(policy.schedule(&testing::point(&normal, &[idle])).dispatch_ids, [1]);
}

#[test]
fn spreads_load_over_workers_and_follows_their_health() {
    testing::check_placement(|| policy("{}"));
}

#[test]
fn keeps_the_books_under_any_load_and_serves_everybody() {
    for settings in ["{}", r#"{"reserved-for-high": 1}"#, r#"{"reserved-for-high": 9}"#] {
        (0..50).for_each(|seed| testing::check_load(seed, || policy(settings)));
    }
}
