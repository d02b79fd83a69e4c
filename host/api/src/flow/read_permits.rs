//! Who may read requests for a model: rendering and tokenizing occupy a core. Tenants take turns, so that nobody waits for all that
//! another tenant has sent.
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camshaft_core::fair_queue::FairQueue;
use camshaft_core::ids::TenantId;
use tokio::sync::oneshot;

use crate::flow::error::FlowError;

/// Requests that may wait. Past it only a tenant of which none waits may still join; others get 503.
const WAITING: usize = 1024;
/// Units of all readings at a time, where there are no more cores, and the bytes of a body that one unit is for. Each reading has a
/// thread, whose allocator keeps some memory, so a few more than can compute are enough.
const UNITS: usize = 16;
const UNIT_BYTES: usize = 2 << 10;
/// Units that are left to short bodies, however many long ones are read.
const SHORT_UNITS: usize = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct ReadPermits {
    /// Units of the longest body. As many of them as half of the cores fit beside the short ones, so that the engine keeps the
    /// others.
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    free: usize,
    waiting: FairQueue<TenantId, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    units: usize,
    permit: oneshot::Sender<ReadPermit>,
}

/// A permit. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct ReadPermit {
    permits: Option<Arc<ReadPermits>>,
    units: usize,
}

impl Default for ReadPermits {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self::new((cores / 2).max(1))
    }
}

impl ReadPermits {
    /// `longest`: how many of the longest bodies are read at a time.
    fn new(longest: usize) -> Self {
        let units = UNITS.max(2 * longest);
        let most = ((units - SHORT_UNITS) / longest).max(1);
        Self { most, state: Mutex::new(State { free: units, waiting: FairQueue::default() }) }
    }

    /// Waits for the tenant's turn at a body of `bytes`. Dropping the future gives up.
    ///
    /// # Errors
    /// 503 if too many requests wait.
    pub(crate) async fn take(self: &Arc<Self>, tenant: &TenantId, bytes: usize) -> Result<ReadPermit, FlowError> {
        // The sender is dropped only with the permits, and this request holds them.
        self.ask(tenant, bytes)?.await.map_err(|_| FlowError::Overloaded)
    }

    fn ask(self: &Arc<Self>, tenant: &TenantId, bytes: usize) -> Result<oneshot::Receiver<ReadPermit>, FlowError> {
        let mut state = self.state();
        if state.is_full_for(tenant) {
            // Some may have given up.
            state.waiting.retain(|waiting| !waiting.permit.is_closed());
            if state.is_full_for(tenant) {
                return Err(FlowError::Overloaded);
            }
        }
        let (permit, receiver) = oneshot::channel();
        let units = (bytes / UNIT_BYTES).clamp(1, self.most);
        state.waiting.push(tenant.clone(), Waiting { units, permit });
        self.pass_on(&mut state);
        Ok(receiver)
    }

    /// Gives permits to those who wait, in order, as long as there are units.
    fn pass_on(self: &Arc<Self>, state: &mut State) {
        while state.waiting.peek().is_some_and(|next| next.permit.is_closed() || next.units <= state.free) {
            let Some(Waiting { units, permit }) = state.waiting.pop() else { return };
            // Sent to one who has just given up, it must not pass itself on: the state is locked.
            match permit.send(ReadPermit { permits: Some(self.clone()), units }) {
                Ok(()) => state.free -= units,
                Err(mut unsent) => unsent.permits = None,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A tenant that has filled the queue shuts out only itself.
    fn is_full_for(&self, tenant: &TenantId) -> bool {
        self.waiting.contains(tenant) && self.waiting.len() >= WAITING
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        let Some(permits) = self.permits.take() else { return };
        let mut state = permits.state();
        state.free += self.units;
        permits.pass_on(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 1 << 20;

    fn tenant(name: &str) -> TenantId {
        TenantId::from(name)
    }

    fn one_long() -> Arc<ReadPermits> {
        Arc::new(ReadPermits::new(1))
    }

    #[tokio::test]
    async fn regression_a_tenant_waits_for_one_request_of_another_not_for_all() {
        let permits = one_long();
        let first = permits.take(&tenant("a"), LONG).await.unwrap();
        let (order, mut done) = tokio::sync::mpsc::channel(200);
        for name in std::iter::repeat_n("a", 100).chain(["b", "c"]) {
            let (permits, order) = (permits.clone(), order.clone());
            tokio::spawn(async move {
                let permit = permits.take(&tenant(name), LONG).await.unwrap();
                order.send(name).await.unwrap();
                drop(permit);
            });
            tokio::task::yield_now().await;
        }
        drop((first, order));
        let mut names = Vec::new();
        while let Some(name) = done.recv().await {
            names.push(name);
        }
        assert_eq!(names.len(), 102);
        assert_eq!(names[..4], ["a", "b", "c", "a"]);
        assert_eq!(permits.state().free, UNITS);
    }

    #[tokio::test]
    async fn as_many_wait_as_the_bound_and_those_that_gave_up_make_room() {
        let permits = one_long();
        let held = permits.take(&tenant("a"), LONG).await.unwrap();
        let wait = |name: &str| permits.ask(&tenant(name), LONG);
        let mut waiting: Vec<_> = (0..WAITING).map(|i| wait(["a", "b"][i % 2]).unwrap()).collect();
        assert!(matches!(wait("a"), Err(FlowError::Overloaded)));
        let mut last = wait("c").expect("a tenant of which none waits");
        assert!(matches!(wait("c"), Err(FlowError::Overloaded)));
        waiting.truncate(2);
        drop(wait("a").unwrap());
        // Whoever gave up is passed over.
        drop(waiting);
        drop(held);
        let permit = last.try_recv().unwrap();
        assert!(permits.state().waiting.is_empty());
        drop(permit);
        assert_eq!(permits.state().free, UNITS);
    }

    #[tokio::test]
    async fn short_bodies_are_read_beside_long_ones() {
        let permits = one_long();
        let long = permits.take(&tenant("a"), LONG).await.unwrap();
        let mut short = Vec::new();
        for _ in 0..SHORT_UNITS {
            short.push(permits.take(&tenant("b"), 100).await.unwrap());
        }
        let mut one_more = permits.ask(&tenant("b"), 100).unwrap();
        assert!(one_more.try_recv().is_err());
        drop(long);
        assert!(one_more.try_recv().is_ok());
    }
}
