//! Checks a scheduler's actions against the book before the first one is carried out.
use std::collections::HashSet;

use super::book::PoolBook;
use super::capacity::FreeCapacity;
use crate::ids::{RequestId, WorkerId};
use crate::policy::Action;
use crate::request::Stage;

/// # Errors
/// Why the actions cannot be carried out, for the log.
pub(super) fn check(book: &PoolBook, actions: &[Action]) -> Result<(), String> {
    let mut capacity = FreeCapacity::of(book.worker_facts());
    let known: HashSet<WorkerId> = book.worker_facts().map(|facts| facts.worker).collect();
    let (mut chosen, mut preempted) = (HashSet::new(), HashSet::new());
    let mut choose = |id: RequestId| {
        is_waiting(book, id)?;
        if chosen.insert(id) { Ok(()) } else { Err(format!("request {id} is named twice")) }
    };
    for action in actions {
        match action {
            Action::Preempt { id } => {
                if book.worker_of(*id).is_none() {
                    return Err(format!("preempts request {id}, which does not run"));
                }
                if let Some(worker) = book.may_give_way(*id).filter(|_| preempted.insert(*id)) {
                    capacity.give_way(worker, book.crowd_left(worker));
                }
            }
            Action::PrefillBudget { worker, .. } if !known.contains(worker) => {
                return Err(format!("sets the budget of unknown worker {worker}"));
            }
            Action::PrefillBudget { .. } | Action::WakeAt { .. } => {}
            Action::Reject { id, .. } => choose(*id)?,
            Action::Dispatch { id, worker } => {
                choose(*id)?;
                take(book, &mut capacity, *id, *worker)?;
            }
        }
    }
    Ok(())
}

fn is_waiting(book: &PoolBook, id: RequestId) -> Result<(), String> {
    match book.stage(id) {
        Some(Stage::Waiting) => Ok(()),
        Some(_) => Err(format!("request {id} is not waiting")),
        None => Err(format!("request {id} is unknown")),
    }
}

fn take(book: &PoolBook, capacity: &mut FreeCapacity, id: RequestId, worker: WorkerId) -> Result<(), String> {
    let Some(left) = capacity.left(worker) else { return Err(format!("worker {worker} is unknown or down")) };
    let need = book.waiting_start(id).map_or(0, |(_, need)| need);
    if !capacity.fits(worker, need) {
        let (kv, sequences) = (left.kv_free, left.free_sequences);
        return Err(format!(
            "worker {worker} is full: request {id} needs {need} KV tokens, {kv} and {sequences} sequences are free"
        ));
    }
    capacity.take(worker, need);
    Ok(())
}
