//! What was done to models, and is done at the moment.
use std::collections::VecDeque;

use camshaft_api::{Change, ModelRefusal, Operation, OperationState};

use crate::start::now;

/// Operations that are remembered.
const MOST: usize = 256;
/// The stage of an operation that has done what it was to do, unless it says more.
const DONE: &str = "done";
/// Operations that run at once.
const MOST_RUNNING: usize = 16;

/// The operations, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Book {
    operations: VecDeque<Operation>,
    begun: u64,
}

impl Book {
    /// # Errors
    /// Too many run.
    pub(super) fn check_room(&self) -> Result<(), ModelRefusal> {
        let running = self.operations.iter().filter(|operation| !operation.is_over()).count();
        if running < MOST_RUNNING { Ok(()) } else { Err(ModelRefusal::TooMany { running, max: MOST_RUNNING }) }
    }

    pub(super) fn begin(&mut self, change: Change, model: &str) -> Operation {
        self.begun += 1;
        let operation = Operation {
            id: format!("op-{}", self.begun),
            change,
            model: model.to_owned(),
            state: OperationState::Running,
            stage: "begun".to_owned(),
            progress: 0.0,
            error: None,
            started: now(),
            ended: None,
        };
        if self.operations.len() >= MOST
            && let Some(oldest) = self.operations.iter().position(Operation::is_over)
        {
            self.operations.remove(oldest);
        }
        self.operations.push_back(operation.clone());
        operation
    }

    /// One that has nothing to do.
    pub(super) fn done(&mut self, change: Change, model: &str, stage: &str) -> Operation {
        let id = self.begin(change, model).id;
        self.end(&id, None);
        self.tell(&id, stage, 1.0);
        self.get(&id).unwrap_or_else(|| self.begin(change, model))
    }

    pub(super) fn tell(&mut self, id: &str, stage: &str, progress: f64) {
        if let Some(operation) = self.at(id) {
            stage.clone_into(&mut operation.stage);
            operation.progress = progress.clamp(0.0, 1.0);
        }
    }

    pub(super) fn end(&mut self, id: &str, error: Option<String>) {
        let Some(operation) = self.at(id) else { return };
        operation.state = if error.is_some() { OperationState::Failed } else { OperationState::Done };
        if error.is_none() {
            // Where it failed is what the stage says of one that did.
            (operation.progress, operation.stage) = (1.0, DONE.to_owned());
        }
        (operation.error, operation.ended) = (error, Some(now()));
    }

    pub(super) fn get(&self, id: &str) -> Option<Operation> {
        self.operations.iter().find(|operation| operation.id == id).cloned()
    }

    pub(super) fn all(&self) -> Vec<Operation> {
        self.operations.iter().rev().cloned().collect()
    }

    fn at(&mut self, id: &str) -> Option<&mut Operation> {
        self.operations.iter_mut().find(|operation| operation.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_number_is_remembered_and_none_that_runs_is_forgotten() {
        let mut book = Book::default();
        let first = book.begin(Change::Load, "m");
        for _ in 0..2 * MOST {
            let id = book.begin(Change::Swap, "m").id;
            book.end(&id, None);
        }
        assert_eq!(book.all().len(), MOST);
        assert_eq!(book.get(&first.id), Some(first));
    }

    #[test]
    fn one_more_than_may_run_at_once_is_refused() {
        let mut book = Book::default();
        let last = (0..MOST_RUNNING).map(|_| {
            assert!(book.check_room().is_ok());
            book.begin(Change::Load, "m").id
        });
        let last = last.last().unwrap();
        assert_eq!(book.check_room(), Err(ModelRefusal::TooMany { running: MOST_RUNNING, max: MOST_RUNNING }));
        book.end(&last, Some("why".to_owned()));
        assert!(book.check_room().is_ok());
        let ended = book.get(&last).unwrap();
        assert_eq!((ended.state, ended.error.as_deref()), (OperationState::Failed, Some("why")));
    }
}
