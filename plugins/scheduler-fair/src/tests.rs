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

fn point(arrivals: &[Arrival], free_sequences: u32) -> Point<'static> {
    testing::point(arrivals, &[testing::worker(0, free_sequences, 1_000_000)]).tenants(["a", "b", "c"])
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
fn a_new_version_counts_on_from_what_the_last_one_saved() {
    let mut old = policy();
    old.schedule(&point(&[arrival(1, 0, 900), arrival(2, 1, 100), arrival(3, 2, 400)], 3));
    let mut new = policy();
    new.restore(&old.save()).unwrap();
    let mut replay = point(&[arrival(1, 0, 900), arrival(2, 1, 100), arrival(4, 0, 10), arrival(5, 1, 10)], 1);
    replay.replay = true;
    (replay.dispatched_ids, replay.dispatched_workers) = (vec![1, 2], vec![0; 2]);
    assert_eq!(new.schedule(&replay).dispatch_ids, [5], "b got less");
    assert_eq!((new.tenants.counter("a"), new.tenants.counter("b")), (Some(900.0), Some(110.0)));
    // c had nothing here when the version changed, and is remembered also by the version after that.
    let mut third = policy();
    third.restore(&new.save()).unwrap();
    third.schedule(&point(&[arrival(6, 2, 10)], 0));
    assert_eq!(third.tenants.counter("c"), Some(400.0));
    assert!(third.restore(b"nonsense").is_err());
}

#[test]
fn weights_divide_the_price() {
    let mut policy = policy();
    let heavy = Arrival { weight: 4.0, ..arrival(1, 0, 100) };
    policy.schedule(&point(&[heavy, arrival(2, 1, 100)], 2));
    assert_eq!((policy.tenants.counter("a"), policy.tenants.counter("b")), (Some(25.0), Some(100.0)));
}

#[test]
fn regression_a_newcomer_is_lifted_to_the_lowest_counter_of_those_who_wait_or_run() {
    let mut policy = FairShares::new(Settings { preempt: false, ..Settings::default() }).unwrap();
    // a runs and waits for nothing, b got far more and waits.
    policy.schedule(&point(&[arrival(1, 0, 100), arrival(2, 1, 9000)], 2));
    policy.schedule(&point(&[arrival(3, 1, 100)], 0));
    policy.schedule(&point(&[arrival(9, 2, 100)], 0));
    assert_eq!(policy.tenants.counter("c"), Some(100.0));
    // Nobody waits or runs any more: the counter of the last who did.
    let mut policy = FairShares::new(Settings { preempt: false, ..Settings::default() }).unwrap();
    policy.schedule(&point(&[arrival(1, 0, 70)], 1));
    let mut end = point(&[], 1);
    end.finished_ids.push(1);
    end.finished_generated.push(5);
    policy.schedule(&end);
    policy.schedule(&point(&[arrival(2, 2, 100)], 0));
    assert_eq!(policy.tenants.counter("c"), Some(80.0));
    // Whoever runs is not idle, and is not lifted.
    let mut policy = FairShares::new(Settings { preempt: false, ..Settings::default() }).unwrap();
    policy.schedule(&point(&[arrival(1, 0, 100), arrival(2, 1, 9000)], 2));
    policy.schedule(&point(&[arrival(3, 0, 100)], 0));
    assert_eq!(policy.tenants.counter("a"), Some(100.0));
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

/// A worker of 8 sequences on which requests 1 to 8 of tenant a run, with this many generated tokens each.
fn full(policy: &mut FairShares, generated: u32) {
    let many: Vec<Arrival> = (1..=8).map(|id| arrival(id, 0, 10)).collect();
    assert_eq!(policy.schedule(&point(&many, 8)).dispatch_ids.len(), 8, "all sequences are for all");
    let mut later = busy(&[], 1000);
    for id in 1..=8 {
        later.progressed_ids.push(id);
        later.progressed_prompt.push(10);
        later.progressed_generated.push(generated);
    }
    assert_eq!(policy.schedule(&later).preempt_ids, [0; 0], "nobody waits");
}

fn busy(arrivals: &[Arrival], now_ms: u64) -> Point<'static> {
    let mut busy = point(arrivals, 0);
    (busy.now_ms, busy.workers.running_sequences[0], busy.workers.kv_free[0]) = (now_ms, 8, 0);
    busy
}

fn both(actions: &Actions) -> (&[u64], &[u64]) {
    (&actions.preempt_ids, &actions.dispatch_ids)
}

#[test]
fn regression_a_tenant_with_nothing_running_does_not_wait_for_answers_of_another() {
    let mut policy = policy();
    full(&mut policy, 32);
    let others = [arrival(101, 1, 10), arrival(102, 1, 10), arrival(103, 2, 10)];
    assert_eq!(both(&policy.schedule(&busy(&others, 1000))), (&[8][..], &[101][..]), "the latest of a gives way");
    let mut began = busy(&[], 1249);
    began.progressed_ids.push(101);
    began.progressed_prompt.push(10);
    began.progressed_generated.push(1);
    assert_eq!(both(&policy.schedule(&began)), (&[][..], &[][..]), "not so soon again");
    assert_eq!(both(&policy.schedule(&busy(&[], 1250))), (&[7][..], &[103][..]), "b has something running");
    let mut end = busy(&[], 2000);
    // a got more since.
    end.progressed_ids.extend([103, 1]);
    end.progressed_prompt.extend([10, 10]);
    end.progressed_generated.extend([1, 64]);
    end.finished_ids.push(101);
    end.finished_generated.push(1);
    assert_eq!(both(&policy.schedule(&end)), (&[6][..], &[102][..]), "now it has nothing running");
}

#[test]
fn regression_a_request_gives_way_where_the_host_sent_it() {
    let mut policy = policy();
    let workers = [testing::worker(0, 1, 1000), testing::worker(1, 1, 900)];
    let point = testing::point(&[arrival(1, 0, 10), arrival(2, 0, 10)], &workers).tenants(["a", "b"]);
    assert_eq!(policy.schedule(&point).dispatch_workers, [0, 1]);
    let workers = [testing::worker(0, 0, 0), testing::worker(1, 0, 0)];
    let mut next = testing::point(&[arrival(101, 1, 10)], &workers).tenants(["a", "b"]);
    (next.dispatched_ids, next.dispatched_workers) = (vec![1, 2], vec![1, 0]);
    (next.progressed_ids, next.progressed_prompt, next.progressed_generated) = (vec![2], vec![10], vec![32]);
    let actions = policy.schedule(&next);
    assert_eq!((both(&actions), &actions.dispatch_workers[..]), ((&[2][..], &[101][..]), &[0][..]));
}

#[test]
fn as_many_give_way_as_a_newcomer_needs() {
    let mut policy = policy();
    full(&mut policy, 32);
    let large = Arrival { need: 43, ..arrival(101, 1, 10) };
    assert_eq!(both(&policy.schedule(&busy(&[large], 1000))), (&[8, 7][..], &[101][..]));
    // Nobody gives way where all of them would not make room.
    let larger = Arrival { need: 1000, ..arrival(102, 2, 10) };
    assert_eq!(both(&policy.schedule(&busy(&[larger], 2000))).1, [0; 0]);
}

#[test]
fn regression_a_newcomer_for_whom_nobody_gives_way_holds_up_no_other() {
    let low = Arrival { priority: camshaft_plugin::Priority::LOW, ..arrival(101, 1, 10) };
    let large = Arrival { need: 5000, ..arrival(101, 1, 10) };
    for first in [low, large] {
        let mut policy = policy();
        full(&mut policy, 32);
        let actions = policy.schedule(&busy(&[first.clone(), arrival(102, 2, 10)], 1000));
        assert_eq!(both(&actions), (&[8][..], &[102][..]), "{first:?}");
    }
}

#[test]
fn looks_at_sixteen_newcomers_four_times_a_second() {
    for (unplaceable, placed) in [(15, true), (16, false)] {
        let mut policy = policy();
        full(&mut policy, 32);
        // Three had numbers before.
        let names = ["a", "b", "c"].map(str::to_owned).into_iter().chain((0..40).map(|n| format!("t{n:02}")));
        let large = |n: u32| Arrival { need: 5000, tenant: 3 + n, ..arrival(100 + u64::from(n), 0, 10) };
        let all: Vec<Arrival> =
            (0..unplaceable).map(large).chain([Arrival { need: 20, ..large(unplaceable) }]).collect();
        // Those to whom nobody gives way do not count.
        let low = |n: u32| Arrival { priority: camshaft_plugin::Priority::LOW, ..large(n) };
        let all: Vec<Arrival> = (20..38).map(low).chain(all).collect();
        let point = busy(&all, 1000).tenants(names);
        assert_eq!(!policy.schedule(&point).dispatch_ids.is_empty(), placed, "{unplaceable} before it");
        // And not again at once, although all are still there.
        assert_eq!(policy.newcomers.as_ref().unwrap().tried_ms, Some(1000));
        policy.schedule(&busy(&[], 1249));
        assert_eq!(policy.newcomers.as_ref().unwrap().tried_ms, Some(1000));
        policy.schedule(&busy(&[], 1250));
        assert_eq!(policy.newcomers.as_ref().unwrap().tried_ms, Some(1250));
    }
}

#[test]
fn regression_what_a_worker_preempted_does_not_run() {
    // The first one hands its counters to none.
    for replay in [true, false] {
        let mut policy = policy();
        let mut point = busy(&[arrival(1, 0, 10), arrival(2, 0, 10), arrival(3, 1, 10)], 1000);
        point.replay = replay;
        point.workers.free_sequences[0] = if replay { 0 } else { 3 };
        point.workers.kv_free[0] = if replay { 0 } else { 1000 };
        if replay {
            (point.dispatched_ids, point.dispatched_workers) = (vec![1, 2, 3], vec![0; 3]);
        }
        policy.schedule(&point);
        let mut next = busy(&[arrival(4, 1, 10)], 2000);
        // What it had generated before comes together with that.
        (next.progressed_ids, next.progressed_prompt, next.progressed_generated) = (vec![3], vec![10], vec![1]);
        next.preempted_ids.push(3);
        next.workers.running_sequences[0] = 3;
        assert_eq!(both(&policy.schedule(&next)), (&[2][..], &[4][..]), "b has nothing running, replay: {replay}");
    }
}

#[test]
fn a_worker_gets_twice_as_many_requests_as_it_runs_at_once_and_no_more() {
    // Known from a free sequence, or from those that run.
    for known in [true, false] {
        for (has, placed) in [(15, true), (16, false)] {
            let mut policy = policy();
            let mut first = busy(&(1..=8).map(|id| arrival(id, 0, 10)).collect::<Vec<_>>(), 900);
            (first.dispatched_ids, first.dispatched_workers) = ((1..=8).collect(), vec![0; 8]);
            if known {
                (first.workers.free_sequences[0], first.workers.running_sequences[0]) = (1, 7);
            }
            policy.schedule(&first);
            let mut next = busy(&[arrival(101, 1, 10)], 1000);
            next.workers.running_sequences[0] = has;
            assert_eq!(!policy.schedule(&next).dispatch_ids.is_empty(), placed, "{has} there, known: {known}");
        }
    }
}

#[test]
fn gives_way_to_nobody_of_a_lower_class_or_with_more_service_and_never_with_the_last() {
    let low = Arrival { priority: camshaft_plugin::Priority::LOW, ..arrival(101, 1, 10) };
    let mut policy = policy();
    full(&mut policy, 32);
    assert_eq!(both(&policy.schedule(&busy(&[low], 1000))), (&[][..], &[][..]));
    // b got more than a has by now.
    let mut policy = FairShares::new(Settings::default()).unwrap();
    let first: Vec<_> = (1..=8).map(|id| arrival(id, 0, 10)).chain([arrival(100, 1, 10_000)]).collect();
    assert_eq!(policy.schedule(&point(&first, 9)).dispatch_ids.len(), 9);
    let mut end = point(&[], 0);
    end.finished_ids.push(100);
    end.finished_generated.push(1);
    policy.schedule(&end);
    assert_eq!(both(&policy.schedule(&busy(&[arrival(101, 1, 10)], 1000))), (&[][..], &[][..]));
    // One sequence, one request.
    let mut policy = FairShares::new(Settings::default()).unwrap();
    policy.schedule(&point(&[arrival(1, 0, 10)], 1));
    assert_eq!(both(&policy.schedule(&busy(&[arrival(101, 1, 10)], 1000))), (&[][..], &[][..]));
}

#[test]
fn those_give_way_who_have_the_most_for_their_weight() {
    let mut policy = policy();
    let of = |id, tenant, weight| Arrival { weight, ..arrival(id, tenant, 10) };
    let arrivals: Vec<_> = (1..=5).map(|id| of(id, 0, 4.0)).chain((6..=8).map(|id| of(id, 1, 1.0))).collect();
    assert_eq!(policy.schedule(&point(&arrivals, 8)).dispatch_ids.len(), 8);
    assert_eq!(
        both(&policy.schedule(&busy(&[Arrival { need: 0, ..arrival(101, 2, 10) }], 1000))),
        (&[8][..], &[101][..])
    );
}

#[test]
fn regression_a_tenant_whose_only_request_gave_way_has_nothing_running() {
    let mut policy = policy();
    // b has two, of which the later one gives way to c, and the other one ends.
    let arrivals: Vec<_> = (1..=6).map(|id| arrival(id, 0, 10)).chain([arrival(7, 1, 10), arrival(8, 1, 10)]).collect();
    assert_eq!(policy.schedule(&point(&arrivals, 8)).dispatch_ids.len(), 8);
    policy.tenants.gave_way(8);
    assert_eq!(both(&policy.schedule(&busy(&[], 1000))), (&[][..], &[][..]), "b has another");
    let mut end = busy(&[], 2000);
    end.finished_ids.push(7);
    end.finished_generated.push(1);
    // Its service is as a's, which has six.
    end.progressed_ids.extend(1..=6);
    end.progressed_prompt.extend([10; 6]);
    end.progressed_generated.extend([32; 6]);
    assert_eq!(both(&policy.schedule(&end)), (&[6][..], &[][..]), "a gives way so that it goes on");
    assert_eq!(both(&policy.schedule(&busy(&[], 2249))), (&[][..], &[][..]));
    assert_eq!(both(&policy.schedule(&busy(&[], 2250))), (&[5, 4][..], &[][..]));
    let mut on = busy(&[], 2500);
    on.progressed_ids.extend(4..=8);
    on.progressed_prompt.extend([10; 5]);
    on.progressed_generated.extend([33; 5]);
    assert_eq!(both(&policy.schedule(&on)), (&[][..], &[][..]), "it goes on");
    // And what it sends meanwhile is a newcomer's.
    policy.tenants.gave_way(8);
    assert_eq!(both(&policy.schedule(&busy(&[arrival(9, 1, 10)], 3000))).1, [9]);
}

#[test]
fn regression_what_gave_way_before_a_swap_is_brought_back_after_it() {
    let mut policy = policy();
    let arrivals: Vec<_> = (1..=9).map(|id| arrival(id, u32::from(id == 9), 10)).collect();
    let mut replay = busy(&arrivals, 0);
    replay.replay = true;
    replay.dispatched_ids.extend(1..=9);
    replay.dispatched_workers.extend([0; 9]);
    replay.preempted_ids.push(9);
    assert_eq!(both(&policy.schedule(&replay)), (&[8][..], &[][..]), "a gives way so that b's only request goes on");
    // It may be paused for its reader instead.
    assert_eq!(both(&policy.schedule(&busy(&[], 250))), (&[][..], &[][..]), "once");
}

#[test]
fn nobody_gives_way_where_that_is_switched_off() {
    let mut policy = FairShares::new(Settings { preempt: false, ..Settings::default() }).unwrap();
    full(&mut policy, 32);
    assert_eq!(both(&policy.schedule(&busy(&[arrival(101, 1, 10)], 1000))), (&[][..], &[][..]));
}

#[test]
fn spreads_load_over_workers_and_follows_their_health() {
    testing::check_placement(policy);
}

#[test]
fn one_gives_way_for_each_newcomer_on_any_worker() {
    let mut cluster = testing::Cluster::new(policy(), 2, 4, 1000);
    (1..=8).for_each(|id| cluster.submit(arrival(id, 0, 10)));
    assert_eq!(cluster.schedule().len(), 8);
    cluster.submit(arrival(101, 1, 10));
    let placed = cluster.schedule();
    assert_eq!((placed.len(), cluster.gave_way().len(), cluster.running().len()), (1, 1, 9));
    let gave_way = cluster.gave_way()[0];
    assert_eq!(cluster.active()[placed[0].1 as usize], 5, "request {gave_way} waits there");
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
        // They gave way, and go on before anything new.
        let mut preempted: Vec<(u64, u32, u32)> = Vec::new();
        let mut service = [0.0f64; 2];
        let mut arrivals = Vec::new();
        let mut events = point(&[], 0);
        let bound = 2.0 * (f64::from(LONGEST_PROMPT)).max(2.0 * (SLOTS as f64) * f64::from(LONGEST_OUTPUT + LONGEST_PROMPT))
            + (SLOTS * 32 * 2) as f64;
        for tick in 0..400 {
            while waiting[0] < 20 || waiting[1] < 20 {
                let (arrival, _) = request(next);
                arrivals.push(arrival);
                waiting[(next % 2) as usize] += 1;
                next += 1;
            }
            let back = preempted.len().min(SLOTS - running.len());
            running.extend(preempted.drain(..back));
            let mut arrived = point(&std::mem::take(&mut arrivals), (SLOTS - running.len()) as u32);
            std::mem::swap(&mut events.arrived, &mut arrived.arrived);
            std::mem::swap(&mut events.workers, &mut arrived.workers);
            events.now_ms = 20 * tick;
            let actions = policy.schedule(&events);
            preempted.extend(running.extract_if(.., |(id, ..)| actions.preempt_ids.contains(id)));
            for id in actions.dispatch_ids {
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
