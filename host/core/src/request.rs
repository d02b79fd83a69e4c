//! The life cycle of a generation between its arrival and its end, as the pool sees it.
use crate::ids::WorkerId;

/// Where a generation is. The functions below are the only transitions; an ended generation is no longer kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// In the queue. From arrival until a scheduler dispatches it.
    Waiting,
    /// Given to a worker, which has not begun its prompt yet.
    Dispatched { worker: WorkerId },
    /// The worker has begun its prompt.
    Running { worker: WorkerId },
    /// The client is gone; the worker has been told and will confirm.
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

    /// Dispatched to running: the worker says that its prompt has begun. A cancelled one stays cancelled.
    pub fn start(&mut self) -> Result<(), BadTransition> {
        match *self {
            Stage::Dispatched { worker } => {
                *self = Stage::Running { worker };
                Ok(())
            }
            Stage::Cancelling { .. } => Ok(()),
            from => Err(BadTransition { from, verb: "started" }),
        }
    }

    /// Anything to its end, because the client is gone.
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
        assert!(stage.start().is_err());
        assert!(stage.dispatch(worker).is_ok());
        assert!(stage.dispatch(worker).is_err());
        assert!(stage.start().is_ok());
        assert!(stage.start().is_err());
        assert_eq!(stage.cancel(), Cancelled::TellWorker(worker));
        assert_eq!(stage.cancel(), Cancelled::AlreadyTold);
        assert_eq!(Stage::Waiting.cancel(), Cancelled::Forgotten);
    }
}
