//! Metrics of policies of which a new version is on trial.
use std::sync::{Mutex, PoisonError};

use camshaft_core::canary::Tally;
use camshaft_core::policy::Hook;
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};

use crate::error::PolicyError;

/// The label of the new version, and of the one before.
const VERSIONS: [&str; 2] = ["canary", "before"];

/// Series of those that are on trial; they go when the trial ends.
#[derive(Debug)]
pub(crate) struct CanaryMetrics {
    share: GaugeVec,
    calls: IntCounterVec,
    faults: IntCounterVec,
    running: Mutex<Vec<(Hook, String)>>,
}

impl CanaryMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, PolicyError> {
        let share = GaugeVec::new(
            Opts::new(
                "camshaft_policy_canary_share",
                "Share of traffic that a new version of a policy on trial serves",
            ),
            &["hook", "plugin"],
        )?;
        registry.register(Box::new(share.clone()))?;
        let labels = &["hook", "plugin", "version"];
        let calls = IntCounterVec::new(
            Opts::new(
                "camshaft_policy_canary_calls_total",
                "Calls of a policy on trial since that began, by version; of one that is called for each token or piece of text, choices",
            ),
            labels,
        )?;
        registry.register(Box::new(calls.clone()))?;
        let faults = IntCounterVec::new(
            Opts::new("camshaft_policy_canary_faults_total", "The same calls that faulted, by version"),
            labels,
        )?;
        registry.register(Box::new(faults.clone()))?;
        Ok(Self { share, calls, faults, running: Mutex::default() })
    }

    /// Counts what both versions did since the last time.
    pub(crate) fn count(&self, hook: Hook, plugin: &str, share: f64, (new, before): (Tally, Tally)) {
        self.share.with_label_values(&[hook.as_str(), plugin]).set(share);
        for (version, tally) in VERSIONS.into_iter().zip([new, before]) {
            let labels = [hook.as_str(), plugin, version];
            self.calls.with_label_values(&labels).inc_by(tally.calls);
            self.faults.with_label_values(&labels).inc_by(tally.faults);
        }
    }

    /// Removes the series of all others.
    pub(crate) fn keep(&self, running: &[(Hook, String)]) {
        let mut known = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        for (hook, plugin) in known.iter().filter(|known| !running.contains(known)) {
            // These fail only where there is no such series.
            let _ = self.share.remove_label_values(&[hook.as_str(), plugin]);
            for version in VERSIONS {
                let labels = [hook.as_str(), plugin.as_str(), version];
                let _ = (self.calls.remove_label_values(&labels), self.faults.remove_label_values(&labels));
            }
        }
        *known = running.to_vec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_that_is_over_leaves_no_series() {
        let registry = Registry::new();
        let metrics = CanaryMetrics::register(&registry).unwrap();
        let lines = || prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        let tally = |calls, faults| Tally { calls, faults };
        metrics.count(Hook::Auth, "x", 0.25, (tally(3, 1), tally(9, 0)));
        metrics.count(Hook::Auth, "x", 0.25, (tally(2, 0), tally(1, 0)));
        metrics.keep(&[(Hook::Auth, "x".to_owned())]);
        let said = lines();
        for line in [
            "camshaft_policy_canary_share{hook=\"auth\",plugin=\"x\"} 0.25",
            "camshaft_policy_canary_calls_total{hook=\"auth\",plugin=\"x\",version=\"canary\"} 5",
            "camshaft_policy_canary_calls_total{hook=\"auth\",plugin=\"x\",version=\"before\"} 10",
            "camshaft_policy_canary_faults_total{hook=\"auth\",plugin=\"x\",version=\"canary\"} 1",
        ] {
            assert!(said.contains(line), "{line} in {said}");
        }
        metrics.keep(&[]);
        assert!(!lines().contains("plugin=\"x\""), "{}", lines());
    }
}
