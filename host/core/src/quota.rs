//! Rates that tenants are held to: token buckets that are filled evenly and given back to. Pure: time comes in.
use std::time::Duration;

use crate::policy::Quotas;

const MINUTE: f64 = 60.0;

/// So many units in a minute, all of which may be taken at once.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    level: f64,
    at: Duration,
}

/// Where a bucket stands after it was asked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    pub limit: u32,
    pub remaining: u32,
    /// Until it is full again.
    pub reset: Duration,
}

impl Bucket {
    fn full(limit: u32, now: Duration) -> Self {
        Self { level: f64::from(limit), at: now }
    }

    /// Fills up to now; a limit that was changed takes effect from here on.
    fn fill(&mut self, limit: u32, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.level = (self.level + passed * f64::from(limit) / MINUTE).min(f64::from(limit));
        self.at = now.max(self.at);
    }

    /// How long until `units` are there; `None` if they are.
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

/// Which quota a request goes over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    Requests,
    Tokens,
    Concurrency,
}

/// A request that goes over a quota.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Exceeded {
    pub quota: Quota,
    pub limit: u32,
    /// Until it would be let through; `None`: never, or nobody knows.
    pub retry_after: Option<Duration>,
    pub standings: Standings,
}

/// Where a tenant stands; `None` where it is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Standings {
    pub requests: Option<Standing>,
    pub tokens: Option<Standing>,
}

/// One tenant's use of its quotas.
#[derive(Debug, Clone, Copy, Default)]
pub struct Account {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    running: u32,
}

impl Account {
    /// Takes what a request needs, all or nothing: one request, a place among those that run, and the tokens that it may
    /// come to use.
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

    /// The request is over: what it reserved and did not use is given back. What it used beyond that (which cannot be much)
    /// is taken.
    pub fn settle(&mut self, reserved: u64, used: u64) {
        self.running = self.running.saturating_sub(1);
        if let Some(bucket) = &mut self.tokens {
            bucket.level += reserved as f64 - used as f64;
        }
    }

    /// Whether it can be forgotten: nothing runs, and its buckets are full by now.
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
        // What can never fit is said to be so.
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
                // A full bucket, and what flows in meanwhile.
                prop_assert!(within <= 200, "{within}");
            }
        }
    }
}
