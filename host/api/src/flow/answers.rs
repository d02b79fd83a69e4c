//! What validators have answered about a request that may be read twice.
use std::sync::{Mutex, MutexGuard, PoisonError};

use camshaft_core::policy::{ValidateOutcome, Validation};

/// What the validators answered. A request that is read twice, because it takes long where it was read first, asks each of
/// them once.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Given>);

#[derive(Debug, Default)]
struct Given {
    answers: Vec<Validation>,
    /// Whether no more are kept.
    complete: bool,
}

impl Answers {
    /// Of the validator at `index`, those before it have answered.
    pub(crate) fn of(&self, index: usize, ask: impl FnOnce() -> Validation) -> Validation {
        let mut given = self.given();
        if let Some(answer) = given.answers.get(index) {
            return answer.clone();
        }
        let answer = ask();
        if !given.complete {
            given.answers.push(answer.clone());
        }
        answer
    }

    /// The request is read for the last time. Returns the bytes of what was kept.
    pub(crate) fn complete(&self) -> usize {
        let mut given = self.given();
        given.complete = true;
        let bytes = |answer: &Validation| match &answer.outcome {
            ValidateOutcome::Amend(patch) => patch.len(),
            ValidateOutcome::Accept | ValidateOutcome::Refuse(_) | ValidateOutcome::Fault(_) => 0,
        };
        given.answers.iter().map(bytes).sum()
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
