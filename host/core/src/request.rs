//! The life cycle of a generation between its arrival and its end, as the pool sees it.
use crate::ids::WorkerId;

/// Where a generation is. The functions below are the only transitions; an ended generation is no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In the queue, from its arrival until a scheduler dispatches it. Its deadline binds.
    Waiting,
    /// A worker has it: it waits there for KV, or its prompt is computed. No token was drawn, so its deadline binds.
    Dispatched { worker: WorkerId },
    /// Its first token was drawn: its deadline was kept.
    Running { worker: WorkerId },
    /// Nobody waits for it any more. The worker was told and will confirm.
    Cancelling { worker: WorkerId },
}

/// A transition that does not exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a generation that is {from:?} cannot be {verb}")]
pub struct BadTransition {
    pub from: Stage,
    pub verb: &'static str,
}

/// What cancelling means for a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It was waiting and is forgotten at once.
    Forgotten,
    /// The worker has to be told.
    TellWorker(WorkerId),
    /// The worker was told before.
    AlreadyTold,
}

impl Stage {
    /// Waiting to dispatched: a scheduler chose it.
    pub fn dispatch(&mut self, worker: WorkerId) -> Result<(), BadTransition> {
        match self {
            Stage::Waiting => {
                *self = Stage::Dispatched { worker };
                Ok(())
            }
            from => Err(BadTransition { from: *from, verb: "dispatched" }),
        }
    }

    /// Dispatched to running: the worker drew its first token. Later tokens change nothing, and a cancelled generation
    /// stays cancelled: its worker may have drawn before it heard of it.
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

    /// Anything to its end: the client is gone, or the deadline passed.
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

    /// Whether its first token is still to come, so that its deadline may pass.
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
