//! The policy at scheduling points, and in long runs.
use camshaft_plugin::scheduler::{Arrival, testing};
use proptest::prelude::*;

use super::*;

fn policy() -> FairShares {
    FairShares::new(Settings::default()).unwrap()
}

/// Tenants are numbered and named by their letter.
fn arrival(id: u64, tenant: u32, prompt_tokens: u32) -> Arrival {
    Arrival { tenant, prompt_tokens, ..testing::arrival(id) }
}

fn point(arrivals: &[Arrival], free_sequences: u32) -> Point {
    let mut point = testing::point(arrivals, &[testing::worker(0, free_sequences, 1_000_000)]);
    point.tenants = ["a", "b", "c"].map(str::to_owned).to_vec();
    point
}

#[test]
fn who_got_least_goes_next_whoever_came_first() {
    let mut policy = policy();
    let arrivals: Vec<Arrival> =
        (1..=4).map(|id| arrival(id, 0, 100)).chain((5..=6).map(|id| arrival(id, 1, 100))).collect();
    assert_eq!(policy.schedule(&point(&arrivals, 4)).dispatch_ids, [1, 5, 2, 6]);
    assert_eq!((policy.tenants.counter("a"), policy.tenants.counter("b")), (Some(200.0), Some(200.0)));
}

#[test]
fn output_is_charged_as_it_is_reported_and_at_the_end() {
    let mut policy = policy();
    policy.schedule(&point(&[arrival(1, 0, 10)], 1));
    let mut later = point(&[], 0);
    later.progressed_ids.push(1);
    later.progressed_prompt.push(10);
    later.progressed_generated.push(32);
    policy.schedule(&later);
    assert_eq!(policy.tenants.counter("a"), Some(10.0 + 64.0));
    let mut end = point(&[], 0);
    end.finished_ids.push(1);
    end.finished_generated.push(40);
    policy.schedule(&end);
    assert_eq!(policy.tenants.counter("a"), Some(10.0 + 80.0));
}

#[test]
fn regression_whoever_leaves_before_the_first_report_pays_for_what_may_have_been_generated() {
    for (max_tokens, charged) in [(900, 32.0), (20, 20.0)] {
        let mut policy = policy();
        policy.schedule(&point(&[Arrival { max_tokens, ..arrival(1, 0, 10) }, arrival(2, 0, 10)], 2));
        let mut left = point(&[], 0);
        left.cancelled_ids.extend([1, 1]);
        policy.schedule(&left);
        assert_eq!(policy.tenants.counter("a"), Some(20.0 + 2.0 * charged));
    }
    // Who only waited pays nothing.
    let mut policy = policy();
    policy.schedule(&point(&[arrival(1, 0, 10)], 0));
    let mut left = point(&[], 0);
    left.cancelled_ids.push(1);
    policy.schedule(&left);
    assert_eq!(policy.tenants.counter("a"), Some(0.0));
}

#[test]
fn weights_divide_the_price() {
    let mut policy = policy();
    let heavy = Arrival { weight: 4.0, ..arrival(1, 0, 100) };
    policy.schedule(&point(&[heavy, arrival(2, 1, 100)], 2));
    assert_eq!((policy.tenants.counter("a"), policy.tenants.counter("b")), (Some(25.0), Some(100.0)));
}

#[test]
fn a_newcomer_is_lifted_to_the_lowest_counter_of_those_who_wait() {
    let mut policy = policy();
    let arrivals: Vec<Arrival> = (1..=5).map(|id| arrival(id, 0, 100)).collect();
    policy.schedule(&point(&arrivals, 3));
    policy.schedule(&point(&[arrival(9, 1, 100)], 0));
    assert_eq!(policy.tenants.counter("b"), Some(300.0));
    // A tenant that arrives while no other waits is lifted to the counter of the last one that waited.
    let mut policy = FairShares::new(Settings::default()).unwrap();
    policy.schedule(&point(&[arrival(1, 0, 70)], 1));
    policy.schedule(&point(&[arrival(2, 2, 100)], 0));
    assert!(policy.tenants.counter("c") <= Some(70.0));
}

#[test]
fn counters_survive_a_swap() {
    let mut old = policy();
    old.schedule(&point(&[arrival(1, 0, 500), arrival(2, 0, 10), arrival(3, 1, 20)], 2));
    let before = (old.tenants.counter("a"), old.tenants.counter("b"));
    let mut new = policy();
    let mut replay = point(&[arrival(1, 0, 500), arrival(2, 0, 10), arrival(3, 1, 20), arrival(4, 1, 20)], 0);
    replay.replay = true;
    replay.dispatched_ids.extend([1, 3]);
    replay.dispatched_workers.extend([0, 0]);
    new.schedule(&replay);
    assert_eq!((new.tenants.counter("a"), new.tenants.counter("b")), before);
    assert_eq!(new.schedule(&point(&[], 1)).dispatch_ids, [4], "b got less");
}

#[test]
fn forgets_what_is_over() {
    let mut policy = policy();
    for id in 0..1000 {
        policy.schedule(&point(&[arrival(id, 0, 10)], 1));
        let mut end = point(&[], 0);
        end.finished_ids.push(id);
        end.finished_generated.push(5);
        policy.schedule(&end);
    }
    assert!(policy.tenants.next().is_none());
}

#[test]
fn refuses_prices_that_are_none() {
    for (input, output) in [(-1.0, 1.0), (1.0, 0.0), (f64::NAN, 1.0), (1.0, f64::INFINITY)] {
        let refused = FairShares::new(Settings { input_price: input, output_price: output, ..Settings::default() });
        assert!(refused.unwrap_err().contains("prices"));
    }
}

#[test]
fn refuses_a_share_that_is_none() {
    for newcomer_share in [-0.1, 1.1, f64::NAN] {
        let refused = FairShares::new(Settings { newcomer_share, ..Settings::default() });
        assert!(refused.unwrap_err().contains("newcomer-share"));
    }
}

#[test]
fn regression_a_tenant_with_nothing_running_does_not_wait_for_answers_of_another() {
    let mut policy = policy();
    let many: Vec<Arrival> = (1..=64).map(|id| arrival(id, 0, 10)).collect();
    let first = policy.schedule(&point(&many, 32)).dispatch_ids;
    assert_eq!(first.len(), 28, "an eighth is kept");
    let busy = |arrivals: &[Arrival], free: u32| {
        let mut busy = point(arrivals, free);
        busy.workers.running_sequences[0] = 32 - free;
        busy
    };
    assert!(policy.schedule(&busy(&[], 4)).dispatch_ids.is_empty());
    // One each, and then they are no newcomers any more.
    let others = [arrival(101, 1, 10), arrival(102, 1, 10), arrival(103, 2, 10)];
    assert_eq!(policy.schedule(&busy(&others, 4)).dispatch_ids, [101, 103]);
    assert!(policy.schedule(&busy(&[], 2)).dispatch_ids.is_empty());
    let mut end = busy(&[], 3);
    end.finished_ids.push(101);
    end.finished_generated.push(1);
    assert_eq!(policy.schedule(&end).dispatch_ids, [102], "it has nothing running");
    let mut ends = busy(&[], 5);
    ends.finished_ids.push(1);
    ends.finished_generated.push(1);
    assert_eq!(policy.schedule(&ends).dispatch_ids, [29], "what is above the share is for all");
}

#[test]
fn a_request_that_fits_nowhere_is_not_passed_by_those_of_tenants_with_nothing_running() {
    let mut policy = policy();
    let need = |id, tenant, need| Arrival { need, ..arrival(id, tenant, 10) };
    assert_eq!(policy.schedule(&point(&[need(1, 0, 100)], 32)).dispatch_ids, [1]);
    let mut next = point(&[need(2, 0, 900_000), need(3, 1, 100)], 31);
    next.workers.kv_free[0] = 800_000;
    assert!(policy.schedule(&next).dispatch_ids.is_empty());
}

#[test]
fn without_a_share_for_newcomers_all_sequences_are_for_all() {
    let mut policy = FairShares::new(Settings { newcomer_share: 0.0, ..Settings::default() }).unwrap();
    let many: Vec<Arrival> = (1..=64).map(|id| arrival(id, 0, 10)).collect();
    assert_eq!(policy.schedule(&point(&many, 32)).dispatch_ids.len(), 32);
}

#[test]
fn spreads_load_over_workers_and_follows_their_health() {
    // By one tenant.
    testing::check_placement(|| FairShares::new(Settings { newcomer_share: 0.0, ..Settings::default() }).unwrap());
}

#[test]
fn keeps_the_books_under_any_load_and_serves_everybody() {
    (0..50).for_each(|seed| testing::check_load(seed, policy));
}

/// A server of `SLOTS` sequences that generates a token of each in a tick and reports every 32.
const SLOTS: usize = 6;
const LONGEST_PROMPT: u32 = 200;
const LONGEST_OUTPUT: u32 = 80;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn two_backlogged_tenants_get_the_same_service_within_the_bound(
        sizes in prop::collection::vec((1u32..=LONGEST_PROMPT, 1u32..=LONGEST_OUTPUT), 40..80),
        small in 1u32..20,
        weight in 1u32..4,
    ) {
        let mut policy = policy();
        let weights = [1.0, f64::from(weight)];
        // One tenant sends requests of all sizes, the other small ones; both have more waiting than is ever served.
        let request = |id: u64| {
            let tenant = (id % 2) as u32;
            let (prompt, output) = sizes[(id / 2) as usize % sizes.len()];
            let (prompt, output) = if tenant == 0 { (prompt, output) } else { (small, small) };
            (Arrival { weight: weights[tenant as usize], max_tokens: output, ..arrival(id, tenant, prompt) }, output)
        };
        let mut next = 0;
        let mut waiting = [0usize; 2];
        let mut running: Vec<(u64, u32, u32)> = Vec::new();
        let mut service = [0.0f64; 2];
        let mut arrivals = Vec::new();
        let mut events = point(&[], 0);
        let bound = 2.0 * (f64::from(LONGEST_PROMPT)).max(2.0 * (SLOTS as f64) * f64::from(LONGEST_OUTPUT + LONGEST_PROMPT))
            + (SLOTS * 32 * 2) as f64;
        for _ in 0..400 {
            while waiting[0] < 20 || waiting[1] < 20 {
                let (arrival, _) = request(next);
                arrivals.push(arrival);
                waiting[(next % 2) as usize] += 1;
                next += 1;
            }
            let arrived = point(&std::mem::take(&mut arrivals), (SLOTS - running.len()) as u32);
            (events.arrived, events.workers) = (arrived.arrived, arrived.workers);
            for id in policy.schedule(&events).dispatch_ids {
                let (arrival, output) = request(id);
                running.push((id, 0, output));
                waiting[(id % 2) as usize] -= 1;
                service[(id % 2) as usize] += f64::from(arrival.prompt_tokens);
            }
            events = point(&[], 0);
            for (id, done, output) in &mut running {
                *done += 1;
                service[(*id % 2) as usize] += 2.0;
                if *done == *output {
                    events.finished_ids.push(*id);
                    events.finished_generated.push(*done);
                } else if *done % 32 == 1 {
                    events.progressed_ids.push(*id);
                    events.progressed_prompt.push(0);
                    events.progressed_generated.push(*done);
                }
            }
            running.retain(|(_, done, output)| done < output);
            let apart = (service[0] / weights[0] - service[1] / weights[1]).abs();
            prop_assert!(apart <= bound, "{apart} apart, {bound} allowed: {service:?}");
        }
        // Equal shares by the end, not only a bounded difference.
        let share = service[1] / weights[1] / (service[0] / weights[0]);
        prop_assert!((0.7..1.4).contains(&share), "{share}");
    }
}
