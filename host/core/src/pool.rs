//! A model's pool: its queue, its workers' accounts, and the scheduler that chooses who goes first, and where.
//!
//! The scheduler advises, the pool keeps correctness: every action is checked against the pool's own book before the
//! first one is carried out. A scheduler that faults is replaced by the native one at once and tried again later.
mod account;
mod active;
mod affinity;
mod alarm;
mod book;
mod capacity;
mod check;
mod groups;
mod offers;
mod pace;
mod placement;
mod shadow;
mod virtual_book;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use active::ActiveScheduler;
use alarm::Alarm;
use book::{Dispatched, PoolBook};
pub use book::{NewRequest, QueueFull};
pub use offers::Bounds;
use shadow::ShadowScheduler;
pub use virtual_book::VIRTUAL_WAITING;

use crate::engine::EngineLimits;
pub use crate::gate::Watermarks;
use crate::ids::{RequestId, WorkerId};
use crate::message::{Command, Start, WorkerError};
use crate::policy::{Action, Arrival, CancelReason, Fault, SchedulerHook, SchedulingPoint, WorkerFacts};
use crate::report::Report;
use crate::reserve::Reserve;

/// What the pool wants done by whoever owns the threads.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Give the worker a request. `waited`: time in the queue.
    Start { worker: WorkerId, start: Box<Start>, need: u32, waited: Duration },
    /// Give the worker another command.
    Send { worker: WorkerId, command: Command },
    /// Tell the client that its request ended. A worker that has it is told by a `Send`.
    Fail { id: RequestId, error: WorkerError },
}

/// Queue and scheduler of one model.
pub struct Pool {
    /// Shared with the scheduler while it answers, and with nobody otherwise.
    book: Arc<PoolBook>,
    scheduler: ActiveScheduler,
    alarm: Alarm,
    shadow: ShadowScheduler,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("book", &self.book).finish_non_exhaustive()
    }
}

impl Pool {
    /// `reserve`: how much of a worker's KV cache a request is admitted with.
    pub fn new(hook: Arc<dyn SchedulerHook>, watermarks: Watermarks, reserve: Reserve) -> Self {
        let book = Arc::new(PoolBook::new(watermarks, reserve));
        let shadow = ShadowScheduler::new(hook.clone());
        Self { book, scheduler: ActiveScheduler::new(hook), alarm: Alarm::default(), shadow }
    }

    /// A scheduler that kept the book past its answer would make this copy it.
    fn book_mut(&mut self) -> &mut PoolBook {
        Arc::make_mut(&mut self.book)
    }

    /// A worker begins, for the first time or after [`Pool::worker_lost`].
    pub fn add_worker(&mut self, worker: WorkerId, limits: EngineLimits) {
        if self.book_mut().add_worker(worker, limits) {
            self.scheduler.reopen();
            self.shadow.reopen();
        }
    }

    /// A worker died. Returns the requests that it had, which are lost.
    pub fn worker_lost(&mut self, worker: WorkerId) -> Vec<RequestId> {
        self.book_mut().lose_worker(worker)
    }

    /// Takes in what a worker did and the facts that hold after it, together.
    pub fn apply(&mut self, worker: WorkerId, report: Report) {
        self.book_mut().apply(worker, report);
    }

    /// A request arrives.
    ///
    /// # Errors
    /// The queue is full, or the tenant's share of it.
    pub fn submit(&mut self, new: NewRequest) -> Result<(), QueueFull> {
        self.book_mut().enter(new)
    }

    /// Nobody wants a request's output any more.
    pub fn cancel(&mut self, id: RequestId, reason: CancelReason) -> Option<Output> {
        let worker = self.book_mut().cancel(id, reason)?;
        Some(Output::Send { worker, command: Command::Cancel { id } })
    }

    /// Changes the bounds of the queue. Requests that wait already stay.
    pub fn set_watermarks(&mut self, watermarks: Watermarks) {
        self.book_mut().set_watermarks(watermarks);
    }

    /// Changes what may run at once. Requests that run go on; those that wait beyond what their tenants may have wait longer.
    pub fn set_bounds(&mut self, bounds: Bounds) {
        if self.book_mut().set_bounds(bounds) {
            self.scheduler.reopen();
            self.shadow.reopen();
        }
    }

    /// Whether the queue accepts requests.
    pub fn accepts(&self) -> bool {
        self.book.accepts()
    }

    pub fn waiting(&self) -> usize {
        self.book.waiting()
    }

    /// Requests that a worker has, without those whose readers are behind.
    pub fn running(&self) -> usize {
        self.book.running()
    }

    /// Whether any worker is up.
    pub fn is_healthy(&self) -> bool {
        self.book.is_healthy()
    }

    /// Facts about all workers, as a scheduler would see them now.
    pub fn worker_facts(&self) -> Vec<WorkerFacts> {
        self.book.worker_facts().collect()
    }

    /// Waiting requests in the order in which the native scheduler would serve them.
    pub fn queue(&self) -> Vec<&Arrival> {
        self.book.queue()
    }

    /// When [`Pool::schedule`] has something to do at the latest, even if nothing happens: a deadline may pass, or the scheduler
    /// wants to be called.
    pub fn next_call(&self) -> Option<Duration> {
        self.book.next_deadline().into_iter().chain(self.alarm.at()).min()
    }

    /// Requests that the next [`Pool::schedule`] ends because their deadline has passed before their first token.
    pub fn overdue(&self, now: Duration) -> Vec<RequestId> {
        self.book.overdue(now)
    }

    /// The client has read its first token: the worker's report of it is on its way, or it was one of another choice.
    pub fn deadline_kept(&mut self, id: RequestId) {
        self.book_mut().deadline_kept(id);
    }

    /// Whether the books add up. Cheap enough for every step of a test.
    pub fn check(&self) -> bool {
        self.book.check()
    }

    /// A scheduling point, if anything happened since the last one or the scheduler asked for it. `now` counts from the pool's start.
    pub fn schedule(&mut self, now: Duration) -> Vec<Output> {
        let mut out = Vec::new();
        self.expire(now, &mut out);
        self.scheduler.refresh(now);
        let rings = self.alarm.rings(now);
        if rings || self.book.has_news() || self.scheduler.needs_replay() {
            let actions = self.ask(now).unwrap_or_else(|fault| {
                self.scheduler.replace(&fault, now);
                // The native scheduler never faults on a true replay.
                self.ask(now).unwrap_or_default()
            });
            self.book_mut().forget_gone();
            self.carry_out(actions, now, &mut out);
        }
        out
    }

    /// Asks the scheduler that is only monitored, if there is one, after what [`Pool::schedule`] returned was done. `behind`: the
    /// caller has other work, so it is not asked now.
    pub fn monitor(&mut self, now: Duration, behind: bool) {
        self.shadow.refresh(now, || self.book.replay());
        if self.shadow.is_on() {
            let workers = self.book.worker_facts().collect();
            self.shadow.advance(now, workers, self.book.clone(), behind);
        }
    }

    fn expire(&mut self, now: Duration, out: &mut Vec<Output>) {
        for id in self.book.overdue(now) {
            // The client first: a worker that confirms the cancellation at once must not answer it otherwise.
            out.push(Output::Fail { id, error: WorkerError::DeadlineExceeded });
            out.extend(self.cancel(id, CancelReason::Deadline));
        }
    }

    fn ask(&mut self, now: Duration) -> Result<Vec<Action>, Fault> {
        let (news, replay) = (self.book_mut().take_news(), self.scheduler.needs_replay());
        self.shadow.note(&news, now);
        if replay {
            // An instance that is gone wants nothing any more.
            self.alarm = Alarm::default();
        }
        let events = if replay { self.book.replay() } else { news };
        let point = SchedulingPoint { now, replay, events, workers: self.worker_facts(), books: self.book.clone() };
        self.scheduler.ask(&point, |actions| check::check(&self.book, actions))
    }

    fn carry_out(&mut self, actions: Vec<Action>, now: Duration, out: &mut Vec<Output>) {
        let dispatch = |action: &Action| match action {
            Action::Dispatch { id, worker } => Some((*id, *worker)),
            _ => None,
        };
        let dispatches: Vec<(RequestId, WorkerId)> = actions.iter().filter_map(dispatch).collect();
        let mut places = placement::place(&self.book, &dispatches).into_iter();
        for action in actions {
            match action {
                Action::Preempt { id } => {
                    let worker = self.book.worker_of(id);
                    out.extend(worker.map(|worker| Output::Send { worker, command: Command::Preempt { id } }));
                }
                // A worker that is down begins again with its own choice.
                Action::PrefillBudget { worker, tokens } if self.book.is_up(worker) => {
                    out.push(Output::Send { worker, command: Command::PrefillBudget { tokens } });
                }
                Action::PrefillBudget { .. } => {}
                Action::Reject { id, rejection } => {
                    self.book_mut().leave_queue(id, CancelReason::Rejected);
                    out.push(Output::Fail { id, error: WorkerError::Rejected(Box::new(rejection)) });
                }
                Action::WakeAt { at } => self.alarm.set(at, now),
                Action::Dispatch { id, worker } => {
                    let worker = places.next().unwrap_or(worker);
                    let Some(Dispatched { start, need, waited }) = self.book_mut().dispatch(id, worker, now) else {
                        continue;
                    };
                    self.shadow.dispatched(id, now);
                    out.push(Output::Start { worker, start, need, waited });
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
