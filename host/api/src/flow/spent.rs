//! What a choice has used, counted where its tokens are drawn: a client that takes nothing of them pays all the same.
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use camshaft_core::message::Event;

use crate::flow::quota::QuotaGrant;

/// Shared by the worker's side of a choice, which counts, and by its request.
#[derive(Debug, Clone, Default)]
pub struct Spent(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    started: AtomicBool,
    tokens: AtomicU32,
    /// Set when the request has ended.
    settled: OnceLock<Settled>,
}

/// What the request has paid of a choice, and who pays the rest.
#[derive(Debug)]
struct Settled {
    /// Of the prompt; 0 if another choice pays it.
    prompt_tokens: u64,
    paid: u64,
    rest: QuotaGrant,
}

impl Counts {
    fn used(&self, prompt_tokens: u64) -> u64 {
        let prompt = if self.started.load(Ordering::Relaxed) { prompt_tokens } else { 0 };
        prompt + u64::from(self.tokens.load(Ordering::Relaxed))
    }
}

/// Neither the request nor the worker counts any more.
impl Drop for Counts {
    fn drop(&mut self) {
        if let Some(Settled { prompt_tokens, paid, mut rest }) = self.settled.take() {
            rest.set_used(self.used(prompt_tokens).saturating_sub(paid));
        }
    }
}

impl Spent {
    /// Counts what an event says, before anybody decides whether to send it.
    pub fn note(&self, event: &Event) {
        match event {
            Event::Started { .. } => self.0.started.store(true, Ordering::Relaxed),
            Event::Delta { delta, .. } => drop(self.0.tokens.fetch_add(delta.tokens, Ordering::Relaxed)),
            // Not all tokens have text.
            Event::Finished { usage, .. } => drop(self.0.tokens.fetch_max(usage.generated_tokens, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// The request has ended: what it has to pay for the choice so far, `prompt_tokens` of it once the prompt is being
    /// computed. What the worker counts after that is taken from `rest`.
    pub(crate) fn settle(&self, prompt_tokens: u64, rest: QuotaGrant) -> u64 {
        let paid = self.0.used(prompt_tokens);
        // A request ends once.
        let _ = self.0.settled.set(Settled { prompt_tokens, paid, rest });
        paid
    }

    /// Tokens drawn so far.
    pub fn tokens(&self) -> u32 {
        self.0.tokens.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use camshaft_core::ids::RequestId;
    use camshaft_core::message::Delta;
    use camshaft_core::policy::{Principal, Quotas};
    use camshaft_core::quota::Demand;

    use super::*;
    use crate::flow::quota::{LocalQuotas, QuotaStore};

    #[test]
    fn regression_what_is_computed_after_the_client_has_left_is_paid() {
        let store: Arc<dyn QuotaStore> = Arc::new(LocalQuotas::default());
        let quotas = Quotas { tokens_per_minute: Some(1000), concurrent_requests: Some(1), ..Quotas::default() };
        let principal = Principal { quotas, ..Principal::anonymous() };
        let mut grant = QuotaGrant::admit(&store, &principal).unwrap().unwrap();
        grant.reserve(Demand { choices: 1, tokens: 900, read: 700 }).unwrap();
        let request = Spent::default();
        let worker = request.clone();
        assert_eq!(request.settle(700, grant.rest()), 0, "nothing was computed");
        drop((request, grant));
        let id = RequestId(1);
        worker.note(&Event::Started { id, cached_tokens: 0 });
        worker.note(&Event::Delta { id, delta: Delta { tokens: 3, ..Delta::default() } });
        let left = |store: &Arc<dyn QuotaStore>| {
            let grant = QuotaGrant::admit(store, &principal).unwrap().unwrap();
            grant.standings().tokens.unwrap().remaining
        };
        assert_eq!(left(&store), 1000, "the worker has not ended, and its client does not run");
        drop(worker);
        let left = left(&store);
        // A few come back while the test runs.
        assert!((297..900).contains(&left), "{left}");
    }
}
