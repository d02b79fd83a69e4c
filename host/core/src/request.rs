//! The life cycle of a request between its arrival and its end, as the pool sees it.
use crate::ids::WorkerId;

/// Where a request is. The functions below are the only transitions. A request that has ended has no stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In the queue, from its arrival until a scheduler dispatches it. Its deadline binds.
    Waiting,
    /// A worker has it: it waits there for KV, or its prompt is computed. No token was drawn yet, so its deadline binds.
    Dispatched { worker: WorkerId },
    /// Its first token was drawn: the deadline was kept.
    Running { worker: WorkerId },
    /// Nobody wants its output any more. The worker was told and will confirm.
    Cancelling { worker: WorkerId },
}

/// A transition that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a request that is {from:?} cannot be {verb}")]
pub struct BadTransition {
    pub from: Stage,
    pub verb: &'static str,
}

/// What has to be done to cancel a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// Nothing more: it was waiting, and leaves the queue at once.
    Forgotten,
    /// The worker has to be told.
    TellWorker(WorkerId),
    /// The worker was told before.
    AlreadyTold,
}

impl Stage {
    /// From waiting to dispatched, because the scheduler chose it.
    pub fn dispatch(&mut self, worker: WorkerId) -> Result<(), BadTransition> {
        match self {
            Stage::Waiting => {
                *self = Stage::Dispatched { worker };
                Ok(())
            }
            from => Err(BadTransition { from: *from, verb: "dispatched" }),
        }
    }

    /// From dispatched to running, because the worker drew the first token. Later tokens change nothing. A request that is
    /// being cancelled stays so: the worker may have drawn before it heard of the cancellation.
    pub fn draw(&mut self) -> Result<(), BadTransition> {
        match *self {
            Stage::Dispatched { worker } => {
                *self = Stage::Running { worker };
                Ok(())
            }
            Stage::Running { .. } | Stage::Cancelling { .. } => Ok(()),
            from @ Stage::Waiting => Err(BadTransition { from, verb: "drawn for" }),
        }
    }

    /// From any stage towards the end, because the client left or the deadline passed.
    pub fn cancel(&mut self) -> Cancelled {
        match *self {
            Stage::Waiting => Cancelled::Forgotten,
            Stage::Dispatched { worker } | Stage::Running { worker } => {
                *self = Stage::Cancelling { worker };
                Cancelled::TellWorker(worker)
            }
            Stage::Cancelling { .. } => Cancelled::AlreadyTold,
        }
    }

    /// Whether the deadline binds: the first token is still to come.
    pub fn awaits_first_token(self) -> bool {
        matches!(self, Stage::Waiting | Stage::Dispatched { .. })
    }

    /// The worker that has it.
    pub fn worker(self) -> Option<WorkerId> {
        match self {
            Stage::Waiting => None,
            Stage::Dispatched { worker } | Stage::Running { worker } | Stage::Cancelling { worker } => Some(worker),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_from_waiting_to_running_and_no_other_way() {
        let worker = WorkerId(1);
        let mut stage = Stage::Waiting;
        assert!(stage.draw().is_err() && stage.awaits_first_token());
        assert!(stage.dispatch(worker).is_ok() && stage.awaits_first_token());
        assert!(stage.dispatch(worker).is_err());
        assert!(stage.draw().is_ok() && !stage.awaits_first_token());
        assert!(stage.draw().is_ok());
        assert_eq!(stage.cancel(), Cancelled::TellWorker(worker));
        assert_eq!(stage.cancel(), Cancelled::AlreadyTold);
        assert!(stage.draw().is_ok() && stage == Stage::Cancelling { worker }, "it stays cancelled");
        assert_eq!(Stage::Waiting.cancel(), Cancelled::Forgotten);
    }
}
