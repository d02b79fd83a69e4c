//! Sessions that are being closed: gathers the workers' answers for the one who asked.
use std::collections::{BTreeSet, HashMap};

use camshaft_core::ids::{RequestId, WorkerId};
use tokio::sync::oneshot;

#[derive(Debug)]
struct Closing {
    reply: oneshot::Sender<bool>,
    /// Workers that have not answered yet.
    unanswered: BTreeSet<WorkerId>,
}

/// Closings by the id of their command.
#[derive(Debug, Default)]
pub(crate) struct Closings {
    open: HashMap<RequestId, Closing>,
    begun: u64,
}

impl Closings {
    /// The id of the next command. It counts down, requests count up.
    pub(crate) fn next_id(&mut self) -> RequestId {
        self.begun += 1;
        RequestId(u64::MAX - self.begun)
    }

    /// These workers were asked. Without workers there is no session to close.
    pub(crate) fn begin(&mut self, id: RequestId, asked: BTreeSet<WorkerId>, reply: oneshot::Sender<bool>) {
        if asked.is_empty() {
            // The one who asked may have given up.
            let _ = reply.send(false);
            return;
        }
        self.open.insert(id, Closing { reply, unanswered: asked });
    }

    /// A worker says whether it had the session. One that had it decides; otherwise all have to answer.
    pub(crate) fn answered(&mut self, id: RequestId, worker: WorkerId, existed: bool) {
        let Some(closing) = self.open.get_mut(&id) else { return };
        closing.unanswered.remove(&worker);
        if (existed || closing.unanswered.is_empty())
            && let Some(closing) = self.open.remove(&id)
        {
            let _ = closing.reply.send(existed);
        }
    }

    /// A worker was lost, and its sessions with it.
    pub(crate) fn lost(&mut self, worker: WorkerId) {
        let ids: Vec<RequestId> = self.open.keys().copied().collect();
        ids.into_iter().for_each(|id| self.answered(id, worker, false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is answered when workers 0 and 1 say this, in order; `None`: the worker is lost.
    fn answer(said: &[(u32, Option<bool>)]) -> Option<bool> {
        let (mut closings, (reply, mut answer)) = (Closings::default(), oneshot::channel());
        let id = closings.next_id();
        closings.begin(id, [WorkerId(0), WorkerId(1)].into(), reply);
        for &(worker, existed) in said {
            match existed {
                Some(existed) => closings.answered(id, WorkerId(worker), existed),
                None => closings.lost(WorkerId(worker)),
            }
        }
        answer.try_recv().ok()
    }

    #[test]
    fn regression_a_session_was_there_if_one_worker_had_it() {
        assert_eq!(answer(&[(0, Some(false))]), None);
        assert_eq!(answer(&[(0, Some(false)), (1, Some(false))]), Some(false));
        assert_eq!(answer(&[(1, Some(true))]), Some(true));
        assert_eq!(answer(&[(0, Some(false)), (1, Some(true))]), Some(true));
        assert_eq!(answer(&[(0, Some(false)), (1, None)]), Some(false));
        assert_eq!(answer(&[(0, None), (1, Some(true))]), Some(true));
    }
}
