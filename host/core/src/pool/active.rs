//! Which scheduler decides: the policy in force or, while its breaker is open, the native one.
use std::sync::Arc;
use std::time::Duration;

use crate::breaker::{Admission, Breaker, Turn};
use crate::fcfs::Fcfs;
use crate::ids::{Generation, PolicyName};
use crate::policy::{Action, Fault, FaultKind, NamedScheduler, Restored, Scheduler, SchedulerHook, SchedulingPoint};

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
    /// Of the policy in force.
    breaker: Breaker,
    /// Of the one before, which may have its turn again.
    aside: Option<(Generation, Breaker)>,
    /// The policy lost its instance to a fault, and gets another one when its breaker allows.
    must_open: bool,
    /// The generation whose policy faulted, as long as the native scheduler decides in its place. The hook was told.
    replaced: Option<Generation>,
}

impl ActiveScheduler {
    pub(super) fn new(hook: Arc<dyn SchedulerHook>) -> Self {
        let mut active = Self {
            scheduler: Box::new(Fcfs::default()),
            policy: None,
            generation: hook.generation(Duration::ZERO),
            needs_replay: true,
            breaker: Breaker::new(hook.breaker(Duration::ZERO)),
            aside: None,
            must_open: false,
            replaced: None,
            hook,
        };
        active.open(Duration::ZERO);
        active
    }

    /// Opens the policy anew if another one is in force, or if its breaker lets one that faulted be asked again.
    pub(super) fn refresh(&mut self, now: Duration) {
        let (generation, settings) = (self.hook.generation(now), self.hook.breaker(now));
        if generation != self.generation {
            let known = self.aside.take().filter(|(of, _)| *of == generation).map(|(_, breaker)| breaker);
            let breaker = known.unwrap_or_else(|| Breaker::new(settings));
            self.aside = Some((self.generation, std::mem::replace(&mut self.breaker, breaker)));
            self.generation = generation;
        } else if self.breaker.settings() != settings {
            // It was on trial, and serves everything now.
            self.breaker = Breaker::new(settings);
            if !self.must_open {
                return;
            }
        } else if !self.must_open {
            return;
        }
        if self.breaker.admit(now) != Admission::Refuse {
            self.open(now);
        } else if !self.must_open {
            // It has its turn again before its pause is over.
            self.use_native();
            self.must_open = true;
        }
    }

    /// What the scheduler was told of requests is not true any more: a fresh instance decides from the next point on.
    pub(super) fn reopen(&mut self) {
        match self.policy {
            Some(_) => self.must_open = true,
            // Also where it decides in the place of a policy that has no turn yet.
            None => self.use_native(),
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
            self.breaker.answered(point.now);
            self.note_return();
        }
        Ok(actions)
    }

    /// After a fault the native scheduler decides: at this point, and, where the breaker opened, until it lets the policy be
    /// tried again.
    pub(super) fn replace(&mut self, fault: &Fault, now: Duration) {
        self.use_native();
        self.must_open = true;
        let opened = matches!(self.breaker.faulted(now), Some(Turn::Opened { .. }));
        if opened && self.replaced != Some(self.generation) {
            self.replaced = Some(self.generation);
            self.hook.replaced(fault);
        }
    }

    /// Takes a fresh instance of the policy in force, or the native scheduler if there is none.
    fn open(&mut self, now: Duration) {
        self.must_open = false;
        self.needs_replay = true;
        match self.open_after_last(now) {
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

    /// A fresh instance, which goes on with what the present one leaves if both are of one plugin. One that faulted has given
    /// way to the native scheduler, which leaves nothing.
    fn open_after_last(&mut self, now: Duration) -> Result<Option<NamedScheduler>, Fault> {
        let Some((name, mut next)) = self.hook.open(now)? else { return Ok(None) };
        let is_heir = next.lineage().is_some() && next.lineage() == self.scheduler.lineage();
        if is_heir
            && let Some(checkpoint) = self.scheduler.save()
            && next.restore(checkpoint) == Restored::Refused
        {
            drop(next);
            return self.hook.open(now);
        }
        Ok(Some((name, next)))
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
