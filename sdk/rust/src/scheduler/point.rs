//! A scheduling point, and what the host can be asked at it.
use std::ops::{Deref, DerefMut};

#[cfg(not(target_family = "wasm"))]
use super::rehearsal::Rehearsal;
use crate::bindings::host::scheduler_context::Pool;
use crate::bindings::scheduler::Point as Facts;

/// A scheduling point: what the host says ([`Facts`](super::Facts) has the fields), and what it can be asked.
///
/// A question costs a call of the host, so ask for many requests at once. It may name requests that wait or that a worker has,
/// and those that the point names; an unknown one is a fault, and so are more ids than there are such requests. Answers are in
/// the order of the ids.
#[derive(Debug)]
pub struct Point<'a> {
    facts: Facts,
    source: Source<'a>,
}

#[derive(Debug)]
enum Source<'a> {
    Host(&'a Pool),
    #[cfg(not(target_family = "wasm"))]
    Test(Box<Rehearsal>),
}

/// Asks the host, or the test.
macro_rules! ask {
    ($point:expr, $who:ident => $question:expr) => {
        match &$point.source {
            Source::Host($who) => $question,
            #[cfg(not(target_family = "wasm"))]
            Source::Test($who) => $question,
        }
    };
}

impl Deref for Point<'_> {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        &self.facts
    }
}

impl DerefMut for Point<'_> {
    fn deref_mut(&mut self) -> &mut Facts {
        &mut self.facts
    }
}

impl<'a> Point<'a> {
    pub(crate) fn new(facts: Facts, pool: &'a Pool) -> Self {
        Self { facts, source: Source::Host(pool) }
    }

    /// The model that clients ask for.
    pub fn model(&self) -> String {
        ask!(self, pool => pool.model())
    }

    /// The name of a tenant, by its number in an arrival. A number that the host has not given is a fault.
    pub fn tenant(&self, number: u32) -> String {
        ask!(self, pool => pool.tenant(number))
    }

    /// Asks the host to call again at the latest when `now_ms` is this, even if nothing happens. A later wish replaces it. No
    /// sooner than 10 ms after the answer; a time that has passed means: as soon as that.
    pub fn wake_at(&self, now_ms: u64) {
        ask!(self, pool => pool.wake_at(now_ms));
    }

    /// KV tokens that the host compares with a worker's free ones when it checks a dispatch.
    pub fn needs(&self, ids: &[u64]) -> Vec<u32> {
        ask!(self, pool => pool.needs(ids))
    }

    /// Prompt tokens that each worker's prefix cache probably holds now: for each request, one number for each worker of the
    /// point.
    pub fn cached(&self, ids: &[u64]) -> Vec<u32> {
        ask!(self, pool => pool.cached(ids))
    }

    /// One hash for each full block of 32 tokens of a prompt, over everything up to the block's end. Prompts of one cache
    /// namespace begin alike as far as these are equal.
    pub fn prefix_blocks(&self, id: u64) -> Vec<u64> {
        ask!(self, pool => pool.prefix_blocks(id))
    }

    /// The same number for the choices of one HTTP request, and for the requests of one session of a tenant. Never 0.
    pub fn groups(&self, ids: &[u64]) -> Vec<u64> {
        ask!(self, pool => pool.groups(ids))
    }

    /// Number of earlier HTTP requests of the same session.
    pub fn turns(&self, ids: &[u64]) -> Vec<u32> {
        ask!(self, pool => pool.turns(ids))
    }

    /// Soft targets of time from the arrival to the first token, in milliseconds; 0: none.
    pub fn first_token_targets_ms(&self, ids: &[u64]) -> Vec<u64> {
        ask!(self, pool => pool.targets_ms(ids, "first-token"))
    }

    /// Soft targets of time from one token to the next, in milliseconds; 0: none.
    pub fn per_token_targets_ms(&self, ids: &[u64]) -> Vec<u64> {
        ask!(self, pool => pool.targets_ms(ids, "per-token"))
    }

    /// An attribute that an auth or validator policy has set.
    pub fn attribute(&self, id: u64, name: &str) -> Option<String> {
        ask!(self, pool => pool.attribute(id, name))
    }

    /// What the client wrote under a name in the request's `hints`. It may say what it likes.
    pub fn hint(&self, id: u64, name: &str) -> Option<String> {
        ask!(self, pool => pool.hint(id, name))
    }

    /// Rejects waiting requests. Clients read status 503 with this code (1 to 64 of `a-z`, `0-9` and `_`; another one is a
    /// fault) and message, and `Retry-After` of at least 1 s and at most 120 s. [`Actions::reject`](super::Actions::reject) says
    /// neither code nor time. The host carries it out with the actions of this point.
    pub fn reject(&self, ids: &[u64], code: &str, retry_after_ms: u64, message: &str) {
        ask!(self, pool => pool.reject(ids, code, retry_after_ms, message));
    }

    /// Requests that were preempted or paused, and run again since the last point.
    pub fn resumed(&self) -> Vec<u64> {
        ask!(self, pool => pool.resumed())
    }

    /// Why each of `finished_ids` ended: `stop`, `length`, `filter`, `error`, and what may come.
    pub fn finish_reasons(&self) -> Vec<String> {
        ask!(self, pool => pool.finish_reasons())
    }

    /// Those of `finished_ids` whose worker died.
    pub fn failed(&self) -> Vec<u64> {
        ask!(self, pool => pool.failed())
    }

    /// Why each of `cancelled_ids` was cancelled: `client`, `deadline`, `rejected`, `slow-reader`, `shutdown`, and what may come.
    pub fn cancel_reasons(&self) -> Vec<String> {
        ask!(self, pool => pool.cancel_reasons())
    }
}

#[cfg(not(target_family = "wasm"))]
impl Point<'static> {
    /// A point for unit tests, whose tenants are called `tenant-0` and so on.
    pub(crate) fn test(facts: Facts) -> Self {
        Self { facts, source: Source::Test(Box::default()) }
    }

    /// Names tenants in a unit test: the first has number 0.
    #[must_use]
    pub fn tenants(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.rehearsal().tenants = names.into_iter().map(Into::into).collect();
        self
    }

    /// What the host answers in a unit test, and what the policy asked of it.
    #[allow(clippy::missing_panics_doc, reason = "a point for tests has no host")]
    pub fn rehearsal(&mut self) -> &mut Rehearsal {
        match &mut self.source {
            Source::Test(rehearsal) => rehearsal,
            Source::Host(_) => unreachable!("only points for tests live for ever"),
        }
    }
}
