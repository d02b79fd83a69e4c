//! The quotas of a tenant: token buckets that fill at a constant rate and take back unused tokens. Time is passed in.
//!
//! A request is counted in steps: [`Account::admit`] when its credentials are known, before anything is spent on its body,
//! [`Account::read`] when a long body is about to be read, and [`Account::reserve`] when it is known what it asks for.
use std::time::Duration;

use crate::policy::Quotas;

/// In which any bucket fills up: one may owe as much as it holds.
const MOST_MINUTES: f64 = 2.0;
const MINUTE: f64 = 60.0;
/// Tokens that are read for a request that is then refused, for each one that the account pays. Reading is far cheaper than
/// computing. At the full price, clients that come back when they were told to would keep each other out: each refusal
/// would take what the others wait for.
const READ_PER_TOKEN: u64 = 16;
/// Bytes of a body that are taken for a token of its prompt, as long as nobody has read it.
const BYTES_PER_TOKEN: u64 = 4;

/// A bucket of units per minute. All units of a minute may be taken at once.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bucket {
    /// Units per minute.
    limit: u32,
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
    /// What it can pay for work that is done whether or not there is enough: what is in it, and a minute's more.
    fn credit(&self) -> f64 {
        (self.level + f64::from(self.limit)).max(0.0)
    }

    fn full(limit: u32, now: Duration) -> Self {
        Self { limit, level: f64::from(limit), at: now }
    }

    /// Fills the bucket up to now.
    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        let limit = f64::from(self.limit);
        self.level = (self.level + passed * limit / MINUTE).min(limit);
        self.at = now.max(self.at);
    }

    /// Time until the bucket has `units`; `None` if it has them now.
    fn wait(&self, units: f64) -> Option<Duration> {
        let missing = units - self.level;
        (missing > 0.0).then(|| self.time_for(missing))
    }

    fn time_for(&self, units: f64) -> Duration {
        Duration::from_secs_f64((units / f64::from(self.limit.max(1)) * MINUTE).clamp(0.0, 1e9))
    }

    fn standing(&self) -> Standing {
        let missing = f64::from(self.limit) - self.level;
        Standing { limit: self.limit, remaining: self.level.max(0.0) as u32, reset: self.time_for(missing) }
    }
}

/// The buckets of one quota, one for each limit that keys of the tenant have: keys with the same limit share one, and no
/// key's use changes what another limit leaves.
#[derive(Debug, Clone, Default)]
struct Buckets(Vec<Bucket>);

impl Buckets {
    /// The bucket of a limit, filled up to now; `None` without a limit.
    fn of(&mut self, limit: Option<u32>, now: Duration) -> Option<&mut Bucket> {
        let limit = limit?;
        let known = self.0.iter().position(|bucket| bucket.limit == limit);
        let at = known.unwrap_or_else(|| {
            // A full bucket says what a new one would.
            self.0.iter_mut().for_each(|bucket| bucket.fill(now));
            self.0.retain(|bucket| bucket.level < f64::from(bucket.limit));
            self.0.push(Bucket::full(limit, now));
            self.0.len() - 1
        });
        let bucket = &mut self.0[at];
        bucket.fill(now);
        Some(bucket)
    }

    fn get(&self, limit: Option<u32>) -> Option<Standing> {
        self.0.iter().find(|bucket| Some(bucket.limit) == limit).map(Bucket::standing)
    }

    fn are_full(&self, now: Duration) -> bool {
        self.0.iter().all(|bucket| now.saturating_sub(bucket.at).as_secs_f64() > MOST_MINUTES * MINUTE)
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
    /// What the request asks for in all: requests, tokens or choices.
    pub asked: u64,
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

/// What a request has of an account. It is given back to [`Account::settle`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reservation {
    quotas: Quotas,
    /// Choices that run at the same time.
    choices: u32,
    tokens: u64,
    /// What was paid for reading its body, before it is known what it asks for.
    read: f64,
    pub standings: Standings,
}

impl Reservation {
    /// For what the request uses after it is settled: nothing runs, and nothing is reserved.
    pub fn rest(&self) -> Self {
        Self { choices: 0, tokens: 0, read: 0.0, ..*self }
    }
}

/// What a request asks for once it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demand {
    /// That run at the same time.
    pub choices: u32,
    /// That it may use.
    pub tokens: u64,
    /// Of those: its prompts or texts, which had to be read to know.
    pub read: u64,
}

/// The account of one tenant.
#[derive(Debug, Clone, Default)]
pub struct Account {
    requests: Buckets,
    tokens: Buckets,
    /// Choices of all keys.
    running: u32,
}

impl Account {
    /// Counts a request, and its first choice as running.
    ///
    /// # Errors
    /// The minute's requests or tokens are used up, or too many choices run. Then nothing is counted.
    pub fn admit(&mut self, quotas: &Quotas, now: Duration) -> Result<Reservation, Exceeded> {
        self.check_running(quotas, 1, 1, now)?;
        let requests = self.requests.of(quotas.requests_per_minute, now).copied();
        // Whatever the request asks for, it takes a token.
        let tokens = self.tokens.of(quotas.tokens_per_minute, now).copied();
        for (quota, bucket) in [(Quota::Requests, requests), (Quota::Tokens, tokens)] {
            let Some(bucket) = bucket else { continue };
            if let Some(wait) = bucket.wait(1.0) {
                let retry_after = Some(wait).filter(|_| bucket.limit > 0);
                return Err(self.exceeded(quotas, (quota, bucket.limit, 1), retry_after, now));
            }
        }
        if let Some(bucket) = self.requests.of(quotas.requests_per_minute, now) {
            bucket.level -= 1.0;
        }
        self.running += 1;
        Ok(Reservation { quotas: *quotas, choices: 1, tokens: 0, read: 0.0, standings: self.standings(quotas, now) })
    }

    /// A body of `bytes` bytes is about to be read: the account pays for that by an estimate, if need be with what it gets in
    /// the next minute. Unless [`Account::reserve`] follows, it has paid: the client has left, or the body was refused.
    pub fn read(&mut self, request: &mut Reservation, bytes: u64, now: Duration) {
        let Some(bucket) = self.tokens.of(request.quotas.tokens_per_minute, now) else { return };
        let price = ((bytes / (BYTES_PER_TOKEN * READ_PER_TOKEN)) as f64).min(bucket.credit());
        bucket.level -= price;
        request.read += price;
    }

    /// Adds to a request that was admitted what it asks for. The estimate for reading its body comes back.
    ///
    /// # Errors
    /// It does not fit. Then the reservation stays as it is, and the account pays for what was read, if need be
    /// with what it gets in the next minute.
    pub fn reserve(&mut self, request: &mut Reservation, demand: Demand, now: Duration) -> Result<(), Exceeded> {
        if let Some(bucket) = self.tokens.of(request.quotas.tokens_per_minute, now) {
            bucket.level += std::mem::take(&mut request.read);
        }
        let refused = match self.add(request, demand, now) {
            Err(exceeded) => exceeded,
            Ok(()) => return Ok(()),
        };
        let Some(bucket) = self.tokens.of(request.quotas.tokens_per_minute, now) else { return Err(refused) };
        bucket.level -= ((demand.read / READ_PER_TOKEN) as f64).min(bucket.credit());
        // The time to come back depends on what is left now.
        self.add(request, demand, now)
    }

    fn add(&mut self, request: &mut Reservation, demand: Demand, now: Duration) -> Result<(), Exceeded> {
        let Demand { choices, tokens, .. } = demand;
        let quotas = request.quotas;
        let more = choices.saturating_sub(request.choices);
        self.check_running(&quotas, more, choices, now)?;
        if let Some(bucket) = self.tokens.of(quotas.tokens_per_minute, now) {
            if let Some(wait) = bucket.wait(tokens as f64) {
                let limit = bucket.limit;
                let retry_after = Some(wait).filter(|_| tokens <= u64::from(limit));
                return Err(self.exceeded(&quotas, (Quota::Tokens, limit, tokens), retry_after, now));
            }
            bucket.level -= tokens as f64;
            request.tokens += tokens;
        }
        self.running += more;
        request.choices += more;
        request.standings = self.standings(&quotas, now);
        Ok(())
    }

    /// Settles a request that has ended: returns the tokens that it reserved and did not use, or takes the few that it
    /// used beyond its reservation.
    pub fn settle(&mut self, request: &Reservation, used: u64) {
        self.running = self.running.saturating_sub(request.choices);
        let limit = request.quotas.tokens_per_minute;
        if let Some(bucket) = self.tokens.0.iter_mut().find(|bucket| Some(bucket.limit) == limit) {
            bucket.level += request.tokens as f64 - used as f64;
        }
    }

    /// Whether the account can be removed: no request runs, and its buckets are full.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.running == 0 && self.requests.are_full(now) && self.tokens.are_full(now)
    }

    /// Checks that `more` choices of a request with `choices` may run beside those that do.
    fn check_running(&mut self, quotas: &Quotas, more: u32, choices: u32, now: Duration) -> Result<(), Exceeded> {
        match quotas.concurrent_requests {
            Some(limit) if more > 0 && self.running.saturating_add(more) > limit => {
                Err(self.exceeded(quotas, (Quota::Concurrency, limit, u64::from(choices)), None, now))
            }
            _ => Ok(()),
        }
    }

    fn exceeded(
        &mut self,
        quotas: &Quotas,
        (quota, limit, asked): (Quota, u32, u64),
        retry_after: Option<Duration>,
        now: Duration,
    ) -> Exceeded {
        Exceeded { quota, limit, asked, retry_after, standings: self.standings(quotas, now) }
    }

    fn standings(&mut self, quotas: &Quotas, now: Duration) -> Standings {
        self.requests.of(quotas.requests_per_minute, now);
        self.tokens.of(quotas.tokens_per_minute, now);
        Standings {
            requests: self.requests.get(quotas.requests_per_minute),
            tokens: self.tokens.get(quotas.tokens_per_minute),
        }
    }
}

#[cfg(test)]
#[path = "quota_tests.rs"]
mod tests;
