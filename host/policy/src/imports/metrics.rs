//! `camshaft:policy/metrics`: a plugin's own counters and gauges, in bounded number.
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::Hook;
use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};
use wasmtime::component::{HasData, Linker};

use crate::bindings::host::metrics::{self, Host};

/// Maximum number of names of a plugin, and of label sets of a name.
const NAMES: usize = 32;
const LABEL_SETS: usize = 64;
/// Maximum number of labels of a metric.
const LABELS: usize = 8;
const NAME_BYTES: usize = 64;
const LABEL_VALUE_BYTES: usize = 128;

/// The series that one plugin has used.
#[derive(Debug, Default)]
struct SeriesBook {
    sets: HashMap<String, HashSet<Vec<String>>>,
}

impl SeriesBook {
    /// Whether the series exists or may be added.
    fn admit(&mut self, name: &str, values: &[String]) -> bool {
        if let Some(sets) = self.sets.get_mut(name) {
            return sets.contains(values) || (sets.len() < LABEL_SETS && sets.insert(values.to_vec()));
        }
        if self.sets.len() >= NAMES {
            return false;
        }
        self.sets.insert(name.to_owned(), HashSet::from([values.to_vec()]));
        true
    }
}

/// The metric families of all plugins, made at first use.
#[derive(Debug)]
pub(crate) struct MetricFamilies {
    registry: Registry,
    families: Mutex<HashMap<String, Family>>,
    dropped: Option<IntCounterVec>,
}

#[derive(Debug, Clone)]
struct Family {
    labels: Vec<String>,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Counter(IntCounterVec),
    Gauge(GaugeVec),
}

/// A change of a series.
#[derive(Debug, Clone, Copy)]
enum Change {
    Add(u64),
    Set(f64),
}

impl MetricFamilies {
    pub(crate) fn new(registry: Registry) -> Self {
        let opts = Opts::new("camshaft_policy_metrics_dropped_total", "Metric calls of plugins that were over bounds");
        let dropped = IntCounterVec::new(opts, &["hook", "plugin"]).ok();
        let dropped = dropped.filter(|family| registry.register(Box::new(family.clone())).is_ok());
        Self { registry, families: Mutex::default(), dropped }
    }

    /// The family of this name, made if there is none; `None` if it has other labels.
    fn family(&self, name: &str, change: Change, labels: &[&(String, String)]) -> Option<Family> {
        let mut families = self.families.lock().unwrap_or_else(PoisonError::into_inner);
        let names = || labels.iter().map(|(key, _)| key.as_str());
        if let Some(family) = families.get(name) {
            return family.labels.iter().map(String::as_str).eq(names()).then(|| family.clone());
        }
        let opts = Opts::new(format!("camshaft_plugin_{name}"), "Recorded by a policy plugin");
        let columns: Vec<&str> = std::iter::once("plugin").chain(names()).collect();
        let kind = match change {
            Change::Add(_) => {
                let family = IntCounterVec::new(opts, &columns).ok()?;
                self.registry.register(Box::new(family.clone())).ok()?;
                Kind::Counter(family)
            }
            Change::Set(_) => {
                let family = GaugeVec::new(opts, &columns).ok()?;
                self.registry.register(Box::new(family.clone())).ok()?;
                Kind::Gauge(family)
            }
        };
        let family = Family { labels: names().map(str::to_owned).collect(), kind };
        families.insert(name.to_owned(), family.clone());
        Some(family)
    }
}

/// The metrics of one plugin, shared by all its instances.
#[derive(Debug)]
pub(crate) struct PluginMetrics {
    hook: Hook,
    plugin: PolicyName,
    families: Arc<MetricFamilies>,
    series: Mutex<SeriesBook>,
}

impl PluginMetrics {
    pub(crate) fn new(hook: Hook, plugin: PolicyName, families: Arc<MetricFamilies>) -> Self {
        if let Some(dropped) = &families.dropped {
            // Start the series at zero, so that its first increase is visible.
            dropped.with_label_values(&[hook.as_str(), plugin.as_str()]);
        }
        Self { hook, plugin, families, series: Mutex::default() }
    }

    fn record(&self, name: &str, change: Change, labels: &[(String, String)]) {
        if self.try_record(name, change, labels).is_none()
            && let Some(dropped) = &self.families.dropped
        {
            dropped.with_label_values(&[self.hook.as_str(), self.plugin.as_str()]).inc();
        }
    }

    fn try_record(&self, name: &str, change: Change, labels: &[(String, String)]) -> Option<()> {
        if !valid_name(name) || labels.len() > LABELS {
            return None;
        }
        let mut sorted: Vec<&(String, String)> = labels.iter().collect();
        sorted.sort_unstable();
        let valid = |(key, value): &(String, String)| valid_label(key) && value.len() <= LABEL_VALUE_BYTES;
        if !sorted.iter().all(|label| valid(label)) || sorted.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return None;
        }
        let family = self.families.family(name, change, &sorted)?;
        let mut values = vec![self.plugin.to_string()];
        values.extend(sorted.iter().map(|(_, value)| value.clone()));
        if !self.series.lock().unwrap_or_else(PoisonError::into_inner).admit(name, &values) {
            return None;
        }
        match (family.kind, change) {
            (Kind::Counter(family), Change::Add(delta)) => family.with_label_values(&values).inc_by(delta),
            (Kind::Gauge(family), Change::Set(value)) => family.with_label_values(&values).set(value),
            _ => return None,
        }
        Some(())
    }
}

fn valid_name(name: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.len() <= NAME_BYTES && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(word)
}

fn valid_label(name: &str) -> bool {
    // The host sets `plugin`, and Prometheus reserves names that begin with two underscores.
    valid_name(name) && name != "plugin"
}

/// The part of a guest's state that the metrics need.
pub(crate) trait MetricsView: 'static {
    fn metrics(&mut self) -> &PluginMetrics;
}

struct Metrics;

impl HasData for Metrics {
    type Data<'a> = &'a PluginMetrics;
}

pub(crate) fn add_to_linker<T: MetricsView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    metrics::add_to_linker::<_, Metrics>(linker, T::metrics)
}

impl Host for &PluginMetrics {
    fn count(&mut self, name: String, delta: u64, labels: Vec<(String, String)>) -> wasmtime::Result<()> {
        self.record(&name, Change::Add(delta), &labels);
        Ok(())
    }

    fn gauge(&mut self, name: String, value: f64, labels: Vec<(String, String)>) -> wasmtime::Result<()> {
        self.record(&name, Change::Set(value), &labels);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(registry: &Registry) -> String {
        prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    fn keys(registry: &Registry) -> PluginMetrics {
        let families = Arc::new(MetricFamilies::new(registry.clone()));
        PluginMetrics::new(Hook::Auth, PolicyName::from("keys"), families)
    }

    fn label(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn exports_what_a_plugin_counts_under_its_name() {
        let registry = Registry::new();
        let plugin = keys(&registry);
        let labels = [label("zone", "a"), label("kind", "b")];
        plugin.record("seen", Change::Add(2), &labels);
        plugin.record("seen", Change::Add(3), &[label("kind", "b"), label("zone", "a")]);
        plugin.record("level", Change::Set(0.5), &[]);
        let text = text(&registry);
        assert!(text.contains(r#"camshaft_plugin_seen{kind="b",plugin="keys",zone="a"} 5"#), "{text}");
        assert!(text.contains(r#"camshaft_plugin_level{plugin="keys"} 0.5"#), "{text}");
    }

    #[test]
    fn drops_and_counts_what_is_over_the_bounds() {
        let registry = Registry::new();
        let plugin = keys(&registry);
        for i in 0..=LABEL_SETS {
            plugin.record("seen", Change::Add(1), &[label("i", &i.to_string())]);
        }
        for i in 1..=NAMES {
            plugin.record(&format!("name{i}"), Change::Add(1), &[]);
        }
        plugin.record("seen", Change::Set(1.0), &[label("i", "0")]);
        plugin.record("Bad Name", Change::Add(1), &[]);
        plugin.record("seen", Change::Add(1), &[label("plugin", "other")]);
        let text = text(&registry);
        assert_eq!(text.lines().filter(|line| line.starts_with("camshaft_plugin_seen{")).count(), LABEL_SETS);
        let dropped = r#"camshaft_policy_metrics_dropped_total{hook="auth",plugin="keys"} 5"#;
        assert!(text.contains(dropped), "{text}");
    }
}
