//! The host's own metrics of policies.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use camshaft_core::breaker::BreakerState;
use camshaft_core::ids::{Generation, PolicyName};
use camshaft_core::policy::{Difference, FaultKind, Hook, PolicyEvent, Waits};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    exponential_buckets,
};
use serde::{Deserialize, Serialize};

use crate::canary_metrics::CanaryMetrics;
use crate::documents::DocumentMetrics;
use crate::error::PolicyError;
use crate::monitoring::MonitorFamilies;

/// The outcome of a call of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Allow,
    Next,
    Refuse,
    Accept,
    Amend,
    /// A sampler drew a token.
    Drawn,
    /// A sampler left a plan, and is not called for the request's tokens.
    Planned,
    /// A sampler shaped the row and passed it to the next one.
    Shaped,
    Actions,
    /// A filter passed text, or held some.
    Pass,
    Replace,
    Finish,
    Rewind,
    /// It was not asked, because its breaker was open.
    Open,
    /// It was not asked, because it let an earlier verdict be used again.
    Reused,
    /// A monitored scheduler was not asked, because its pool had other work.
    Skipped,
    Fault(FaultKind),
}

impl Outcome {
    /// Those whose series a link keeps.
    const ALL: [Outcome; 22] = [
        Outcome::Allow,
        Outcome::Next,
        Outcome::Refuse,
        Outcome::Accept,
        Outcome::Amend,
        Outcome::Drawn,
        Outcome::Planned,
        Outcome::Shaped,
        Outcome::Actions,
        Outcome::Pass,
        Outcome::Replace,
        Outcome::Finish,
        Outcome::Rewind,
        Outcome::Open,
        Outcome::Reused,
        Outcome::Skipped,
        Outcome::Fault(FaultKind::Trap),
        Outcome::Fault(FaultKind::Deadline),
        Outcome::Fault(FaultKind::Memory),
        Outcome::Fault(FaultKind::InvalidOutput),
        Outcome::Fault(FaultKind::Unavailable),
        Outcome::Fault(FaultKind::Exhausted),
    ];

    fn as_str(self) -> &'static str {
        match self {
            Outcome::Allow => "allow",
            Outcome::Next => "next",
            Outcome::Refuse => "refuse",
            Outcome::Accept => "accept",
            Outcome::Amend => "amend",
            Outcome::Drawn => "drawn",
            Outcome::Planned => "planned",
            Outcome::Shaped => "shaped",
            Outcome::Actions => "actions",
            Outcome::Pass => "pass",
            Outcome::Replace => "replace",
            Outcome::Finish => "finish",
            Outcome::Rewind => "rewind",
            Outcome::Open => "open",
            Outcome::Reused => "reused",
            Outcome::Skipped => "skipped",
            Outcome::Fault(kind) => kind.as_str(),
        }
    }
}

/// The families, registered once.
#[derive(Debug)]
pub(crate) struct PolicyMetrics {
    calls: CallFamilies,
    generations: IntGaugeVec,
    swaps: IntCounterVec,
    swap_durations: Histogram,
    without_files: IntGaugeVec,
    rejected: IntGaugeVec,
    pub(crate) documents: DocumentMetrics,
    pub(crate) canaries: CanaryMetrics,
}

impl PolicyMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, PolicyError> {
        let plugin = &["hook", "plugin"];
        let calls = IntCounterVec::new(
            Opts::new("camshaft_policy_calls_total", "Calls of policies by outcome"),
            &["hook", "plugin", "outcome"],
        )?;
        registry.register(Box::new(calls.clone()))?;
        let durations = HistogramVec::new(
            HistogramOpts::new("camshaft_policy_duration_seconds", "Time that a policy took for a call")
                .buckets(exponential_buckets(1e-6, 2.5, 14)?),
            plugin,
        )?;
        registry.register(Box::new(durations.clone()))?;
        let generations = IntGaugeVec::new(
            Opts::new("camshaft_policy_generation", "Generation that brought in what serves of a policy"),
            plugin,
        )?;
        registry.register(Box::new(generations.clone()))?;
        let swaps = IntCounterVec::new(
            Opts::new("camshaft_policy_swaps_total", "Changes of policy files by result"),
            &["hook", "result"],
        )?;
        registry.register(Box::new(swaps.clone()))?;
        let swap_durations = Histogram::with_opts(
            HistogramOpts::new(
                "camshaft_policy_swap_duration_seconds",
                "Time from the first notice of a change in the policy directory to its publication",
            )
            .buckets(exponential_buckets(0.01, 2.0, 12)?),
        )?;
        registry.register(Box::new(swap_durations.clone()))?;
        let without_files = IntGaugeVec::new(
            Opts::new("camshaft_policies_without_files", "Policies that serve although their files cannot be seen"),
            &["hook"],
        )?;
        registry.register(Box::new(without_files.clone()))?;
        let rejected = IntGaugeVec::new(
            Opts::new(
                "camshaft_policies_rejected",
                "Policies whose newest files are not in force because something is wrong",
            ),
            &["hook"],
        )?;
        registry.register(Box::new(rejected.clone()))?;
        for hook in Hook::ALL {
            without_files.with_label_values(&[hook.as_str()]);
            rejected.with_label_values(&[hook.as_str()]);
            for result in PolicyEvent::ALL {
                // Start the series at zero, so that its first increase is visible.
                swaps.with_label_values(&[hook.as_str(), result.as_str()]);
            }
        }
        let breakers = IntGaugeVec::new(
            Opts::new("camshaft_policy_breaker_state", "Breaker of a policy: 0 closed, 1 half-open, 2 open"),
            plugin,
        )?;
        registry.register(Box::new(breakers.clone()))?;
        let openings = IntCounterVec::new(
            Opts::new("camshaft_policy_breaker_openings_total", "How often the breaker of a policy opened"),
            plugin,
        )?;
        registry.register(Box::new(openings.clone()))?;
        let monitors = MonitorFamilies::register(registry)?;
        let calls = CallFamilies { calls, durations, breakers, openings, monitors, kept: Arc::default() };
        let (documents, canaries) = (DocumentMetrics::register(registry)?, CanaryMetrics::register(registry)?);
        Ok(Self { calls, generations, swaps, swap_durations, without_files, rejected, documents, canaries })
    }

    /// The series of one policy, looked up once.
    pub(crate) fn link(&self, hook: Hook, name: &PolicyName) -> LinkMetrics {
        let series = self.calls.series(hook, name);
        let duration = self.calls.durations.with_label_values(&[hook.as_str(), name.as_str()]);
        let breaker = self.calls.breakers.with_label_values(&[hook.as_str(), name.as_str()]);
        let openings = self.calls.openings.with_label_values(&[hook.as_str(), name.as_str()]);
        LinkMetrics { series, duration, breaker, openings, calls: Default::default() }
    }

    pub(crate) fn serving(&self, hook: Hook, name: &PolicyName, generation: Generation) {
        let gauge = self.generations.with_label_values(&[hook.as_str(), name.as_str()]);
        gauge.set(i64::try_from(generation.0).unwrap_or(i64::MAX));
    }

    pub(crate) fn gone(&self, hook: Hook, name: &PolicyName) {
        // Fails only if the series does not exist.
        let _ = self.generations.remove_label_values(&[hook.as_str(), name.as_str()]);
    }

    pub(crate) fn swap(&self, hook: Hook, result: PolicyEvent) {
        self.swaps.with_label_values(&[hook.as_str(), result.as_str()]).inc();
    }

    pub(crate) fn without_files(&self, hook: Hook, policies: usize) {
        let gauge = self.without_files.with_label_values(&[hook.as_str()]);
        gauge.set(i64::try_from(policies).unwrap_or(i64::MAX));
    }

    pub(crate) fn rejected(&self, hook: Hook, policies: usize) {
        let gauge = self.rejected.with_label_values(&[hook.as_str()]);
        gauge.set(i64::try_from(policies).unwrap_or(i64::MAX));
    }

    pub(crate) fn swapped_in(&self, time: Duration) {
        self.swap_durations.observe(time.as_secs_f64());
    }
}

type SeriesKey = (Hook, PolicyName);

/// The families with series for each policy, and which policies have any.
#[derive(Debug, Clone)]
struct CallFamilies {
    calls: IntCounterVec,
    durations: HistogramVec,
    breakers: IntGaugeVec,
    openings: IntCounterVec,
    monitors: MonitorFamilies,
    kept: Arc<Mutex<HashMap<SeriesKey, Weak<PolicySeries>>>>,
}

impl CallFamilies {
    fn kept(&self) -> MutexGuard<'_, HashMap<SeriesKey, Weak<PolicySeries>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What keeps the series of a policy, the same for all its versions.
    fn series(&self, hook: Hook, name: &PolicyName) -> Arc<PolicySeries> {
        let key = (hook, name.clone());
        let mut kept = self.kept();
        kept.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let series = Arc::new(PolicySeries { hook, name: name.clone(), families: self.clone() });
            kept.insert(key, Arc::downgrade(&series));
            series
        })
    }
}

/// The series of one policy, removed when its last version is gone: names come and go, but memory would only grow.
#[derive(Debug)]
struct PolicySeries {
    hook: Hook,
    name: PolicyName,
    families: CallFamilies,
}

impl Drop for PolicySeries {
    fn drop(&mut self) {
        let (hook, name) = (self.hook.as_str(), self.name.as_str());
        let mut kept = self.families.kept();
        let key = (self.hook, self.name.clone());
        // A policy of that name may have come meanwhile, which counts on in the same series.
        if !kept.get(&key).is_some_and(|series| std::ptr::eq(series.as_ptr(), self)) {
            return;
        }
        kept.remove(&key);
        // These fail only where there is no such series.
        let _ = self.families.durations.remove_label_values(&[hook, name]);
        let _ = self.families.breakers.remove_label_values(&[hook, name]);
        let _ = self.families.openings.remove_label_values(&[hook, name]);
        self.families.monitors.remove(self.hook, name);
        for outcome in Outcome::ALL {
            let _ = self.families.calls.remove_label_values(&[hook, name, outcome.as_str()]);
        }
    }
}

/// Counts for one version of a policy. The series of an outcome is made when it first happens.
#[derive(Debug)]
pub(crate) struct LinkMetrics {
    series: Arc<PolicySeries>,
    duration: Histogram,
    breaker: IntGauge,
    openings: IntCounter,
    /// In the order of `Outcome::ALL`.
    calls: [OnceLock<IntCounter>; Outcome::ALL.len()],
}

impl LinkMetrics {
    pub(crate) fn count(&self, outcome: Outcome) {
        let PolicySeries { hook, name, families } = &*self.series;
        let series = || families.calls.with_label_values(&[hook.as_str(), name.as_str(), outcome.as_str()]);
        let kept = Outcome::ALL.iter().position(|known| *known == outcome).and_then(|index| self.calls.get(index));
        match kept {
            Some(kept) => kept.get_or_init(series).inc(),
            // Looked up each time, but counted.
            None => series().inc(),
        }
    }

    /// Counts a call that took so long.
    pub(crate) fn observe(&self, outcome: Outcome, took: Duration) {
        self.duration.observe(took.as_secs_f64());
        self.count(outcome);
    }

    /// Counts an answer of a monitored policy that would have changed something.
    pub(crate) fn differs(&self, kind: Difference) {
        self.series.families.monitors.count(self.series.hook, self.series.name.as_str(), kind);
    }

    /// Counts the waits of a request under a monitored scheduler and under the one in force.
    pub(crate) fn waited(&self, model: &str, waits: Waits) {
        self.series.families.monitors.waited(self.series.name.as_str(), model, waits);
    }

    /// Counts a row that was compared with that of a monitored sampler.
    pub(crate) fn compared(&self, distance: f64) {
        self.series.families.monitors.compared(self.series.name.as_str(), distance);
    }

    pub(crate) fn breaker(&self, state: BreakerState) {
        self.breaker.set(match state {
            BreakerState::Closed => 0,
            BreakerState::HalfOpen => 1,
            BreakerState::Open => 2,
        });
    }

    pub(crate) fn opened(&self) {
        self.breaker(BreakerState::Open);
        self.openings.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_counts_in_a_series_of_its_own() {
        let metrics = PolicyMetrics::register(&Registry::new()).unwrap();
        let (name, hook) = (PolicyName::from("10-x"), Hook::Auth);
        let link = metrics.link(hook, &name);
        for (rank, outcome) in (1..).zip(Outcome::ALL) {
            (0..rank).for_each(|_| link.count(outcome));
        }
        for (rank, outcome) in (1..).zip(Outcome::ALL) {
            let series = metrics.calls.calls.with_label_values(&[hook.as_str(), name.as_str(), outcome.as_str()]);
            assert_eq!(series.get(), rank, "{outcome:?}");
        }
    }

    #[test]
    fn regression_a_policy_that_is_gone_leaves_no_series() {
        let registry = Registry::new();
        let metrics = PolicyMetrics::register(&registry).unwrap();
        let (hook, name, other) = (Hook::Auth, PolicyName::from("keys"), PolicyName::from("others"));
        let series = |name: &str| {
            let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
            text.lines().filter(|line| line.contains(&format!("plugin=\"{name}\""))).count()
        };
        let stays = metrics.link(hook, &other);
        stays.observe(Outcome::Allow, Duration::ZERO);
        let (before, old) = (series("others"), metrics.link(hook, &name));
        assert!(before > 0);
        Outcome::ALL.iter().for_each(|outcome| old.count(*outcome));
        Difference::ALL.iter().for_each(|kind| old.differs(*kind));
        let new = metrics.link(hook, &name);
        metrics.serving(hook, &name, Generation(2));
        drop(old);
        new.count(Outcome::Allow);
        assert_eq!(
            metrics.calls.calls.with_label_values(&["auth", "keys", "allow"]).get(),
            2,
            "versions count together"
        );
        metrics.gone(hook, &name);
        assert!(series("keys") > 0, "requests that it serves still count");
        drop(new);
        assert_eq!((series("keys"), series("others")), (0, before));
        assert_eq!(metrics.calls.kept().len(), 1);
        metrics.link(hook, &name).count(Outcome::Allow);
    }
}
