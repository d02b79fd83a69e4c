//! Counts what monitored policies would have changed: by kind, and how far schedulers' waits and samplers' rows differ.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camshaft_core::policy::{Difference, Hook, RowFigures, WaitFigures, Waits};
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, exponential_buckets};

use crate::error::PolicyError;
use crate::times::Times;

/// Whose waits a series of `camshaft_policy_monitor_wait_seconds` has.
const BOOKS: [&str; 2] = ["monitored", "enforced"];

/// The families of monitored policies. Series of a policy are made when something first differs.
#[derive(Debug, Clone)]
pub(crate) struct MonitorFamilies {
    differences: IntCounterVec,
    waits: HistogramVec,
    distances: HistogramVec,
    /// Schedulers and models with series of waits.
    waiting: Arc<Mutex<BTreeSet<(String, String)>>>,
}

impl MonitorFamilies {
    pub(crate) fn register(registry: &Registry) -> Result<Self, PolicyError> {
        let differences = IntCounterVec::new(
            Opts::new(
                "camshaft_policy_differences_total",
                "Answers of monitored policies that would have changed something",
            ),
            &["hook", "plugin", "kind"],
        )?;
        registry.register(Box::new(differences.clone()))?;
        let waits = HistogramVec::new(
            HistogramOpts::new(
                "camshaft_policy_monitor_wait_seconds",
                "Time in the queue under a monitored scheduler and under the one in force, of requests that both dispatched",
            )
            .buckets(exponential_buckets(1e-4, 4.0, 10)?),
            &["plugin", "model", "book"],
        )?;
        registry.register(Box::new(waits.clone()))?;
        let distances = HistogramVec::new(
            HistogramOpts::new(
                "camshaft_policy_monitor_distance",
                "Total variation distance between rows with and without a monitored sampler",
            )
            .buckets(vec![0.0, 0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0]),
            &["plugin"],
        )?;
        registry.register(Box::new(distances.clone()))?;
        Ok(Self { differences, waits, distances, waiting: Arc::default() })
    }

    fn waiting(&self) -> MutexGuard<'_, BTreeSet<(String, String)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count(&self, hook: Hook, plugin: &str, kind: Difference) {
        self.differences.with_label_values(&[hook.as_str(), plugin, kind.as_str()]).inc();
    }

    pub(crate) fn waited(&self, plugin: &str, model: &str, waits: Waits) {
        self.waiting().insert((plugin.to_owned(), model.to_owned()));
        for (book, wait) in BOOKS.into_iter().zip([waits.monitored, waits.enforced]) {
            self.waits.with_label_values(&[plugin, model, book]).observe(wait.as_secs_f64());
        }
    }

    pub(crate) fn compared(&self, plugin: &str, distance: f64) {
        self.distances.with_label_values(&[plugin]).observe(distance);
    }

    /// The last version of a policy is gone. Its series go: names come and go, but memory would only grow.
    pub(crate) fn remove(&self, hook: Hook, plugin: &str) {
        // These fail only where there is no such series.
        for kind in Difference::ALL {
            let _ = self.differences.remove_label_values(&[hook.as_str(), plugin, kind.as_str()]);
        }
        if hook == Hook::Sampler {
            let _ = self.distances.remove_label_values(&[plugin]);
        }
        if hook == Hook::Scheduler {
            let is_its = |(name, _): &(String, String)| name == plugin;
            let gone: Vec<(String, String)> = self.waiting().extract_if(.., is_its).collect();
            for (_, model) in gone {
                for book in BOOKS {
                    let _ = self.waits.remove_label_values(&[plugin, &model, book]);
                }
            }
        }
    }
}

/// What one version of a policy would have changed since it was loaded.
#[derive(Debug)]
pub(crate) struct Monitored {
    /// In the order of `Difference::ALL`.
    differences: [AtomicU64; Difference::ALL.len()],
    /// Of a scheduler, by model.
    pools: Mutex<BTreeMap<String, PoolTimes>>,
    rows: Mutex<RowSums>,
}

#[derive(Debug, Default)]
struct PoolTimes {
    compared: u64,
    monitored: Times,
    enforced: Times,
    waiting: u64,
    skipped: u64,
    /// Its breaker is open.
    open: bool,
}

#[derive(Debug, Default)]
struct RowSums {
    compared: u64,
    sum: f64,
    max: f64,
}

impl Default for Monitored {
    fn default() -> Self {
        let differences = [const { AtomicU64::new(0) }; Difference::ALL.len()];
        Self { differences, pools: Mutex::default(), rows: Mutex::default() }
    }
}

impl Monitored {
    pub(crate) fn count(&self, kind: Difference) {
        self.differences[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn waited(&self, model: &str, waits: Waits) {
        self.of_pool(model, |pool| {
            pool.compared += 1;
            pool.monitored.count(waits.monitored);
            pool.enforced.count(waits.enforced);
        });
    }

    pub(crate) fn skipped(&self, model: &str) {
        self.of_pool(model, |pool| pool.skipped += 1);
    }

    pub(crate) fn waiting(&self, model: &str, waiting: usize) {
        self.of_pool(model, |pool| pool.waiting = waiting as u64);
    }

    pub(crate) fn opened(&self, model: &str, open: bool) {
        self.of_pool(model, |pool| pool.open = open);
    }

    /// Whether its breaker is open in any pool, of a scheduler.
    pub(crate) fn is_open(&self) -> bool {
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.values().any(|pool| pool.open)
    }

    fn of_pool(&self, model: &str, change: impl FnOnce(&mut PoolTimes)) {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        match pools.get_mut(model) {
            Some(pool) => change(pool),
            None => change(pools.entry(model.to_owned()).or_default()),
        }
    }

    pub(crate) fn compared(&self, distance: f64) {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        rows.compared += 1;
        rows.sum += distance;
        rows.max = rows.max.max(distance);
    }

    /// Kinds that there were, with their numbers.
    pub(crate) fn differences(&self) -> BTreeMap<&'static str, u64> {
        let counts = Difference::ALL.into_iter().zip(&self.differences);
        let counts = counts.map(|(kind, count)| (kind.as_str(), count.load(Ordering::Relaxed)));
        counts.filter(|&(_, count)| count > 0).collect()
    }

    pub(crate) fn waits(&self) -> BTreeMap<String, WaitFigures> {
        let us = |time: Option<Duration>| time.map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let figures = |pool: &PoolTimes| WaitFigures {
            compared: pool.compared,
            monitored_mean_us: us(pool.monitored.mean()),
            monitored_p99_us: us(pool.monitored.quantile(0.99)),
            enforced_mean_us: us(pool.enforced.mean()),
            enforced_p99_us: us(pool.enforced.quantile(0.99)),
            waiting: pool.waiting,
            skipped: pool.skipped,
        };
        let pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.iter().map(|(model, pool)| (model.clone(), figures(pool))).collect()
    }

    /// `None`: no row was compared.
    pub(crate) fn rows(&self) -> Option<RowFigures> {
        let RowSums { compared, sum, max } = *self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        (compared > 0).then(|| RowFigures { compared, mean_distance: sum / compared as f64, max_distance: max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_what_was_counted() {
        let monitored = Monitored::default();
        assert!(monitored.differences().is_empty() && monitored.waits().is_empty() && monitored.rows().is_none());
        monitored.count(Difference::Token);
        monitored.count(Difference::Token);
        assert_eq!(monitored.differences(), BTreeMap::from([("token", 2)]));
        [0.25, 0.75].into_iter().for_each(|distance| monitored.compared(distance));
        let rows = monitored.rows().unwrap();
        assert_eq!(rows, RowFigures { compared: 2, mean_distance: 0.5, max_distance: 0.75 });
        let ms = Duration::from_millis;
        monitored.waited("m", Waits { monitored: ms(1), enforced: ms(3) });
        monitored.waited("m", Waits { monitored: ms(3), enforced: ms(5) });
        monitored.skipped("m");
        monitored.waiting("m", 7);
        let waits = monitored.waits().remove("m").unwrap();
        assert_eq!((waits.compared, waits.waiting, waits.skipped), (2, 7, 1));
        assert_eq!((waits.monitored_mean_us, waits.enforced_mean_us), (Some(2000), Some(4000)));
        assert!(waits.monitored_p99_us >= Some(3000) && waits.enforced_p99_us >= Some(5000), "{waits:?}");
    }

    #[test]
    fn a_policy_that_is_gone_leaves_no_series() {
        let registry = Registry::new();
        let families = MonitorFamilies::register(&registry).unwrap();
        let series = || registry.gather().iter().map(|family| family.get_metric().len()).sum::<usize>();
        let waits = Waits { monitored: Duration::ZERO, enforced: Duration::ZERO };
        for name in ["a", "b"] {
            families.count(Hook::Scheduler, name, Difference::FirstChoice);
            families.waited(name, "one", waits);
            families.waited(name, "two", waits);
        }
        families.compared("a", 0.5);
        assert_eq!(series(), 11);
        families.remove(Hook::Scheduler, "a");
        assert_eq!(series(), 6, "that of a sampler of the same name stays");
        families.remove(Hook::Sampler, "a");
        families.remove(Hook::Scheduler, "b");
        assert_eq!(series(), 0);
    }
}
