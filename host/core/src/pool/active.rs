//! Which scheduler decides: the policy in force or, after a fault, the native one until the back-off is over.
use std::sync::Arc;
use std::time::Duration;

use crate::fcfs::Fcfs;
use crate::ids::{Generation, PolicyName};
use crate::policy::{Action, Fault, FaultKind, Scheduler, SchedulerHook, SchedulingPoint};

const MIN_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// The scheduler that decides at present.
pub(super) struct ActiveScheduler {
    hook: Arc<dyn SchedulerHook>,
    scheduler: Box<dyn Scheduler>,
    /// The policy that schedules; `None`: the native scheduler.
    policy: Option<PolicyName>,
    /// Of the policies, when the scheduler was opened.
    generation: Generation,
    /// The scheduler has not been told the whole state yet.
    needs_replay: bool,
    opened: Duration,
    /// After a fault: when the policy is tried again.
    retry_at: Option<Duration>,
    /// How long the next pause is.
    backoff: Duration,
    /// The generation whose policy faulted, as long as the native scheduler decides in its place. The hook was told.
    replaced: Option<Generation>,
}

impl ActiveScheduler {
    pub(super) fn new(hook: Arc<dyn SchedulerHook>) -> Self {
        let mut active = Self {
            scheduler: Box::new(Fcfs::default()),
            policy: None,
            generation: hook.generation(),
            needs_replay: true,
            opened: Duration::ZERO,
            retry_at: None,
            backoff: MIN_BACKOFF,
            replaced: None,
            hook,
        };
        active.open(Duration::ZERO);
        active
    }

    /// Opens the policy anew if another one is in force, or if the pause after a fault is over.
    pub(super) fn refresh(&mut self, now: Duration) {
        if self.hook.generation() != self.generation {
            self.generation = self.hook.generation();
            self.backoff = MIN_BACKOFF;
            self.open(now);
        } else if self.retry_at.is_some_and(|at| at <= now) {
            self.open(now);
        }
    }

    /// Whether the next point has to carry the whole state.
    pub(super) fn needs_replay(&self) -> bool {
        self.needs_replay
    }

    /// Asks for actions, which `check` accepts or refuses.
    pub(super) fn ask(
        &mut self,
        point: &SchedulingPoint,
        check: impl FnOnce(&[Action]) -> Result<(), String>,
    ) -> Result<Vec<Action>, Fault> {
        self.needs_replay = false;
        let actions = self.scheduler.schedule(point)?;
        if let Err(detail) = check(&actions) {
            let plugin = self.policy.clone().unwrap_or_else(|| PolicyName::from("native"));
            let fault = Fault { plugin, kind: FaultKind::InvalidOutput, detail };
            self.hook.refused(&fault);
            return Err(fault);
        }
        if self.policy.is_some() {
            // One good answer is no recovery: a policy that faults at every second point would be tried at full rate.
            if point.now.saturating_sub(self.opened) >= self.backoff {
                self.backoff = MIN_BACKOFF;
            }
            self.note_return();
        }
        Ok(actions)
    }

    /// After a fault the native scheduler decides, until the policy is tried again.
    pub(super) fn replace(&mut self, fault: &Fault, now: Duration) {
        self.use_native();
        self.retry_at = Some(now + self.backoff);
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        if self.replaced != Some(self.generation) {
            self.replaced = Some(self.generation);
            self.hook.replaced(fault);
        }
    }

    /// Takes a fresh instance of the policy in force, or the native scheduler if there is none.
    fn open(&mut self, now: Duration) {
        self.retry_at = None;
        self.needs_replay = true;
        self.opened = now;
        match self.hook.open() {
            // It has returned when it has answered well.
            Ok(Some((name, scheduler))) => {
                self.scheduler = scheduler;
                self.policy = Some(name);
            }
            Ok(None) => {
                self.use_native();
                self.note_return();
            }
            Err(fault) => self.replace(&fault, now),
        }
    }

    fn use_native(&mut self) {
        self.scheduler = Box::new(Fcfs::default());
        self.policy = None;
        self.needs_replay = true;
    }

    /// Tells the hook that no fault keeps its scheduler from deciding any more.
    fn note_return(&mut self) {
        if self.replaced.take().is_some() {
            self.hook.returned(self.policy.as_ref());
        }
    }
}
