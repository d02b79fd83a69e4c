//! What workers report, as it enters the book.
use super::{BookEntry, PoolBook};
use crate::ids::{RequestId, WorkerId};
use crate::message::{Event, FinishReason, WorkerError};
use crate::policy::{CancelReason, Ending, SchedulerEvent};
use crate::pool::account::WorkerAccount;
use crate::report::Report;

impl PoolBook {
    /// Takes in a worker's report: events and facts together.
    pub(in crate::pool) fn apply(&mut self, worker: WorkerId, report: Report) {
        report.events.iter().for_each(|event| self.apply_event(worker, event));
        if let Some(account) = self.workers.get_mut(&worker) {
            self.facts_changed |= account.report(report.facts);
        }
    }

    fn apply_event(&mut self, worker: WorkerId, event: &Event) {
        // A worker says nothing about requests that it does not have.
        if self.worker_of(event.id()) != Some(worker) {
            return;
        }
        match *event {
            Event::Started { id, cached_tokens } => self.affinity.started(id, cached_tokens),
            Event::Progressed { id, prompt_tokens, generated_tokens } => {
                let Some(request) = self.requests.get_mut(&id) else { return };
                // Fails only for a waiting request, which no worker has.
                let _ = request.stage.draw();
                request.progress = Some((prompt_tokens, generated_tokens));
                self.events.push(SchedulerEvent::Progressed { id, prompt_tokens, generated_tokens });
            }
            Event::Finished { id, reason, usage } => self.finished(id, reason, usage.generated_tokens),
            Event::Failed { id, ref error } => self.failed(id, error),
            Event::Admitted { id } => self.take_or_give_place(id, |request, account| {
                account.admitted(id);
                request.preempted = false;
            }),
            Event::Preempted { id } => {
                self.take_or_give_place(id, |request, _| request.preempted = true);
                self.events.push(SchedulerEvent::Preempted { id });
            }
            Event::Paused { id } => {
                self.take_or_give_place(id, |_, account| account.paused(id));
                self.events.push(SchedulerEvent::Preempted { id });
            }
            Event::Resumed { id } => self.take_or_give_place(id, |_, account| account.resumed(id)),
            Event::Queued { .. } | Event::Delta { .. } | Event::SessionClosed { .. } | Event::Sessions { .. } => {}
        }
    }

    /// A worker took a request's place away or gave it back. The scheduler hears of it if the request runs again.
    fn take_or_give_place(&mut self, id: RequestId, change: impl FnOnce(&mut BookEntry, &mut WorkerAccount)) {
        let was_away = self.is_away(id);
        let Some(request) = self.requests.get_mut(&id) else { return };
        let Some(account) = request.stage.worker().and_then(|worker| self.workers.get_mut(&worker)) else { return };
        change(request, account);
        if was_away && !self.is_away(id) {
            self.events.push(SchedulerEvent::Resumed { id });
        }
    }

    fn finished(&mut self, id: RequestId, reason: FinishReason, generated_tokens: u32) {
        let ending = match reason {
            FinishReason::Stop | FinishReason::StopString(_) => Ending::Stop,
            FinishReason::Length | FinishReason::Expired => Ending::Length,
            FinishReason::Filtered => Ending::Filter,
            // Its length says nothing about how long outputs are. Whoever was not told to end it cut a slow reader.
            FinishReason::Cancelled => {
                let told = self.requests.get(&id).and_then(|request| request.cancelled);
                let reason = told.unwrap_or(CancelReason::SlowReader);
                return self.end(id, SchedulerEvent::Cancelled { id, reason });
            }
        };
        self.reservation.learn(generated_tokens);
        self.end(id, SchedulerEvent::Finished { id, generated_tokens, ending });
    }

    fn failed(&mut self, id: RequestId, error: &WorkerError) {
        let reason = match error {
            WorkerError::SlowReader => CancelReason::SlowReader,
            WorkerError::DeadlineExceeded => CancelReason::Deadline,
            WorkerError::ShuttingDown => CancelReason::Shutdown,
            _ => return self.end_early(id, Ending::Error),
        };
        self.end(id, SchedulerEvent::Cancelled { id, reason });
    }

    /// A dispatched request failed. Its last progress says how many tokens it had generated.
    pub(super) fn end_early(&mut self, id: RequestId, ending: Ending) {
        let progress = self.requests.get(&id).and_then(|request| request.progress);
        let generated_tokens = progress.map_or(0, |(_, generated)| generated);
        self.end(id, SchedulerEvent::Finished { id, generated_tokens, ending });
    }

    /// A dispatched request ended; its worker has nothing of it any more.
    fn end(&mut self, id: RequestId, event: SchedulerEvent) {
        let Some(worker) = self.worker_of(id) else { return };
        if let Some(request) = self.requests.remove(&id) {
            self.bury(request, event);
        }
        self.affinity.ended(id);
        if let Some(account) = self.workers.get_mut(&worker) {
            account.ended(id);
        }
    }
}
