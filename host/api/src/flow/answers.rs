//! What validators have answered about a request that may be read twice.
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use camshaft_core::answering::{Answering, at_once, wait};
use camshaft_core::policy::{ValidateOutcome, Validation};

use crate::flow::aside::Aside;
use crate::flow::error::FlowError;

/// What the validators answered. A request that is read twice, because it takes long where it was read first, asks each of
/// them once.
#[derive(Debug, Default)]
pub(crate) struct Answers(Mutex<Given>);

#[derive(Default)]
struct Given {
    answers: Vec<Validation>,
    /// Of the next validator, which was asked and takes long.
    pending: Option<Answering<'static, Validation>>,
    /// Whether no more are kept.
    complete: bool,
}

impl fmt::Debug for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given").field("answers", &self.answers).finish_non_exhaustive()
    }
}

impl Answers {
    /// Of the validator at `index`, those before it have answered. One that takes long is waited for here only if nobody else
    /// is held up.
    ///
    /// # Errors
    /// The answer comes later: [`Answers::await_pending`] waits for it, and then the request is read anew.
    pub(crate) fn of(
        &self,
        index: usize,
        aside: &Aside,
        ask: impl FnOnce() -> Answering<'static, Validation>,
    ) -> Result<Validation, FlowError> {
        let mut given = self.given();
        if let Some(answer) = given.answers.get(index) {
            return Ok(answer.clone());
        }
        let answer = match at_once(given.pending.take().unwrap_or_else(ask)) {
            Ok(answer) => answer,
            Err(pending) if aside.inline_places().is_some() => {
                given.pending = Some(pending);
                return Err(FlowError::NotInline);
            }
            Err(pending) => aside.resting(|| wait(pending)),
        };
        if !given.complete {
            given.answers.push(answer.clone());
        }
        Ok(answer)
    }

    /// Waits for the validator that takes long. Whether there was one.
    pub(crate) async fn await_pending(&self) -> bool {
        let Some(pending) = self.given().pending.take() else { return false };
        let answer = pending.await;
        self.given().answers.push(answer);
        true
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
