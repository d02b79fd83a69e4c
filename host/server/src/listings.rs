//! Sessions that are being listed: gathers the workers' answers for the one who asked.
use std::collections::{BTreeSet, HashMap};

use camshaft_core::ids::{RequestId, WorkerId};
use camshaft_core::message::OpenSession;
use tokio::sync::oneshot;

#[derive(Debug)]
struct Listing {
    reply: oneshot::Sender<Vec<OpenSession>>,
    /// Workers that have not answered yet.
    unanswered: BTreeSet<WorkerId>,
    sessions: Vec<OpenSession>,
}

/// Listings by the id of their command.
#[derive(Debug, Default)]
pub(crate) struct Listings {
    open: HashMap<RequestId, Listing>,
}

impl Listings {
    /// These workers were asked. Without workers there are no sessions.
    pub(crate) fn begin(&mut self, id: RequestId, asked: BTreeSet<WorkerId>, reply: oneshot::Sender<Vec<OpenSession>>) {
        if asked.is_empty() {
            // The one who asked may have given up.
            let _ = reply.send(Vec::new());
            return;
        }
        self.open.insert(id, Listing { reply, unanswered: asked, sessions: Vec::new() });
    }

    /// A worker tells of its sessions. All have to answer.
    pub(crate) fn answered(&mut self, id: RequestId, worker: WorkerId, sessions: &[OpenSession]) {
        let Some(listing) = self.open.get_mut(&id) else { return };
        if listing.unanswered.remove(&worker) {
            listing.sessions.extend_from_slice(sessions);
        }
        if listing.unanswered.is_empty()
            && let Some(listing) = self.open.remove(&id)
        {
            let _ = listing.reply.send(listing.sessions);
        }
    }

    /// A worker was lost, and its sessions with it.
    pub(crate) fn lost(&mut self, worker: WorkerId) {
        let ids: Vec<RequestId> = self.open.keys().copied().collect();
        ids.into_iter().for_each(|id| self.answered(id, worker, &[]));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use camshaft_core::segments::Namespace;

    use super::*;

    #[test]
    fn sessions_of_all_workers_are_listed_once_each_has_answered_or_is_lost() {
        let session = |name: &str| OpenSession {
            session: name.into(),
            namespace: Namespace::Shared,
            tokens: 3,
            expires_in: Duration::from_secs(1),
        };
        let (mut listings, (reply, mut answer)) = (Listings::default(), oneshot::channel());
        listings.begin(RequestId(7), [WorkerId(0), WorkerId(1), WorkerId(2)].into(), reply);
        listings.answered(RequestId(7), WorkerId(0), &[session("a")]);
        listings.answered(RequestId(7), WorkerId(0), &[session("a")]);
        listings.lost(WorkerId(1));
        assert!(answer.try_recv().is_err());
        listings.answered(RequestId(7), WorkerId(2), &[session("b")]);
        assert_eq!(answer.try_recv().unwrap(), [session("a"), session("b")]);
        let (reply, mut answer) = oneshot::channel();
        listings.begin(RequestId(8), BTreeSet::new(), reply);
        assert!(answer.try_recv().unwrap().is_empty());
    }
}
