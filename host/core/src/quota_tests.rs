//! Tests of quotas.
use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn quotas(requests: Option<u32>, tokens: Option<u32>, concurrent: Option<u32>) -> Quotas {
    Quotas {
        requests_per_minute: requests,
        tokens_per_minute: tokens,
        concurrent_requests: concurrent,
        queue_share: None,
    }
}

/// Of a request without a text.
fn demand(choices: u32, tokens: u64) -> Demand {
    Demand { choices, tokens, read: 0 }
}

impl Account {
    /// Both steps of a request with one choice. One that is refused ends.
    fn take(&mut self, quotas: &Quotas, tokens: u64, now: Duration) -> Result<Reservation, Exceeded> {
        self.take_choices(quotas, 1, tokens, now)
    }

    fn take_choices(
        &mut self,
        quotas: &Quotas,
        choices: u32,
        tokens: u64,
        now: Duration,
    ) -> Result<Reservation, Exceeded> {
        let mut request = self.admit(quotas, now)?;
        match self.reserve(&mut request, demand(choices, tokens), now) {
            Ok(()) => Ok(request),
            Err(exceeded) => {
                self.settle(&request, 0);
                Err(exceeded)
            }
        }
    }
}

#[test]
fn lets_through_as_many_requests_as_the_limit_and_the_next_after_its_time() {
    let (quotas, mut account) = (quotas(Some(3), None, None), Account::default());
    (0..3).for_each(|_| assert!(account.take(&quotas, 10, SECOND).is_ok()));
    let exceeded = account.take(&quotas, 10, SECOND).unwrap_err();
    assert_eq!((exceeded.quota, exceeded.limit), (Quota::Requests, 3));
    assert_eq!(exceeded.retry_after, Some(20 * SECOND));
    assert!(account.take(&quotas, 10, 20 * SECOND).is_err());
    assert!(account.take(&quotas, 10, 21 * SECOND).is_ok());
}

#[test]
fn reserves_tokens_and_gives_back_what_was_not_used() {
    let (quotas, mut account) = (quotas(None, Some(100), None), Account::default());
    let first = account.take(&quotas, 100, SECOND).unwrap();
    let standing = first.standings.tokens.unwrap();
    assert_eq!((standing.remaining, standing.reset), (0, 60 * SECOND));
    assert!(account.take(&quotas, 1, SECOND).is_err());
    account.settle(&first, 40);
    assert_eq!(account.take(&quotas, 60, SECOND).unwrap().standings.tokens.unwrap().remaining, 0);
    // A request that can never fit has no retry time.
    assert_eq!(account.take(&quotas, 101, 1000 * SECOND).unwrap_err().retry_after, None);
    assert!(account.take(&quotas, 100, 1000 * SECOND).is_ok());
}

#[test]
fn counts_what_runs_and_a_request_whose_tokens_do_not_fit() {
    let (quotas, mut account) = (quotas(Some(10), Some(10), Some(2)), Account::default());
    let first = account.take(&quotas, 1, SECOND).unwrap();
    assert!(account.take(&quotas, 1, SECOND).is_ok());
    let exceeded = account.take(&quotas, 1, SECOND).unwrap_err();
    assert_eq!((exceeded.quota, exceeded.limit), (Quota::Concurrency, 2));
    assert_eq!(exceeded.standings.requests.unwrap().remaining, 8);
    account.settle(&first, 1);
    // Its body was read and tokenized, so it counts, but it does not run on.
    assert!(account.take(&quotas, 9, SECOND).is_err());
    assert_eq!(account.take(&quotas, 8, SECOND).unwrap().standings.requests.unwrap().remaining, 6);
    assert!(!account.is_idle(1000 * SECOND));
}

#[test]
fn regression_every_choice_of_a_request_runs() {
    let (quotas, mut account) = (quotas(None, None, Some(4)), Account::default());
    let exceeded = account.take_choices(&quotas, 5, 1, SECOND).unwrap_err();
    assert_eq!((exceeded.quota, exceeded.limit, exceeded.asked), (Quota::Concurrency, 4, 5));
    let all = account.take_choices(&quotas, 4, 1, SECOND).unwrap();
    assert!(account.admit(&quotas, SECOND).is_err());
    account.settle(&all, 1);
    let one = account.take_choices(&quotas, 1, 1, SECOND).unwrap();
    assert!(account.take_choices(&quotas, 4, 1, SECOND).is_err());
    assert!(account.take_choices(&quotas, 3, 1, SECOND).is_ok());
    account.settle(&one, 1);
    assert!(account.admit(&quotas, SECOND).is_ok());
}

#[test]
fn a_request_that_runs_is_not_refused_for_those_that_came_after_it() {
    let (few, many, mut account) = (quotas(None, None, Some(1)), quotas(None, None, Some(5)), Account::default());
    let mut first = account.admit(&few, SECOND).unwrap();
    assert!(account.take_choices(&many, 2, 1, SECOND).is_ok());
    assert!(account.reserve(&mut first, demand(1, 1), SECOND).is_ok(), "it has its choice");
    assert_eq!(account.reserve(&mut first, demand(2, 1), SECOND).unwrap_err().quota, Quota::Concurrency);
}

#[test]
fn regression_another_key_of_the_tenant_does_not_renew_a_quota() {
    let limited = quotas(Some(2), Some(10), None);
    let others = [quotas(None, None, None), quotas(Some(1000), Some(1000), None), quotas(Some(1), Some(1), None)];
    for other in others {
        let mut account = Account::default();
        assert!(account.take(&limited, 5, SECOND).is_ok() && account.take(&limited, 5, SECOND).is_ok());
        let unlimited = account.take(&other, 1, SECOND).unwrap();
        assert_eq!(account.take(&limited, 1, SECOND).unwrap_err().quota, Quota::Requests);
        // Nor does what the other key gives back.
        account.settle(&unlimited, 0);
        assert_eq!(account.take(&quotas(None, Some(10), None), 1, SECOND).unwrap_err().quota, Quota::Tokens);
        // Nor does its use take from this key.
        assert!(account.take(&limited, 5, 61 * SECOND).is_ok());
    }
}

#[test]
fn regression_without_a_token_left_no_request_is_read() {
    let mut account = Account::default();
    let quotas = quotas(None, Some(60), None);
    let mut request = account.admit(&quotas, SECOND).unwrap();
    account.reserve(&mut request, demand(1, 60), SECOND).unwrap();
    let exceeded = account.admit(&quotas, SECOND).unwrap_err();
    assert_eq!((exceeded.quota, exceeded.limit, exceeded.asked), (Quota::Tokens, 60, 1));
    assert_eq!(exceeded.retry_after, Some(SECOND), "a token a second");
    assert!(account.admit(&quotas, SECOND + SECOND / 2).is_err());
    assert!(account.admit(&quotas, SECOND * 2).is_ok());
}

#[test]
fn regression_a_long_body_that_nobody_waits_for_is_paid_by_an_estimate() {
    let quotas = quotas(None, Some(1000), Some(1));
    let mut account = Account::default();
    let mut request = account.admit(&quotas, SECOND).unwrap();
    account.read(&mut request, 6400, SECOND);
    account.settle(&request, 0);
    let mut request = account.admit(&quotas, SECOND).unwrap();
    assert_eq!(request.standings.tokens.unwrap().remaining, 900, "the client has left, or the body was refused");
    // One that goes on pays what it asks for, and not the estimate.
    account.read(&mut request, 6400, SECOND);
    account.reserve(&mut request, Demand { choices: 1, tokens: 900, read: 850 }, SECOND).unwrap();
    assert_eq!(request.standings.tokens.unwrap().remaining, 0);
    account.settle(&request, 50);
    let mut request = account.admit(&quotas, SECOND).unwrap();
    assert_eq!(request.standings.tokens.unwrap().remaining, 850);
    account.read(&mut request, 6400, SECOND);
    assert!(account.reserve(&mut request, Demand { choices: 1, tokens: 1600, read: 1600 }, SECOND).is_err());
    account.settle(&request, 0);
    let mut request = account.admit(&quotas, SECOND).unwrap();
    assert_eq!(request.standings.tokens.unwrap().remaining, 750, "nor is it paid twice");
    // Also with what there will be in a minute, and no more.
    account.read(&mut request, 64 * 100_000, SECOND);
    account.settle(&request, 0);
    let exceeded = account.admit(&quotas, SECOND).unwrap_err();
    assert_eq!(exceeded.retry_after, Some(SECOND * 60 * 1001 / 1000));
}

#[test]
fn regression_what_was_read_in_vain_is_paid_by_a_minute_at_most() {
    let quotas = quotas(None, Some(1000), Some(2));
    let mut account = Account::default();
    let mut refuse = |demand: Demand| {
        let mut request = account.admit(&quotas, SECOND)?;
        let refused = account.reserve(&mut request, demand, SECOND);
        account.settle(&request, 0);
        refused
    };
    let left = |refused: Result<(), Exceeded>| refused.unwrap_err().standings.tokens.unwrap().remaining;
    assert_eq!(left(refuse(Demand { choices: 1, tokens: 1600, read: 1600 })), 900);
    // What it wanted to generate was never begun.
    assert_eq!(left(refuse(Demand { choices: 1, tokens: 5000, read: 15 })), 900);
    assert_eq!(left(refuse(Demand { choices: 3, tokens: 160, read: 160 })), 890, "too many choices");
    let late = refuse(Demand { choices: 1, tokens: 960, read: 960 }).unwrap_err();
    assert_eq!((late.asked, late.retry_after), (960, Some(SECOND * 130 * 60 / 1000)), "130 are missing now");
    assert_eq!(left(refuse(Demand { choices: 1, tokens: 40_000, read: 40_000 })), 0);
    let exceeded = refuse(Demand { choices: 1, tokens: 1, read: 1 }).unwrap_err();
    assert_eq!(exceeded.retry_after, Some(SECOND * 60 * 1001 / 1000), "it owes a minute, and no more than that");
}

#[test]
fn clients_that_come_back_when_they_were_told_to_do_not_keep_each_other_out() {
    let quotas = quotas(None, Some(10_000), None);
    let demand = Demand { choices: 1, tokens: 1000, read: 600 };
    let mut account = Account::default();
    account.take(&quotas, 10_000, Duration::ZERO).unwrap();
    // When each of five comes back, in whole seconds, as `Retry-After` says.
    let mut back: Vec<Duration> = (1..=5).map(|client| client * SECOND).collect();
    let mut served = 0;
    for now in (1..=120).map(|second| second * SECOND) {
        for at in back.iter_mut().filter(|at| **at == now) {
            let Ok(mut request) = account.admit(&quotas, now) else {
                *at += SECOND;
                continue;
            };
            match account.reserve(&mut request, demand, now) {
                Ok(()) => {
                    served += 1;
                    *at += SECOND;
                    account.settle(&request, 1000);
                }
                Err(exceeded) => {
                    account.settle(&request, 0);
                    *at += SECOND * exceeded.retry_after.unwrap().as_secs_f64().ceil() as u32;
                }
            }
        }
    }
    assert!(served >= 15, "of the twenty that two minutes hold, {served} were served");
}

#[test]
fn keeps_only_buckets_that_say_something() {
    let mut account = Account::default();
    for limit in 1..1000 {
        assert!(account.take(&quotas(Some(limit), None, None), 0, limit * 61 * SECOND).is_ok());
    }
    assert!(account.requests.0.len() <= 2, "{}", account.requests.0.len());
}

#[test]
fn says_what_is_left_and_when_all_of_it_is_back() {
    let (quotas, mut account) = (quotas(Some(60), Some(600), None), Account::default());
    let standings = account.take(&quotas, 150, SECOND).unwrap().standings;
    let of = |standing: Option<Standing>| standing.map(|s| (s.limit, s.remaining, s.reset));
    assert_eq!(of(standings.requests), Some((60, 59, SECOND)));
    assert_eq!(of(standings.tokens), Some((600, 450, 15 * SECOND)));
    // A minute's units come back evenly, and no more than there were.
    let standings = account.take(&quotas, 0, 11 * SECOND).unwrap().standings;
    assert_eq!((of(standings.requests), of(standings.tokens)), (Some((60, 59, SECOND)), Some((600, 550, 5 * SECOND))));
}

#[test]
fn an_account_may_go_when_nothing_runs_and_every_bucket_is_full_again() {
    for quotas in [quotas(Some(1), None, None), quotas(None, Some(1), None), quotas(None, None, Some(1))] {
        let mut account = Account::default();
        assert!(account.is_idle(SECOND));
        let request = account.take(&quotas, 1, SECOND).unwrap();
        assert!(!account.is_idle(1000 * SECOND), "it runs");
        account.settle(&request, 1);
        let counts_units = quotas.concurrent_requests.is_none();
        assert_eq!(account.is_idle(121 * SECOND), !counts_units, "two minutes have to pass");
        assert!(account.is_idle(122 * SECOND));
    }
}

#[test]
fn a_limit_that_changes_takes_effect_and_zero_lets_nothing_through() {
    let mut account = Account::default();
    assert!(account.take(&quotas(None, Some(1000), None), 10, SECOND).is_ok());
    assert!(account.take(&quotas(None, Some(5), None), 6, SECOND).is_err());
    assert!(account.take(&quotas(None, None, None), 1_000_000, SECOND).is_ok());
    assert_eq!(account.take(&quotas(Some(0), None, None), 1, SECOND).unwrap_err().retry_after, None);
}

proptest! {
    #[test]
    fn no_minute_sees_more_than_twice_the_limit(
        acts in prop::collection::vec((0u64..5000, 1u64..80, 0u64..80), 1..200)
    ) {
        let (quotas, mut account) = (quotas(None, Some(100), None), Account::default());
        let (mut now, mut used): (Duration, Vec<(Duration, u64)>) = (Duration::ZERO, Vec::new());
        for (ms, reserved, use_) in acts {
            now += Duration::from_millis(ms);
            if let Ok(request) = account.take(&quotas, reserved, now) {
                let took = use_.min(reserved);
                account.settle(&request, took);
                used.push((now, took));
            }
            let within: u64 = used.iter().filter(|(at, _)| *at + 60 * SECOND > now).map(|(_, n)| n).sum();
            // At most a full bucket, and what it gains in the meantime.
            prop_assert!(within <= 200, "{within}");
        }
    }
}
