//! Checks a scheduler's actions against the book before the first one is carried out.
use std::collections::HashSet;

use super::book::PoolBook;
use super::capacity::FreeCapacity;
use crate::ids::{RequestId, WorkerId};
use crate::policy::{Action, WorkerFacts};
use crate::request::Stage;

/// What the check asks of a book, the real one or one of a scheduler that is only monitored.
pub(super) struct Books<'a> {
    pub(super) workers: Vec<WorkerFacts>,
    /// What a waiting request needs. An error if it does not wait.
    pub(super) waiting: &'a dyn Fn(RequestId) -> Result<u32, String>,
    /// The worker that has a request, and, if preempting that would free something, how many requests may be sent there past
    /// what it runs at once.
    pub(super) running: &'a dyn Fn(RequestId) -> Option<(WorkerId, Option<usize>)>,
}

/// # Errors
/// Why the actions cannot be carried out, for the log.
pub(super) fn check(book: &PoolBook, actions: &[Action]) -> Result<(), String> {
    let waiting = |id| is_waiting(book, id).map(|()| book.waiting_start(id).map_or(0, |(_, need)| need));
    let running = |id| {
        let worker = book.worker_of(id)?;
        Some((worker, book.may_give_way(id).map(|worker| book.crowd_left(worker))))
    };
    check_against(&Books { workers: book.worker_facts().collect(), waiting: &waiting, running: &running }, actions)
}

/// # Errors
/// Why the actions cannot be carried out, for the log.
pub(super) fn check_against(book: &Books<'_>, actions: &[Action]) -> Result<(), String> {
    let mut capacity = FreeCapacity::of(book.workers.iter().cloned());
    let known: HashSet<WorkerId> = book.workers.iter().map(|facts| facts.worker).collect();
    let (mut chosen, mut preempted) = (HashSet::new(), HashSet::new());
    let mut choose = |id: RequestId| {
        let need = (book.waiting)(id)?;
        if chosen.insert(id) { Ok(need) } else { Err(format!("request {id} is named twice")) }
    };
    for action in actions {
        match action {
            Action::Preempt { id } => {
                let Some((worker, crowd_left)) = (book.running)(*id) else {
                    return Err(format!("preempts request {id}, which does not run"));
                };
                if let Some(crowd_left) = crowd_left.filter(|_| preempted.insert(*id)) {
                    capacity.give_way(worker, crowd_left);
                }
            }
            Action::PrefillBudget { worker, .. } if !known.contains(worker) => {
                return Err(format!("sets the budget of unknown worker {worker}"));
            }
            Action::PrefillBudget { .. } | Action::WakeAt { .. } => {}
            Action::Reject { id, .. } => {
                choose(*id)?;
            }
            Action::Dispatch { id, worker } => {
                let need = choose(*id)?;
                take(need, &mut capacity, *id, *worker)?;
            }
        }
    }
    Ok(())
}

fn is_waiting(book: &PoolBook, id: RequestId) -> Result<(), String> {
    match book.stage(id) {
        Some(Stage::Waiting) if !book.is_held_back(id) => Ok(()),
        Some(Stage::Waiting) => Err(format!("request {id} waits for others of its tenant")),
        Some(_) => Err(format!("request {id} is not waiting")),
        None => Err(format!("request {id} is unknown")),
    }
}

fn take(need: u32, capacity: &mut FreeCapacity, id: RequestId, worker: WorkerId) -> Result<(), String> {
    let Some(left) = capacity.left(worker) else { return Err(format!("worker {worker} is unknown or down")) };
    if !capacity.fits(worker, need) {
        let (kv, sequences) = (left.kv_free, left.free_sequences);
        return Err(format!(
            "worker {worker} is full: request {id} needs {need} KV tokens, {kv} and {sequences} sequences are free"
        ));
    }
    capacity.take(worker, need);
    Ok(())
}
