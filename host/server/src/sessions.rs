//! Questions about sessions, to all workers of a pool: gathers their answers for the one who asked.
use std::collections::{BTreeSet, HashMap};

use camshaft_core::ids::{RequestId, WorkerId};
use camshaft_core::message::OpenSession;
use tokio::sync::oneshot;

/// Who asked, and what was answered so far. The one who asked may have given up.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Whether there was a session to close.
    Closed(oneshot::Sender<bool>),
    Listed(oneshot::Sender<Vec<OpenSession>>, Vec<OpenSession>),
}

impl Reply {
    fn send(self) {
        match self {
            Self::Closed(reply) => drop(reply.send(false)),
            Self::Listed(reply, sessions) => drop(reply.send(sessions)),
        }
    }
}

/// Questions by the id of their command, with the workers that have not answered yet.
#[derive(Debug, Default)]
pub(crate) struct SessionQuestions {
    open: HashMap<RequestId, (Reply, BTreeSet<WorkerId>)>,
    begun: u64,
}

impl SessionQuestions {
    /// The id of the next command. It counts down, requests count up.
    pub(crate) fn next_id(&mut self) -> RequestId {
        self.begun += 1;
        RequestId(u64::MAX - self.begun)
    }

    /// These workers were asked. Without workers there are no sessions.
    pub(crate) fn begin(&mut self, id: RequestId, asked: BTreeSet<WorkerId>, reply: Reply) {
        self.open.insert(id, (reply, asked));
        self.end_if_answered(id);
    }

    /// A worker says whether it had the session. One that had it decides; otherwise all have to answer.
    pub(crate) fn closed(&mut self, id: RequestId, worker: WorkerId, existed: bool) {
        self.answered(id, worker);
        if existed && let Some((Reply::Closed(reply), _)) = self.open.remove(&id) {
            let _ = reply.send(true);
        }
        self.end_if_answered(id);
    }

    /// A worker tells of its sessions. All have to answer.
    pub(crate) fn listed(&mut self, id: RequestId, worker: WorkerId, sessions: &[OpenSession]) {
        if self.answered(id, worker)
            && let Some((Reply::Listed(_, all), _)) = self.open.get_mut(&id)
        {
            all.extend_from_slice(sessions);
        }
        self.end_if_answered(id);
    }

    /// A worker was lost, and its sessions with it.
    pub(crate) fn lost(&mut self, worker: WorkerId) {
        let ids: Vec<RequestId> = self.open.keys().copied().collect();
        for id in ids {
            self.answered(id, worker);
            self.end_if_answered(id);
        }
    }

    /// Whether this was its first answer.
    fn answered(&mut self, id: RequestId, worker: WorkerId) -> bool {
        self.open.get_mut(&id).is_some_and(|(_, unanswered)| unanswered.remove(&worker))
    }

    fn end_if_answered(&mut self, id: RequestId) {
        if self.open.get(&id).is_some_and(|(_, unanswered)| unanswered.is_empty())
            && let Some((reply, _)) = self.open.remove(&id)
        {
            reply.send();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use camshaft_core::segments::Namespace;

    use super::*;

    /// What is answered when workers 0 and 1 say this, in order; `None`: the worker is lost.
    fn answer(said: &[(u32, Option<bool>)]) -> Option<bool> {
        let (mut questions, (reply, mut answer)) = (SessionQuestions::default(), oneshot::channel());
        let id = questions.next_id();
        questions.begin(id, [WorkerId(0), WorkerId(1)].into(), Reply::Closed(reply));
        for &(worker, existed) in said {
            match existed {
                Some(existed) => questions.closed(id, WorkerId(worker), existed),
                None => questions.lost(WorkerId(worker)),
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

    #[test]
    fn sessions_of_all_workers_are_listed_once_each_has_answered_or_is_lost() {
        let session = |name: &str| OpenSession {
            session: name.into(),
            namespace: Namespace::Shared,
            tokens: 3,
            expires_in: Duration::from_secs(1),
        };
        let (mut questions, (reply, mut answer)) = (SessionQuestions::default(), oneshot::channel());
        let asked = [WorkerId(0), WorkerId(1), WorkerId(2)].into();
        questions.begin(RequestId(7), asked, Reply::Listed(reply, Vec::new()));
        questions.listed(RequestId(7), WorkerId(0), &[session("a")]);
        questions.listed(RequestId(7), WorkerId(0), &[session("a")]);
        questions.lost(WorkerId(1));
        assert!(answer.try_recv().is_err());
        questions.listed(RequestId(7), WorkerId(2), &[session("b")]);
        assert_eq!(answer.try_recv().unwrap(), [session("a"), session("b")]);
        let (reply, mut answer) = oneshot::channel();
        questions.begin(RequestId(8), BTreeSet::new(), Reply::Listed(reply, Vec::new()));
        assert!(answer.try_recv().unwrap().is_empty());
    }
}
