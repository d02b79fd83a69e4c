//! Who is read for next: tenants take turns, and short bodies wait for no long one.
use std::num::NonZero;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camshaft_core::fair_queue::FairQueue;
use camshaft_core::ids::TenantId;
use tokio::sync::oneshot;

use crate::task::{Asker, ReadError};

/// Bodies up to this are short: most conversations are.
pub const SHORT_BYTES: usize = 64 << 10;
/// Requests that may wait, of each length. Past it only a tenant of which none waits may still join; others get 503.
const WAITING: usize = 1024;

/// Who may read requests for a model: rendering and tokenizing occupy a core. Tenants take turns, so that nobody waits for all that
/// another tenant has sent; short bodies wait for no long one.
#[derive(Debug)]
pub struct Turns {
    short: Arc<Lane>,
    long: Arc<Lane>,
}

/// As many permits as there were at first, and those who wait for one.
#[derive(Debug)]
struct Lane(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    waiting: FairQueue<TenantId, oneshot::Sender<Permit>>,
}

/// A permit. Dropping it passes it on.
#[derive(Debug)]
pub struct Permit(Option<Arc<Lane>>);

impl Default for Turns {
    /// More than there are cores would only keep more threads, with what each keeps of memory. Long bodies leave half of the cores to
    /// the engine.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self { short: Lane::new(cores.max(2)), long: Lane::new((cores / 2).max(1)) }
    }
}

impl Turns {
    /// Waits for the tenant's turn. Dropping the future gives up.
    ///
    /// # Errors
    /// Too many requests wait.
    pub async fn take(&self, asker: Asker<'_>) -> Result<Permit, ReadError> {
        let lane = if asker.bytes <= SHORT_BYTES { &self.short } else { &self.long };
        // The sender is dropped only with the lane, and this request holds it.
        lane.ask(asker.tenant)?.await.map_err(|_| ReadError::Busy)
    }
}

impl Lane {
    fn new(permits: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { free: permits, waiting: FairQueue::default() })))
    }

    fn ask(self: &Arc<Self>, tenant: &TenantId) -> Result<oneshot::Receiver<Permit>, ReadError> {
        let mut state = self.state();
        if state.is_full_for(tenant) {
            // Some may have given up.
            state.waiting.retain(|waiting| !waiting.is_closed());
            if state.is_full_for(tenant) {
                return Err(ReadError::Busy);
            }
        }
        let (permit, receiver) = oneshot::channel();
        state.waiting.push(tenant.clone(), permit);
        self.pass_on(&mut state);
        Ok(receiver)
    }

    /// Gives what is free to those who wait, in order.
    fn pass_on(self: &Arc<Self>, state: &mut State) {
        while state.free > 0 {
            let Some(waiting) = state.waiting.pop() else { return };
            // Sent to one who has just given up, it must not pass itself on: the state is locked.
            match waiting.send(Permit(Some(self.clone()))) {
                Ok(()) => state.free -= 1,
                Err(mut unsent) => unsent.0 = None,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A tenant that has filled the queue shuts out only itself.
    fn is_full_for(&self, tenant: &TenantId) -> bool {
        self.waiting.contains(tenant) && self.waiting.len() >= WAITING
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        let mut state = turns.state();
        state.free += 1;
        turns.pass_on(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::from(name)
    }

    async fn take(turns: &Arc<Lane>, name: &str) -> Permit {
        turns.ask(&tenant(name)).unwrap().await.unwrap()
    }

    #[tokio::test]
    async fn regression_a_tenant_waits_for_one_request_of_another_not_for_all() {
        let turns = Lane::new(1);
        let first = take(&turns, "a").await;
        let (order, mut done) = tokio::sync::mpsc::channel(200);
        for name in std::iter::repeat_n("a", 100).chain(["b", "c"]) {
            let (turns, order) = (turns.clone(), order.clone());
            tokio::spawn(async move {
                let permit = take(&turns, name).await;
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
        assert_eq!(turns.state().free, 1);
    }

    #[tokio::test]
    async fn as_many_wait_as_the_bound_and_those_that_gave_up_make_room() {
        let turns = Lane::new(1);
        let held = take(&turns, "a").await;
        let wait = |name: &str| turns.ask(&tenant(name));
        let mut waiting: Vec<_> = (0..WAITING).map(|i| wait(["a", "b"][i % 2]).unwrap()).collect();
        assert!(matches!(wait("a"), Err(ReadError::Busy)));
        let mut last = wait("c").expect("a tenant of which none waits");
        assert!(matches!(wait("c"), Err(ReadError::Busy)));
        waiting.truncate(2);
        drop(wait("a").unwrap());
        // Whoever gave up is passed over.
        drop(waiting);
        drop(held);
        let permit = last.try_recv().unwrap();
        drop(permit);
        let state = turns.state();
        assert!(state.waiting.is_empty());
        assert_eq!(state.free, 1);
    }

    #[tokio::test]
    async fn regression_short_bodies_wait_for_no_long_one() {
        let permits = Turns { short: Lane::new(1), long: Lane::new(1) };
        let long = permits.take(Asker { tenant: &tenant("a"), bytes: SHORT_BYTES + 1 }).await.unwrap();
        let mut next = permits.long.ask(&tenant("a")).unwrap();
        let short = permits.take(Asker { tenant: &tenant("a"), bytes: SHORT_BYTES }).await.unwrap();
        assert!(next.try_recv().is_err());
        drop(long);
        assert!(next.try_recv().is_ok());
        drop(short);
    }
}
