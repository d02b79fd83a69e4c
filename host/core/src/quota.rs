//! The quotas of a tenant: token buckets that fill at a constant rate and take back unused tokens. Time is passed in.
use std::time::Duration;

use crate::policy::Quotas;

const MINUTE: f64 = 60.0;

/// A bucket of units per minute. All units of a minute may be taken at once.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    level: f64,
    at: Duration,
}

/// The state of a bucket after a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    pub limit: u32,
    pub remaining: u32,
    /// Time until the bucket is full again.
    pub reset: Duration,
}

impl Bucket {
    fn full(limit: u32, now: Duration) -> Self {
        Self { level: f64::from(limit), at: now }
    }

    /// Fills the bucket up to now, and applies a changed limit from now on.
    fn fill(&mut self, limit: u32, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + passed * f64::from(limit) / MINUTE).min(f64::from(limit));
        self.at = now.max(self.at);
    }

    /// Time until the bucket has `units`; `None` if it has them now.
    fn wait(&self, units: f64, limit: u32) -> Option<Duration> {
        let missing = units - self.level;
        (missing > 0.0).then(|| Duration::from_secs_f64((missing / f64::from(limit.max(1)) * MINUTE).min(1e9)))
    }

    fn standing(&self, limit: u32) -> Standing {
        let missing = f64::from(limit) - self.level;
        let reset = Duration::from_secs_f64((missing / f64::from(limit.max(1)) * MINUTE).max(0.0));
        Standing { limit, remaining: self.level.max(0.0) as u32, reset }
    }
}

/// The quota that a request exceeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    Requests,
    Tokens,
    Concurrency,
}

/// A request exceeds a quota.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exceeded {
    pub quota: Quota,
    pub limit: u32,
    /// Time until the request would fit; `None` if it never will, or if that is unknown.
    pub retry_after: Option<Duration>,
    pub standings: Standings,
}

/// What a tenant has left of its quotas; `None` without a limit.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Standings {
    pub requests: Option<Standing>,
    pub tokens: Option<Standing>,
}

/// The account of one tenant.
#[derive(Debug, Clone, Copy, Default)]
pub struct Account {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    running: u32,
}

impl Account {
    /// Reserves what a request may use, all or nothing: one request, one concurrent request, and the tokens.
    pub fn reserve(&mut self, quotas: &Quotas, tokens: u64, now: Duration) -> Result<Standings, Exceeded> {
        self.fill(quotas, now);
        let exceeded = |quota, limit, retry_after, account: &Self| {
            Err(Exceeded { quota, limit, retry_after, standings: account.standings(quotas) })
        };
        if let Some(limit) = quotas.concurrent_requests.filter(|&limit| self.running >= limit) {
            return exceeded(Quota::Concurrency, limit, None, self);
        }
        if let (Some(bucket), Some(limit)) = (&self.requests, quotas.requests_per_minute)
            && let Some(wait) = bucket.wait(1.0, limit)
        {
            return exceeded(Quota::Requests, limit, Some(wait).filter(|_| limit > 0), self);
        }
        if let (Some(bucket), Some(limit)) = (&self.tokens, quotas.tokens_per_minute)
            && let Some(wait) = bucket.wait(tokens as f64, limit)
        {
            return exceeded(Quota::Tokens, limit, Some(wait).filter(|_| tokens <= u64::from(limit)), self);
        }
        self.running += 1;
        if let Some(bucket) = &mut self.requests {
            bucket.level -= 1.0;
        }
        if let Some(bucket) = &mut self.tokens {
            bucket.level -= tokens as f64;
        }
        Ok(self.standings(quotas))
    }

    /// Settles a request that has ended: returns the tokens that it reserved and did not use, or takes the few that it
    /// used beyond its reservation.
    pub fn settle(&mut self, reserved: u64, used: u64) {
        self.running = self.running.saturating_sub(1);
        if let Some(bucket) = &mut self.tokens {
            bucket.level += reserved as f64 - used as f64;
        }
    }

    /// Whether the account can be removed: no request runs, and its buckets are full.
    pub fn is_idle(&self, now: Duration) -> bool {
        let filled = |bucket: &Option<Bucket>| bucket.is_none_or(|b| now.saturating_sub(b.at).as_secs_f64() > MINUTE);
        self.running == 0 && filled(&self.requests) && filled(&self.tokens)
    }

    fn fill(&mut self, quotas: &Quotas, now: Duration) {
        for (bucket, limit) in
            [(&mut self.requests, quotas.requests_per_minute), (&mut self.tokens, quotas.tokens_per_minute)]
        {
            match limit {
                None => *bucket = None,
                Some(limit) => bucket.get_or_insert_with(|| Bucket::full(limit, now)).fill(limit, now),
            }
        }
    }

    fn standings(&self, quotas: &Quotas) -> Standings {
        let of = |bucket: Option<Bucket>, limit: Option<u32>| bucket.zip(limit).map(|(b, limit)| b.standing(limit));
        Standings {
            requests: of(self.requests, quotas.requests_per_minute),
            tokens: of(self.tokens, quotas.tokens_per_minute),
        }
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn lets_through_as_many_requests_as_the_limit_and_the_next_after_its_time() {
        let (quotas, mut account) = (quotas(Some(3), None, None), Account::default());
        (0..3).for_each(|_| assert!(account.reserve(&quotas, 10, SECOND).is_ok()));
        let exceeded = account.reserve(&quotas, 10, SECOND).unwrap_err();
        assert_eq!((exceeded.quota, exceeded.limit), (Quota::Requests, 3));
        assert_eq!(exceeded.retry_after, Some(20 * SECOND));
        assert!(account.reserve(&quotas, 10, 20 * SECOND).is_err());
        assert!(account.reserve(&quotas, 10, 21 * SECOND).is_ok());
    }

    #[test]
    fn reserves_tokens_and_gives_back_what_was_not_used() {
        let (quotas, mut account) = (quotas(None, Some(100), None), Account::default());
        let standing = account.reserve(&quotas, 100, SECOND).unwrap().tokens.unwrap();
        assert_eq!((standing.remaining, standing.reset), (0, 60 * SECOND));
        assert!(account.reserve(&quotas, 1, SECOND).is_err());
        account.settle(100, 40);
        assert_eq!(account.reserve(&quotas, 60, SECOND).unwrap().tokens.unwrap().remaining, 0);
        // A request that can never fit has no retry time.
        assert_eq!(account.reserve(&quotas, 101, 1000 * SECOND).unwrap_err().retry_after, None);
        assert!(account.reserve(&quotas, 100, 1000 * SECOND).is_ok());
    }

    #[test]
    fn counts_what_runs_and_a_refusal_takes_nothing() {
        let (quotas, mut account) = (quotas(Some(10), Some(10), Some(2)), Account::default());
        assert!(account.reserve(&quotas, 1, SECOND).is_ok() && account.reserve(&quotas, 1, SECOND).is_ok());
        let exceeded = account.reserve(&quotas, 1, SECOND).unwrap_err();
        assert_eq!((exceeded.quota, exceeded.limit), (Quota::Concurrency, 2));
        assert_eq!(exceeded.standings.requests.unwrap().remaining, 8);
        account.settle(1, 1);
        assert!(account.reserve(&quotas, 9, SECOND).is_err());
        assert_eq!(account.reserve(&quotas, 8, SECOND).unwrap().requests.unwrap().remaining, 7);
        assert!(!account.is_idle(1000 * SECOND));
    }

    #[test]
    fn a_limit_that_changes_takes_effect_and_zero_lets_nothing_through() {
        let mut account = Account::default();
        assert!(account.reserve(&quotas(None, Some(1000), None), 10, SECOND).is_ok());
        assert!(account.reserve(&quotas(None, Some(5), None), 6, SECOND).is_err());
        assert!(account.reserve(&quotas(None, None, None), 1_000_000, SECOND).is_ok());
        assert_eq!(account.reserve(&quotas(Some(0), None, None), 1, SECOND).unwrap_err().retry_after, None);
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
                if account.reserve(&quotas, reserved, now).is_ok() {
                    let took = use_.min(reserved);
                    account.settle(reserved, took);
                    used.push((now, took));
                }
                let within: u64 = used.iter().filter(|(at, _)| *at + 60 * SECOND > now).map(|(_, n)| n).sum();
                // At most a full bucket, and what it gains in the meantime.
                prop_assert!(within <= 200, "{within}");
            }
        }
    }
}
