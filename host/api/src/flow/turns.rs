//! Turns at work that occupies a core: parsing, rendering and tokenizing bodies. Tenants take turns, so that nobody waits
//! for all that another tenant has sent.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camshaft_core::ids::TenantId;
use tokio::sync::oneshot;

use crate::flow::error::FlowError;

/// Requests that may wait for a turn. Past it only a tenant of which none waits may still join; others get 503.
const WAITING: usize = 1024;
/// Bytes of the bodies that may have a turn at the same time, if they are several: a body of 2 MB in one
/// word took some 70 times as much while it was tokenized and answered.
const TOGETHER: usize = 2 << 20;
/// Threads that may wait for something else with their turn given back. The runtime has 512 threads that may block.
const RESTING: usize = 64;
/// Short bodies that are read at the same time.
const SHORT: usize = 32;

#[derive(Debug)]
pub(crate) struct Turns {
    /// Turns that may be taken at the same time; at least 1.
    most: usize,
    /// Bytes of their bodies together. One alone may have more.
    together: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// Of the bodies that have a turn.
    bytes: usize,
    /// Tenants with requests that wait; the first one is next.
    tenants: VecDeque<(TenantId, VecDeque<Waiting>)>,
    /// No turn is given until all have come back.
    closed: bool,
    resting: usize,
}

#[derive(Debug)]
struct Waiting {
    bytes: usize,
    turn: oneshot::Sender<Turn>,
}

/// A turn. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Option<Arc<Turns>>,
    bytes: usize,
}

/// A thread that waits without the turn that it had.
#[derive(Debug)]
pub(crate) struct Rest(Arc<Turns>);

impl Default for Turns {
    /// Half of the cores, so that the engine keeps the others.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self::new((cores / 2).max(1), TOGETHER)
    }
}

impl Turns {
    /// For short bodies. Reading one takes an instant unless a chat template runs away, and a few that do so block nobody.
    pub(crate) fn of_short_bodies() -> Self {
        Self::new(SHORT, usize::MAX)
    }

    pub(crate) fn new(most: usize, together: usize) -> Self {
        Self { most, together, state: Mutex::default() }
    }

    /// Waits for the tenant's turn at a body of `bytes`. Dropping the future gives up.
    ///
    /// # Errors
    /// 503 if too many requests wait.
    pub(crate) async fn take(self: &Arc<Self>, tenant: &TenantId, bytes: usize) -> Result<Turn, FlowError> {
        // The sender is dropped only with the turns, and this request holds them.
        self.ask(tenant, bytes)?.await.map_err(|_| FlowError::Overloaded)
    }

    /// Asks for a turn. Dropping the receiver gives up; it is closed if the turns are.
    ///
    /// # Errors
    /// 503 if too many wait, or the turns are closed.
    pub(crate) fn ask(self: &Arc<Self>, tenant: &TenantId, bytes: usize) -> Result<oneshot::Receiver<Turn>, FlowError> {
        let mut state = self.state();
        if state.closed {
            return Err(FlowError::TemplateStopped);
        }
        let turn = state.wait(tenant, bytes)?;
        self.pass_on(&mut state);
        Ok(turn)
    }

    /// Refuses those who wait and those who come until all turns that are taken now have come back. Does nothing if none is
    /// taken. Returns whether this call closed the turns.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state();
        state.tenants.clear();
        let is_taken = state.taken > 0;
        !std::mem::replace(&mut state.closed, is_taken) && is_taken
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Gives turns to those who wait, in order, as long as there is room.
    fn pass_on(self: &Arc<Self>, state: &mut State) {
        while let Some(bytes) = state.next_bytes() {
            let fits =
                state.taken == 0 || state.taken < self.most && state.bytes.saturating_add(bytes) <= self.together;
            let Some(next) = fits.then(|| state.next()).flatten() else { return };
            state.taken += 1;
            state.bytes += bytes;
            if let Err(mut turn) = next.turn.send(Turn { turns: Some(self.clone()), bytes }) {
                // The waiter has just given up. The turn must not pass itself on: the state is locked.
                turn.turns = None;
                state.give_back(bytes);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wait(&mut self, tenant: &TenantId, bytes: usize) -> Result<oneshot::Receiver<Turn>, FlowError> {
        if self.is_full_for(tenant) {
            // Some may have given up.
            self.tenants.iter_mut().for_each(|(_, requests)| requests.retain(|request| !request.turn.is_closed()));
            self.tenants.retain(|(_, requests)| !requests.is_empty());
            if self.is_full_for(tenant) {
                return Err(FlowError::Overloaded);
            }
        }
        let (turn, receiver) = oneshot::channel();
        let request = Waiting { bytes, turn };
        match self.tenants.iter_mut().find(|(name, _)| name == tenant) {
            Some((_, requests)) => requests.push_back(request),
            None => self.tenants.push_back((tenant.clone(), VecDeque::from([request]))),
        }
        Ok(receiver)
    }

    /// A tenant that has filled the queue shuts out only itself.
    fn is_full_for(&self, tenant: &TenantId) -> bool {
        let waiting = self.tenants.iter().map(|(_, requests)| requests.len()).sum::<usize>();
        waiting >= WAITING && self.tenants.iter().any(|(name, _)| name == tenant)
    }

    /// Length of the body whose turn it is; `None` if nobody waits.
    fn next_bytes(&mut self) -> Option<usize> {
        while let Some((_, requests)) = self.tenants.front_mut() {
            while requests.front().is_some_and(|request| request.turn.is_closed()) {
                requests.pop_front();
            }
            match requests.front() {
                Some(request) => return Some(request.bytes),
                None => drop(self.tenants.pop_front()),
            }
        }
        None
    }

    /// Takes the request whose turn it is. Its tenant goes to the end.
    fn next(&mut self) -> Option<Waiting> {
        let (tenant, mut requests) = self.tenants.pop_front()?;
        let next = requests.pop_front();
        if !requests.is_empty() {
            self.tenants.push_back((tenant, requests));
        }
        next
    }

    fn give_back(&mut self, bytes: usize) {
        self.taken -= 1;
        self.bytes -= bytes;
    }
}

impl Turn {
    /// Gives the turn back while its thread waits for something else.
    ///
    /// # Errors
    /// The turn itself: as many threads as may wait so already.
    pub(crate) fn rest(mut self) -> Result<Rest, Self> {
        let Some(turns) = self.turns.clone() else { return Err(self) };
        {
            let mut state = turns.state();
            if state.resting >= RESTING {
                return Err(self);
            }
            state.resting += 1;
        }
        self.pass_on();
        Ok(Rest(turns))
    }

    /// Length of the body that the turn is for.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives the turn back. Returns whether that reopened the turns.
    pub(crate) fn give_back(mut self) -> bool {
        self.pass_on()
    }

    fn pass_on(&mut self) -> bool {
        let Some(turns) = self.turns.take() else { return false };
        let mut state = turns.state();
        state.give_back(self.bytes);
        let opened = state.taken == 0 && std::mem::take(&mut state.closed);
        turns.pass_on(&mut state);
        opened
    }
}

impl Drop for Rest {
    fn drop(&mut self) {
        self.0.state().resting -= 1;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.pass_on();
    }
}

#[cfg(test)]
impl Turns {
    pub(crate) fn waiting(&self) -> usize {
        self.state().tenants.iter().map(|(_, requests)| requests.len()).sum()
    }

    pub(crate) fn taken(&self) -> usize {
        self.state().taken
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
        let turns = Arc::new(Turns::new(1, 100));
        let first = turns.take(&tenant("a"), 1).await.unwrap();
        let (order, mut done) = tokio::sync::mpsc::channel(200);
        let mut tasks = Vec::new();
        for name in std::iter::repeat_n("a", 100).chain(["b", "c"]) {
            let (turns, order) = (turns.clone(), order.clone());
            tasks.push(tokio::spawn(async move {
                let turn = turns.take(&tenant(name), 1).await.unwrap();
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
        let turns = Arc::new(Turns::new(1, 100));
        let held = turns.take(&tenant("a"), 1).await.unwrap();
        let wait = |name: &str| turns.state().wait(&tenant(name), 1);
        let mut waiting: Vec<_> = (0..WAITING).map(|i| wait(["a", "b"][i % 2]).unwrap()).collect();
        assert!(matches!(wait("a"), Err(FlowError::Overloaded)));
        let mut last = wait("c").expect("a tenant of which none waits");
        assert!(matches!(wait("c"), Err(FlowError::Overloaded)));
        waiting.truncate(2);
        drop(wait("a").unwrap());
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

    #[tokio::test]
    async fn regression_long_bodies_have_turns_together_up_to_a_bound() {
        let turns = Arc::new(Turns::new(3, 100));
        let long = turns.take(&tenant("a"), 500).await.expect("one alone may be longer");
        let wait = |name: &str, bytes: usize| {
            let mut state = turns.state();
            let turn = state.wait(&tenant(name), bytes).unwrap();
            turns.pass_on(&mut state);
            turn
        };
        let [mut first, mut second, mut third, mut fourth] =
            [("a", 60), ("b", 40), ("c", 1), ("d", 1)].map(|(name, bytes)| wait(name, bytes));
        assert!(first.try_recv().is_err());
        drop(long);
        let (first, _second) = (first.try_recv().unwrap(), second.try_recv().unwrap());
        assert!(third.try_recv().is_err(), "100 bytes have turns");
        drop(first);
        let (_third, fourth) = (third.try_recv().unwrap(), fourth.try_recv());
        assert!(fourth.is_ok() && turns.state().taken == 3);
        assert!(wait("e", 1).try_recv().is_err(), "three have turns");
    }
}
