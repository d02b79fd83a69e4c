//! The hook of schedulers: what they are told, what they may do, and who makes them.
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::attributes::Attributes;
use super::difference::{Difference, Waits};
use super::facts::WorkerFacts;
use super::fault::Fault;
use super::priority::Priority;
use super::scheduling::{CancelReason, Checkpoint, Ending, PoolBooks, Rejection, Restored};
use crate::breaker::BreakerSettings;
use crate::ids::{Generation, PolicyName, RequestId, TenantId, WorkerId};

/// A waiting request, as a scheduler sees it. Times count from the pool's start.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    pub id: RequestId,
    pub arrived: Duration,
    pub tenant: TenantId,
    pub priority: Priority,
    pub weight: f64,
    /// Latest moment of the first token.
    pub deadline: Option<Duration>,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    /// KV tokens that a worker must have free to admit it. Never more than an idle worker has.
    pub need: u32,
    /// Workers whose prefix cache probably holds a prefix of the prompt, as estimated when the request arrived.
    pub cached: Vec<CachedPrefix>,
    /// What auth and validator policies have set.
    pub attributes: Arc<Attributes>,
}

/// Prompt tokens that a worker's prefix cache probably holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedPrefix {
    pub worker: WorkerId,
    pub tokens: u32,
}

impl Arrival {
    /// Prompt tokens that a worker's prefix cache probably holds.
    pub fn cached_on(&self, worker: WorkerId) -> u32 {
        self.cached.iter().find(|cached| cached.worker == worker).map_or(0, |cached| cached.tokens)
    }
}

/// What a scheduler is told.
#[derive(Debug, Clone, PartialEq)]
pub enum SchedulerEvent {
    Arrived(Arrival),
    Dispatched {
        id: RequestId,
        worker: WorkerId,
    },
    Progressed {
        id: RequestId,
        prompt_tokens: u32,
        generated_tokens: u32,
    },
    Finished {
        id: RequestId,
        generated_tokens: u32,
        ending: Ending,
    },
    Cancelled {
        id: RequestId,
        reason: CancelReason,
    },
    /// Its worker preempted it, or paused it for its reader.
    Preempted {
        id: RequestId,
    },
    /// It runs again, neither preempted nor paused.
    Resumed {
        id: RequestId,
    },
}

/// One call of a scheduler: what happened since the last one.
#[derive(Debug, Clone)]
pub struct SchedulingPoint {
    /// Time since the pool started.
    pub now: Duration,
    /// The first point of an instance, carrying the whole state as events.
    pub replay: bool,
    pub events: Vec<SchedulerEvent>,
    /// All workers of the pool.
    pub workers: Vec<WorkerFacts>,
    /// What else can be asked. Whoever keeps it past the call makes the pool copy its book.
    pub books: Arc<dyn PoolBooks>,
}

/// What a scheduler asks the pool to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Preempt {
        id: RequestId,
    },
    Reject {
        id: RequestId,
        rejection: Rejection,
    },
    Dispatch {
        id: RequestId,
        worker: WorkerId,
    },
    PrefillBudget {
        worker: WorkerId,
        tokens: u32,
    },
    /// Call again at this time at the latest, even if nothing happens. Replaces an earlier one that has not passed.
    WakeAt {
        at: Duration,
    },
}

/// A pool's scheduler: long-lived, fed with events.
pub trait Scheduler: Send {
    /// Answers a scheduling point. The pool checks every action before it carries out the first.
    fn schedule(&mut self, point: &SchedulingPoint) -> Result<Vec<Action>, Fault>;

    /// The plugin whose instances leave checkpoints to each other; `None`: it has none to leave and takes none.
    fn lineage(&self) -> Option<&str> {
        None
    }

    /// What the next instance of its plugin is to begin with. Never asked after a fault. `None`: nothing, or it failed.
    fn save(&mut self) -> Option<Checkpoint> {
        None
    }

    /// Begins with what an earlier instance of its plugin saved, before the first point.
    fn restore(&mut self, checkpoint: Checkpoint) -> Restored {
        let _ = checkpoint;
        Restored::Refused
    }
}

/// A scheduler and the policy that it is an instance of.
pub type NamedScheduler = (PolicyName, Box<dyn Scheduler>);

/// What a pool tells of the scheduler that it monitors.
#[derive(Debug, Clone, Copy)]
pub enum Observation<'a> {
    Differs(Difference),
    Waited(Waits),
    /// So many requests wait in its virtual book.
    Waiting(usize),
    /// It was not asked at a scheduling point, because the pool had other work.
    Skipped,
    /// The pool refused its actions. Counts as a fault of invalid output; other faults were counted before.
    Refused(&'a Fault),
    /// Its breaker opened after a fault: it is not asked.
    Opened {
        fault: &'a Fault,
        pause: Duration,
    },
    /// It closed again.
    Closed,
}

/// Makes schedulers.
pub trait SchedulerHook: Send + Sync + fmt::Debug {
    /// Tells the scheduler in force from all others. Besides swaps, turns change it: a version that is on trial decides in some
    /// slots of the time, which counts from the pool's start.
    fn generation(&self, now: Duration) -> Generation;
    /// When the breaker of the scheduler in force opens.
    fn breaker(&self, now: Duration) -> BreakerSettings {
        let _ = now;
        BreakerSettings::SINGLE
    }
    /// A fresh instance of the scheduler in force; `None` where the native one is to be used.
    fn open(&self, now: Duration) -> Result<Option<NamedScheduler>, Fault>;
    /// The pool refused a scheduler's actions. Counts as a fault of invalid output.
    fn refused(&self, fault: &Fault);
    /// The native scheduler decides in the policy's place from now on. Not called again while it does.
    fn replaced(&self, fault: &Fault);
    /// The policy decides again after it was replaced; `None`: no policy is in force any more.
    fn returned(&self, policy: Option<&PolicyName>);
    /// Changes when another scheduler is monitored; `None`: none is.
    fn monitored(&self) -> Option<Generation> {
        None
    }
    /// When the breaker of the monitored scheduler opens.
    fn monitored_breaker(&self) -> BreakerSettings {
        BreakerSettings::SINGLE
    }
    /// A fresh instance of the monitored scheduler.
    fn open_monitored(&self) -> Result<Option<NamedScheduler>, Fault> {
        Ok(None)
    }
    /// The pool tells of the monitored scheduler that was opened last.
    fn observed(&self, seen: Observation<'_>) {
        let _ = seen;
    }
}
