//! The breaker over time.
use proptest::prelude::*;

use super::*;

const SETTINGS: BreakerSettings = BreakerSettings {
    faults: 3,
    share_permille: 500,
    window: Duration::from_secs(8),
    pause: Duration::from_secs(1),
    max_pause: Duration::from_secs(4),
};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Open since `at`.
fn opened(at: Duration) -> Breaker {
    let mut breaker = Breaker::new(SETTINGS);
    for fault in 1..=3 {
        assert_eq!(breaker.admit(at), Admission::Ask);
        let turn = breaker.faulted(at);
        assert_eq!(turn, (fault == 3).then_some(Turn::Opened { pause: s(1) }), "fault {fault}");
    }
    breaker
}

#[test]
fn opens_at_the_bound_of_faults_within_the_window_and_not_one_before() {
    assert_eq!(opened(s(5)).state(), BreakerState::Open);
    let mut spread = Breaker::new(SETTINGS);
    for at in [0, 5, 10, 15, 20] {
        assert_eq!(spread.faulted(s(at)), None, "never three within eight seconds");
    }
    assert_eq!(spread.faulted(s(20)), Some(Turn::Opened { pause: s(1) }), "15, 20, 20");
}

#[test]
fn opens_only_if_the_share_of_calls_that_fault_is_large_enough() {
    for (answers, opens) in [(3, true), (4, false)] {
        let mut breaker = Breaker::new(SETTINGS);
        (0..answers).for_each(|_| assert_eq!(breaker.answered(s(1)), None));
        (0..2).for_each(|_| assert_eq!(breaker.faulted(s(1)), None));
        assert_eq!(breaker.faulted(s(1)).is_some(), opens, "{answers} answers and three faults");
    }
}

#[test]
fn never_opens_where_the_bound_is_zero() {
    let mut breaker = Breaker::new(BreakerSettings { faults: 0, ..SETTINGS });
    for _ in 0..1000 {
        assert_eq!(breaker.faulted(s(1)), None);
    }
    assert_eq!(breaker.admit(s(1)), Admission::Ask);
}

#[test]
fn one_call_tries_the_policy_when_the_pause_is_over_and_its_answer_closes_the_breaker() {
    let mut breaker = opened(s(5));
    assert_eq!((breaker.admit(ms(5999)), breaker.tried_at()), (Admission::Refuse, Some(s(6))));
    assert_eq!(breaker.answered(ms(5999)), None, "a call that began before it opened");
    assert_eq!(breaker.faulted(ms(5999)), None, "another one");
    assert_eq!(breaker.admit(s(6)), Admission::Try);
    assert_eq!((breaker.admit(s(6)), breaker.state()), (Admission::Refuse, BreakerState::HalfOpen));
    assert_eq!(breaker.answered(s(6)), Some(Turn::Closed));
    assert_eq!(breaker.admit(s(6)), Admission::Ask);
    assert_eq!(breaker.faulted(s(6)), None, "the faults before it opened count no more");
}

#[test]
fn a_call_that_tries_it_and_is_never_heard_of_again_does_not_keep_it_half_open() {
    let mut breaker = opened(s(5));
    assert_eq!(breaker.admit(s(6)), Admission::Try);
    assert_eq!(breaker.admit(ms(6999)), Admission::Refuse);
    assert_eq!(breaker.admit(s(7)), Admission::Try);
}

#[test]
fn the_pause_doubles_up_to_the_longest_and_resets_after_it_was_closed_for_as_long() {
    let mut breaker = opened(s(0));
    for (at, pause) in [(1, 2), (3, 4), (7, 4), (11, 4)] {
        assert_eq!(breaker.admit(s(at)), Admission::Try, "at {at} s");
        assert_eq!(breaker.faulted(s(at)), Some(Turn::Opened { pause: s(pause) }), "at {at} s");
    }
    assert_eq!(breaker.admit(s(15)), Admission::Try);
    assert_eq!(breaker.answered(s(15)), Some(Turn::Closed));
    let mut flaps = |at| (0..3).find_map(|_| breaker.faulted(at));
    assert_eq!(flaps(s(16)), Some(Turn::Opened { pause: s(4) }), "closed for one second is no recovery");
    assert_eq!(breaker.admit(s(20)), Admission::Try);
    assert_eq!(breaker.answered(s(20)), Some(Turn::Closed));
    assert_eq!(breaker.answered(s(24)), None);
    let mut flaps = |at| (0..3).find_map(|_| breaker.faulted(at));
    assert_eq!(flaps(s(24)), Some(Turn::Opened { pause: s(1) }));
}

proptest! {
    #[test]
    fn is_asked_only_while_closed_and_tried_at_most_once_a_pause(steps in prop::collection::vec((0u64..700, 0u8..3), 1..300)) {
        let (mut breaker, mut now, mut last_try) = (Breaker::new(SETTINGS), Duration::ZERO, None::<Duration>);
        for (wait, kind) in steps {
            now += ms(wait);
            match kind {
                0 => drop(breaker.answered(now)),
                1 => {
                    let before = breaker.state();
                    let turn = breaker.faulted(now);
                    prop_assert_eq!(matches!(turn, Some(Turn::Opened { .. })), before != BreakerState::Open && breaker.state() == BreakerState::Open);
                    if let Some(Turn::Opened { pause }) = turn {
                        prop_assert!(pause >= SETTINGS.pause && pause <= SETTINGS.max_pause);
                    }
                }
                _ => {
                    let before = breaker.state();
                    let admission = breaker.admit(now);
                    prop_assert_eq!(admission == Admission::Ask, before == BreakerState::Closed);
                    if admission == Admission::Try {
                        prop_assert!(last_try.is_none_or(|last| now >= last + SETTINGS.pause));
                        last_try = Some(now);
                    }
                }
            }
        }
    }
}
