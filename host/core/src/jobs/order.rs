//! Whose turn it is, while a batch is put together: positions are computed once for each request, and once more for each
//! input that is taken.
use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashMap};

use crate::ids::TenantId;
use crate::policy::Priority;

/// How much somebody has had: less is earlier.
#[derive(Debug, Clone, Copy)]
pub(super) struct Position(pub(super) f64);

impl Ord for Position {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        count_step();
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Position {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Position {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Position {}

/// A request that waits: what was taken of it, and its name.
type Request<Id> = (Position, Id);

/// The requests that wait, by class, then by their tenants' positions, then by their own.
#[derive(Debug)]
pub(super) struct Order<Id> {
    /// Each tenant of each class once, unless its turn is out.
    tenants: BinaryHeap<Reverse<Turn<Id>>>,
    /// Their further requests.
    requests: Vec<BinaryHeap<Reverse<Request<Id>>>>,
}

/// A tenant's turn. It goes back with [`Order::go_on`].
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn<Id> {
    class: u32,
    position: Position,
    request: Request<Id>,
    /// Where the tenant's further requests are.
    at: usize,
}

impl<Id: Copy> Turn<Id> {
    pub(super) fn request(&self) -> Id {
        self.request.1
    }
}

impl<Id: Ord + Copy> Order<Id> {
    /// Of requests with their class, tenant, what was taken of them, and name.
    pub(super) fn new<'a>(
        waiting: impl Iterator<Item = (Priority, &'a TenantId, f64, Id)>,
        standing: impl Fn(Priority, &TenantId) -> (u32, Position),
    ) -> Self {
        let mut order = Self { tenants: BinaryHeap::new(), requests: Vec::new() };
        let (mut places, mut standings) = (HashMap::new(), Vec::new());
        for (priority, tenant, served, id) in waiting {
            let at = *places.entry((priority as usize, tenant)).or_insert_with(|| {
                order.requests.push(BinaryHeap::new());
                standings.push(standing(priority, tenant));
                standings.len() - 1
            });
            order.requests[at].push(Reverse((Position(served), id)));
        }
        standings.into_iter().enumerate().for_each(|(at, standing)| order.put(at, standing));
        order
    }

    /// Takes the turn that is next out.
    pub(super) fn next(&mut self) -> Option<Turn<Id>> {
        self.tenants.pop().map(|Reverse(turn)| turn)
    }

    /// The request of the turn is passed over, and its tenant's next one has the turn.
    pub(super) fn pass_over(&mut self, turn: &Turn<Id>) {
        self.put(turn.at, (turn.class, turn.position));
    }

    /// An input of the turn's request was taken. The tenant has a new standing, and the request goes on if more of its inputs
    /// wait: then this is what was taken of it.
    pub(super) fn go_on(&mut self, turn: &Turn<Id>, standing: (u32, Position), served: Option<f64>) {
        if let (Some(served), Some(requests)) = (served, self.requests.get_mut(turn.at)) {
            requests.push(Reverse((Position(served), turn.request())));
        }
        self.put(turn.at, standing);
    }

    fn put(&mut self, at: usize, (class, position): (u32, Position)) {
        if let Some(Reverse(request)) = self.requests.get_mut(at).and_then(BinaryHeap::pop) {
            self.tenants.push(Reverse(Turn { class, position, request, at }));
        }
    }
}

#[cfg(test)]
thread_local! {
    /// Positions computed and compared.
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
pub(super) fn count_step() {
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// The steps of `act`.
#[cfg(test)]
pub(super) fn steps_of(act: impl FnOnce()) -> usize {
    let before = STEPS.with(std::cell::Cell::get);
    act();
    STEPS.with(std::cell::Cell::get) - before
}
