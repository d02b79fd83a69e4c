//! Turns at work that occupies a core: parsing and tokenizing long bodies. Tenants take turns, so that nobody waits for
//! all that another tenant has sent.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camshaft_core::ids::TenantId;
use tokio::sync::oneshot;

use crate::flow::error::FlowError;

/// Requests that may wait for a turn. Past it: 503.
const WAITING: usize = 1024;

#[derive(Debug)]
pub(crate) struct Turns {
    /// Turns that may be taken at the same time; at least 1.
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// Tenants with requests that wait; the first one is next.
    tenants: VecDeque<(TenantId, VecDeque<oneshot::Sender<Turn>>)>,
}

/// A turn. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Turn(Option<Arc<Turns>>);

impl Default for Turns {
    /// Half of the cores, so that the engine keeps the others.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::new((cores / 2).max(1))
    }
}

impl Turns {
    fn new(most: usize) -> Self {
        Self { most, state: Mutex::default() }
    }

    /// Waits for a turn of the tenant. Dropping the future gives up.
    ///
    /// # Errors
    /// 503 if too many requests wait.
    pub(crate) async fn take(self: &Arc<Self>, tenant: &TenantId) -> Result<Turn, FlowError> {
        let turn = {
            let mut state = self.state();
            if state.taken < self.most {
                state.taken += 1;
                return Ok(Turn(Some(self.clone())));
            }
            state.wait(tenant)?
        };
        // The sender is dropped only with its turns, which this request holds.
        turn.await.map_err(|_| FlowError::Overloaded)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wait(&mut self, tenant: &TenantId) -> Result<oneshot::Receiver<Turn>, FlowError> {
        let waiting = |state: &Self| state.tenants.iter().map(|(_, requests)| requests.len()).sum::<usize>();
        if waiting(self) >= WAITING {
            // Some may have given up.
            self.tenants.iter_mut().for_each(|(_, requests)| requests.retain(|request| !request.is_closed()));
            self.tenants.retain(|(_, requests)| !requests.is_empty());
            if waiting(self) >= WAITING {
                return Err(FlowError::Overloaded);
            }
        }
        let (sender, receiver) = oneshot::channel();
        match self.tenants.iter_mut().find(|(name, _)| name == tenant) {
            Some((_, requests)) => requests.push_back(sender),
            None => self.tenants.push_back((tenant.clone(), VecDeque::from([sender]))),
        }
        Ok(receiver)
    }

    /// The request whose turn it is. Its tenant goes to the end.
    fn next(&mut self) -> Option<oneshot::Sender<Turn>> {
        while let Some((tenant, mut requests)) = self.tenants.pop_front() {
            let next = std::iter::from_fn(|| requests.pop_front()).find(|request| !request.is_closed());
            if !requests.is_empty() {
                self.tenants.push_back((tenant, requests));
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        let mut state = turns.state();
        while let Some(request) = state.next() {
            match request.send(Turn(Some(turns.clone()))) {
                Ok(()) => return,
                // It gave up just now. Its turn must not pass itself on: the state is locked.
                Err(mut turn) => drop(turn.0.take()),
            }
        }
        state.taken -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::from(name)
    }

    #[tokio::test]
    async fn regression_a_tenant_waits_for_one_request_of_another_not_for_all() {
        let turns = Arc::new(Turns::new(1));
        let first = turns.take(&tenant("a")).await.unwrap();
        let (order, mut done) = tokio::sync::mpsc::channel(200);
        let mut tasks = Vec::new();
        for name in std::iter::repeat_n("a", 100).chain(["b", "c"]) {
            let (turns, order) = (turns.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let turn = turns.take(&tenant(name)).await.unwrap();
                order.send(name).await.unwrap();
                drop(turn);
            }));
            tokio::task::yield_now().await;
        }
        drop((first, order));
        let mut names = Vec::new();
        while let Some(name) = done.recv().await {
            names.push(name);
        }
        assert_eq!(names.len(), 102);
        assert_eq!(names[..4], ["a", "b", "c", "a"]);
        assert_eq!(turns.state().taken, 0);
    }

    #[tokio::test]
    async fn as_many_wait_as_the_bound_and_those_that_gave_up_make_room() {
        let turns = Arc::new(Turns::new(1));
        let held = turns.take(&tenant("a")).await.unwrap();
        let wait = |name: &str| turns.state().wait(&tenant(name));
        let mut waiting: Vec<_> = (0..WAITING).map(|i| wait(["a", "b"][i % 2]).unwrap()).collect();
        assert!(matches!(wait("c"), Err(FlowError::Overloaded)));
        waiting.truncate(2);
        let mut last = wait("c").unwrap();
        // Whoever gave up is passed over.
        drop(waiting);
        drop(held);
        let turn = last.try_recv().unwrap();
        let state = turns.state();
        assert_eq!((state.taken, state.tenants.len()), (1, 0));
        drop(state);
        drop(turn);
        assert_eq!(turns.state().taken, 0);
    }
}
