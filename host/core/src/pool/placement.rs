//! Where dispatched requests really go: to the worker that keeps their session, otherwise where the scheduler said.
use std::hash::{DefaultHasher, Hash, Hasher};

use super::book::PoolBook;
use super::capacity::FreeCapacity;
use crate::ids::{RequestId, WorkerId};
use crate::message::Start;

/// The worker of each dispatch, in the same order. The dispatches were checked, so they fit where the scheduler said.
///
/// A request that goes to its session's worker may take the capacity that the scheduler meant for another. That one then
/// goes elsewhere. If it fits nowhere else, all requests go where the scheduler said.
pub(super) fn place(book: &PoolBook, dispatches: &[(RequestId, WorkerId)]) -> Vec<WorkerId> {
    place_by_session(book, dispatches).unwrap_or_else(|| dispatches.iter().map(|&(_, said)| said).collect())
}

/// `None` if a request would fit nowhere.
fn place_by_session(book: &PoolBook, dispatches: &[(RequestId, WorkerId)]) -> Option<Vec<WorkerId>> {
    let mut capacity = FreeCapacity::of(book.worker_facts());
    let mut place = |&(id, said): &(RequestId, WorkerId)| {
        let (start, need) = book.waiting_start(id)?;
        let wanted = [home(&capacity, start), Some(said)];
        let mut fitting = wanted.into_iter().flatten().filter(|&worker| capacity.fits(worker, need));
        let worker = fitting.next().or_else(|| capacity.least_busy(need))?;
        capacity.take(worker, need);
        Some(worker)
    };
    dispatches.iter().map(&mut place).collect()
}

/// The worker that a session's name hashes to, among those that are up.
fn home(capacity: &FreeCapacity, start: &Start) -> Option<WorkerId> {
    let session = start.session.as_ref()?;
    let mut hash = DefaultHasher::new();
    (session, start.root()).hash(&mut hash);
    let mut workers = capacity.workers();
    let count = workers.len().max(1);
    workers.nth(hash.finish() as usize % count)
}
