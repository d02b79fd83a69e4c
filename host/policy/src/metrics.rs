//! The host's own metrics of policies.
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use camshaft_core::ids::{Generation, PolicyName};
use camshaft_core::policy::{FaultKind, Hook};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, exponential_buckets,
};

use crate::error::PolicyError;

/// The outcome of a call of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Allow,
    Next,
    Refuse,
    Accept,
    Amend,
    /// A sampler drew a token.
    Drawn,
    /// A sampler shaped the row and passed it to the next one.
    Shaped,
    Actions,
    /// A monitored policy would have changed the outcome.
    Monitor,
    Fault(FaultKind),
}

impl Outcome {
    const COUNT: usize = 14;

    fn index(self) -> usize {
        match self {
            Outcome::Allow => 0,
            Outcome::Next => 1,
            Outcome::Refuse => 2,
            Outcome::Accept => 3,
            Outcome::Amend => 4,
            Outcome::Drawn => 5,
            Outcome::Shaped => 6,
            Outcome::Actions => 7,
            Outcome::Monitor => 8,
            Outcome::Fault(FaultKind::Trap) => 9,
            Outcome::Fault(FaultKind::Deadline) => 10,
            Outcome::Fault(FaultKind::Memory) => 11,
            Outcome::Fault(FaultKind::InvalidOutput) => 12,
            Outcome::Fault(FaultKind::Unavailable) => 13,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Outcome::Allow => "allow",
            Outcome::Next => "next",
            Outcome::Refuse => "refuse",
            Outcome::Accept => "accept",
            Outcome::Amend => "amend",
            Outcome::Drawn => "drawn",
            Outcome::Shaped => "shaped",
            Outcome::Actions => "actions",
            Outcome::Monitor => "monitor",
            Outcome::Fault(kind) => kind.as_str(),
        }
    }
}

/// The result of a changed policy file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swap {
    Swapped,
    Rejected,
    Removed,
}

impl Swap {
    fn as_str(self) -> &'static str {
        match self {
            Swap::Swapped => "swapped",
            Swap::Rejected => "rejected",
            Swap::Removed => "removed",
        }
    }
}

/// The families, registered once.
#[derive(Debug)]
pub(crate) struct PolicyMetrics {
    calls: IntCounterVec,
    durations: HistogramVec,
    generations: IntGaugeVec,
    swaps: IntCounterVec,
    swap_durations: Histogram,
}

impl PolicyMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, PolicyError> {
        let plugin = &["hook", "plugin"];
        let calls = IntCounterVec::new(
            Opts::new("camshaft_policy_calls_total", "Calls of policies by outcome"),
            &["hook", "plugin", "outcome"],
        )?;
        let durations = HistogramVec::new(
            HistogramOpts::new("camshaft_policy_duration_seconds", "Time that a policy took for a call")
                .buckets(exponential_buckets(1e-6, 2.5, 14)?),
            plugin,
        )?;
        let generations = IntGaugeVec::new(
            Opts::new("camshaft_policy_generation", "Generation that brought in what serves of a policy"),
            plugin,
        )?;
        let swaps = IntCounterVec::new(
            Opts::new("camshaft_policy_swaps_total", "Changes of policy files by result"),
            &["hook", "result"],
        )?;
        let swap_durations = Histogram::with_opts(
            HistogramOpts::new(
                "camshaft_policy_swap_duration_seconds",
                "Time from the first notice of a change in the policy directory to its publication",
            )
            .buckets(exponential_buckets(0.01, 2.0, 12)?),
        )?;
        for hook in Hook::ALL {
            for result in [Swap::Swapped, Swap::Rejected, Swap::Removed] {
                // Start the series at zero, so that its first increase is visible.
                swaps.with_label_values(&[hook.as_str(), result.as_str()]);
            }
        }
        registry.register(Box::new(calls.clone()))?;
        registry.register(Box::new(durations.clone()))?;
        registry.register(Box::new(generations.clone()))?;
        registry.register(Box::new(swaps.clone()))?;
        registry.register(Box::new(swap_durations.clone()))?;
        Ok(Self { calls, durations, generations, swaps, swap_durations })
    }

    /// The series of one policy, looked up once.
    pub(crate) fn link(&self, hook: Hook, name: &PolicyName) -> LinkMetrics {
        let duration = self.durations.with_label_values(&[hook.as_str(), name.as_str()]);
        LinkMetrics { hook, name: name.clone(), family: self.calls.clone(), duration, calls: Default::default() }
    }

    pub(crate) fn serving(&self, hook: Hook, name: &PolicyName, generation: Generation) {
        let gauge = self.generations.with_label_values(&[hook.as_str(), name.as_str()]);
        gauge.set(i64::try_from(generation.0).unwrap_or(i64::MAX));
    }

    pub(crate) fn gone(&self, hook: Hook, name: &PolicyName) {
        // Fails only if the series does not exist.
        let _ = self.generations.remove_label_values(&[hook.as_str(), name.as_str()]);
    }

    pub(crate) fn swap(&self, hook: Hook, result: Swap) {
        self.swaps.with_label_values(&[hook.as_str(), result.as_str()]).inc();
    }

    pub(crate) fn swapped_in(&self, time: Duration) {
        self.swap_durations.observe(time.as_secs_f64());
    }
}

/// The series of one policy. The series of an outcome is made when it first happens.
#[derive(Debug)]
pub(crate) struct LinkMetrics {
    hook: Hook,
    name: PolicyName,
    family: IntCounterVec,
    duration: Histogram,
    calls: [OnceLock<IntCounter>; Outcome::COUNT],
}

impl LinkMetrics {
    pub(crate) fn count(&self, outcome: Outcome) {
        let labels = || [self.hook.as_str(), self.name.as_str(), outcome.as_str()];
        self.calls[outcome.index()].get_or_init(|| self.family.with_label_values(&labels())).inc();
    }

    /// Counts a call that began at `started`.
    pub(crate) fn observe(&self, outcome: Outcome, started: Instant) {
        self.duration.observe(started.elapsed().as_secs_f64());
        self.count(outcome);
    }
}
