//! How one version of a policy does: its calls, the times that they took, and its breaker.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use camshaft_core::breaker::{Admission, Breaker, BreakerSettings, BreakerState, Turn};
use camshaft_core::canary::Tally;
use camshaft_core::policy::{FaultKind, LastFault};
use camshaft_core::shown::on_one_line;
use crossbeam_channel::Sender;

use crate::chronicle::unix_seconds;
use crate::text::truncated;
use crate::times::Times;

/// Of a fault that is kept.
const FAULT_BYTES: usize = 512;

/// Calls of a version since it was loaded.
#[derive(Debug)]
pub(crate) struct Health {
    begun: Instant,
    breaker: Mutex<Breaker>,
    calls: AtomicU64,
    faults: AtomicU64,
    last_fault: Mutex<Option<LastFault>>,
    /// Of these, what trials are judged by.
    judged: AtomicU64,
    judged_faults: AtomicU64,
    times: Times,
    /// Its breaker has opened, and why.
    opened: OnceLock<String>,
    /// What the breaker is in the process that asks the policy, where that is another one.
    told: Mutex<Option<BreakerState>>,
    /// An opening that nobody has looked at.
    alarmed: AtomicBool,
    alarm: Sender<()>,
    /// It served cleanly in another mode.
    was_clean: AtomicBool,
    /// When it came into force.
    since: OnceLock<SystemTime>,
}

impl Health {
    /// `alarm` is told when the breaker opens.
    pub(crate) fn new(settings: BreakerSettings, alarm: Sender<()>) -> Self {
        Self {
            begun: Instant::now(),
            breaker: Mutex::new(Breaker::new(settings)),
            calls: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            last_fault: Mutex::new(None),
            judged: AtomicU64::new(0),
            judged_faults: AtomicU64::new(0),
            times: Times::default(),
            opened: OnceLock::new(),
            told: Mutex::default(),
            alarmed: AtomicBool::new(false),
            alarm,
            was_clean: AtomicBool::new(false),
            since: OnceLock::new(),
        }
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call may be made now.
    pub(crate) fn admit(&self) -> Admission {
        self.breaker().admit(self.begun.elapsed())
    }

    /// Whether a call would be refused now.
    pub(crate) fn refuses(&self) -> bool {
        self.breaker().refuses(self.begun.elapsed())
    }

    /// Counts for trials that it has answered a request, or a choice of one, however often it was called; a scheduler, a call.
    pub(crate) fn judge_answer(&self) {
        self.judged.fetch_add(1, Ordering::Relaxed);
    }

    /// The same for a fault. `told`: the request was counted when it was first answered.
    pub(crate) fn judge_fault(&self, told: bool) {
        if !told {
            self.judged.fetch_add(1, Ordering::Relaxed);
        }
        self.judged_faults.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self) -> Option<Turn> {
        self.breaker().answered(self.begun.elapsed())
    }

    pub(crate) fn faulted(&self) -> Option<Turn> {
        self.breaker().faulted(self.begun.elapsed())
    }

    pub(crate) fn breaker_state(&self) -> BreakerState {
        self.told().unwrap_or_else(|| self.breaker().state())
    }

    /// The process that asks the policy says so.
    pub(crate) fn breaker_is(&self, state: BreakerState) {
        *self.told() = Some(state);
    }

    fn told(&self) -> MutexGuard<'_, Option<BreakerState>> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call and its time.
    pub(crate) fn count(&self, took: Duration, faulted: bool) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if faulted {
            self.faults.fetch_add(1, Ordering::Relaxed);
        }
        self.times.count(took);
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(crate) fn faults(&self) -> u64 {
        self.faults.load(Ordering::Relaxed)
    }

    /// Keeps the newest fault for operators. That others took all instances, or wait in its queue, is only what follows from
    /// another one, and comes far more often.
    pub(crate) fn keep_fault(&self, kind: FaultKind, detail: &str) {
        let mut last = self.last_fault.lock().unwrap_or_else(PoisonError::into_inner);
        let is_other = |last: &LastFault| last.kind != FaultKind::Exhausted.as_str();
        if kind == FaultKind::Exhausted && last.as_ref().is_some_and(is_other) {
            return;
        }
        let detail = on_one_line(truncated(detail.trim(), FAULT_BYTES));
        *last = Some(LastFault { at: unix_seconds(SystemTime::now()), kind: kind.as_str(), detail });
    }

    pub(crate) fn last_fault(&self) -> Option<LastFault> {
        self.last_fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The time within which this share of the calls ended, up to a quarter too long. `None` before the first call.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        self.times.quantile(share)
    }

    /// The breaker has opened: somebody is to look at it.
    pub(crate) fn alarm(&self, why: String) {
        // The first reason is kept.
        let _ = self.opened.set(why);
        self.alarmed.store(true, Ordering::Release);
        // A full channel says already what there is to say.
        let _ = self.alarm.try_send(());
    }

    /// Why the breaker has opened, if it has since this was last asked.
    pub(crate) fn take_alarm(&self) -> Option<&str> {
        self.alarmed.swap(false, Ordering::AcqRel).then(|| self.opened.get().map_or("", String::as_str))
    }

    /// The alarm that was taken could not be heeded yet.
    pub(crate) fn keep_alarm(&self) {
        self.alarmed.store(true, Ordering::Release);
    }

    /// Whether the breaker has ever opened.
    pub(crate) fn has_opened(&self) -> bool {
        self.opened.get().is_some()
    }

    /// Why the breaker opened first.
    pub(crate) fn why_opened(&self) -> Option<&str> {
        self.opened.get().map(String::as_str)
    }

    /// What trials are judged by.
    pub(crate) fn tally(&self) -> Tally {
        // In this order: never more faults than calls.
        let faults = self.judged_faults.load(Ordering::Relaxed);
        Tally { calls: self.judged.load(Ordering::Relaxed), faults }
    }

    /// Whether it has answered calls, and its breaker never opened.
    pub(crate) fn is_clean(&self) -> bool {
        let has_served = self.calls() > self.faults() || self.was_clean.load(Ordering::Relaxed);
        self.opened.get().is_none() && has_served
    }

    /// The same version was loaded before, in another mode.
    pub(crate) fn go_on_from(&self, before: &Self) {
        self.was_clean.store(before.is_clean(), Ordering::Relaxed);
    }

    pub(crate) fn comes_into_force(&self) {
        // It stays in force.
        let _ = self.since.set(SystemTime::now());
    }

    pub(crate) fn since(&self) -> Option<SystemTime> {
        self.since.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;

    use super::*;

    fn health() -> Health {
        Health::new(BreakerSettings::SHARED, bounded(1).0)
    }

    #[test]
    fn calls_and_faults_are_counted_with_their_times() {
        let health = health();
        assert_eq!(health.quantile(0.5), None);
        (1..=100).for_each(|us| health.count(Duration::from_micros(us), us > 90));
        assert_eq!((health.calls(), health.faults()), (100, 10));
        assert!(health.quantile(0.5).unwrap() >= Duration::from_micros(50));
    }

    #[test]
    fn the_newest_fault_is_kept_but_for_those_that_follow_from_it() {
        let health = health();
        let last = || health.last_fault().map(|fault| (fault.kind, fault.detail));
        assert_eq!(last(), None);
        health.keep_fault(FaultKind::Exhausted, "64 calls wait for it");
        assert_eq!(last(), Some(("exhausted", "64 calls wait for it".to_owned())), "there is no other one");
        health.keep_fault(FaultKind::Deadline, "too slow\nby far");
        health.keep_fault(FaultKind::Exhausted, "64 calls wait for it");
        assert_eq!(last().unwrap().0, "deadline");
        health.keep_fault(FaultKind::Trap, &"x".repeat(FAULT_BYTES + 1));
        assert_eq!(last(), Some(("trap", "x".repeat(FAULT_BYTES))));
    }

    #[test]
    fn a_version_is_clean_when_it_has_answered_and_its_breaker_never_opened() {
        let health = health();
        assert!(!health.is_clean(), "nothing is known of it");
        health.count(Duration::ZERO, true);
        assert!(!health.is_clean(), "it has never answered");
        health.count(Duration::ZERO, false);
        assert!(health.is_clean());
        assert_eq!(health.take_alarm(), None);
        health.alarm("trapped".to_owned());
        health.alarm("again".to_owned());
        assert_eq!((health.take_alarm(), health.take_alarm(), health.is_clean()), (Some("trapped"), None, false));
    }
}
