//! `camshaft:host/metrics`: a plugin's own counters and gauges, in bounded number.
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::Hook;
use prometheus::core::{Collector, Desc};
use prometheus::{IntCounterVec, Opts, Registry, proto};
use wasmtime::component::{HasData, Linker};

use crate::bindings::host::metrics::{self, Host};
use crate::journal::{Change, Journal};

/// Maximum number of names of a plugin, and of label sets of a name.
const NAMES: usize = 32;
const LABEL_SETS: usize = 64;
/// Maximum number of labels of a metric.
const LABELS: usize = 8;
const NAME_BYTES: usize = 64;
const LABEL_VALUE_BYTES: usize = 128;

/// One metric of a plugin.
#[derive(Debug)]
struct Metric {
    labels: Vec<String>,
    kind: Kind,
    /// By the values of the labels.
    series: BTreeMap<Vec<String>, f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
}

fn kind(change: Change) -> Kind {
    match change {
        Change::Add(_) => Kind::Counter,
        Change::Set(_) => Kind::Gauge,
    }
}

/// The metrics of all plugins. Those of plugins that are gone are not exported any more.
#[derive(Debug)]
pub(crate) struct MetricFamilies {
    plugins: Arc<Mutex<Vec<Weak<Book>>>>,
    dropped: Option<IntCounterVec>,
}

impl MetricFamilies {
    pub(crate) fn new(registry: &Registry) -> Self {
        let opts = Opts::new("camshaft_policy_metrics_dropped_total", "Metric calls of plugins that were over bounds");
        let dropped = IntCounterVec::new(opts, &["hook", "plugin"]).ok();
        let dropped = dropped.filter(|family| registry.register(Box::new(family.clone())).is_ok());
        let plugins = Arc::default();
        let desc = Desc::new("camshaft_plugin".to_owned(), HELP.to_owned(), Vec::new(), HashMap::new());
        if let Ok(desc) = desc {
            // Fails only where the registry has them already.
            let _ = registry.register(Box::new(Exporter { plugins: Arc::clone(&plugins), desc }));
        }
        Self { plugins, dropped }
    }

    fn plugins(&self) -> MutexGuard<'_, Vec<Weak<Book>>> {
        self.plugins.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, book: &Arc<Book>) {
        {
            let mut plugins = self.plugins();
            plugins.retain(|book| book.strong_count() > 0);
            plugins.push(Arc::downgrade(book));
        }
        if let Some(dropped) = &self.dropped {
            // Start the series at zero, so that its first increase is visible.
            dropped.with_label_values(&book.labels());
        }
    }

    /// Removes what is exported for a plugin, unless another one has its name by now.
    fn remove(&self, book: &Arc<Book>) {
        let mut plugins = self.plugins();
        plugins.retain(|other| !std::ptr::eq(other.as_ptr(), Arc::as_ptr(book)));
        let same = |other: &Weak<Book>| other.upgrade().is_some_and(|other| other.labels() == book.labels());
        if let Some(dropped) = self.dropped.as_ref().filter(|_| !plugins.iter().any(same)) {
            // Fails only if the series does not exist.
            let _ = dropped.remove_label_values(&book.labels());
        }
    }
}

/// Exports what plugins recorded. Metrics of several plugins may share a name, whatever their kinds and labels.
struct Exporter {
    plugins: Arc<Mutex<Vec<Weak<Book>>>>,
    desc: Desc,
}

impl Collector for Exporter {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<proto::MetricFamily> {
        let plugins = self.plugins.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let books: Vec<Arc<Book>> = plugins.iter().filter_map(Weak::upgrade).collect();
        let mut kinds: BTreeMap<String, Kind> = BTreeMap::new();
        let held: Vec<_> = books.iter().map(|book| (book, book.lock())).collect();
        for (name, metric) in held.iter().flat_map(|(_, metrics)| metrics.iter()) {
            // One name has one kind in the text format. Any number is a good gauge.
            let kind = kinds.entry(name.clone()).or_insert(metric.kind);
            *kind = if *kind == metric.kind { *kind } else { Kind::Gauge };
        }
        let mut families: BTreeMap<&str, Vec<proto::Metric>> = BTreeMap::new();
        for (book, metrics) in &held {
            for (name, metric) in metrics.iter() {
                let kind = kinds.get(name).copied().unwrap_or(metric.kind);
                families.entry(name).or_default().extend(metric.export(book, kind));
            }
        }
        families.into_iter().map(|(name, series)| family(name, kinds.get(name).copied(), series)).collect()
    }
}

const HELP: &str = "Recorded by a policy plugin";

fn family(name: &str, kind: Option<Kind>, series: Vec<proto::Metric>) -> proto::MetricFamily {
    let mut family = proto::MetricFamily::default();
    family.set_name(format!("camshaft_plugin_{name}"));
    family.set_help(HELP.to_owned());
    family.set_field_type(match kind {
        Some(Kind::Counter) => proto::MetricType::COUNTER,
        _ => proto::MetricType::GAUGE,
    });
    family.set_metric(series);
    family
}

fn pair(name: &str, value: &str) -> proto::LabelPair {
    let mut pair = proto::LabelPair::default();
    pair.set_name(name.to_owned());
    pair.set_value(value.to_owned());
    pair
}

impl Metric {
    fn export(&self, book: &Book, kind: Kind) -> impl Iterator<Item = proto::Metric> {
        self.series.iter().map(move |(values, &value)| {
            let mut labels = vec![pair("hook", book.hook.as_str()), pair("plugin", book.plugin.as_str())];
            labels.extend(self.labels.iter().zip(values).map(|(label, value)| pair(label, value)));
            labels.sort_by(|a, b| a.name().cmp(b.name()));
            let mut metric = proto::Metric::from_label(labels);
            match kind {
                Kind::Counter => {
                    let mut counter = proto::Counter::default();
                    counter.set_value(value);
                    metric.set_counter(counter);
                }
                Kind::Gauge => {
                    let mut gauge = proto::Gauge::default();
                    gauge.set_value(value);
                    metric.set_gauge(gauge);
                }
            }
            metric
        })
    }
}

/// What one plugin recorded, by name.
#[derive(Debug)]
struct Book {
    hook: Hook,
    plugin: PolicyName,
    metrics: Mutex<BTreeMap<String, Metric>>,
}

impl Book {
    /// The values of the labels `hook` and `plugin`.
    fn labels(&self) -> [&str; 2] {
        [self.hook.as_str(), self.plugin.as_str()]
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Metric>> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The metrics of one plugin, shared by all its instances.
#[derive(Debug)]
pub(crate) struct PluginMetrics {
    book: Arc<Book>,
    families: Arc<MetricFamilies>,
    /// In a process that has a copy of this load: the one that loaded it keeps the series.
    journal: Option<(Arc<Journal>, u64)>,
}

impl PluginMetrics {
    pub(crate) fn new(hook: Hook, plugin: PolicyName, families: Arc<MetricFamilies>) -> Self {
        let book = Arc::new(Book { hook, plugin, metrics: Mutex::default() });
        families.add(&book);
        Self { book, families, journal: None }
    }

    /// Of the copy of a load.
    pub(crate) fn noted(mut self, journal: &Arc<Journal>, load: u64) -> Self {
        self.journal = Some((journal.clone(), load));
        self
    }

    pub(crate) fn record(&self, name: &str, change: Change, labels: &[(String, String)]) {
        if let Some((journal, load)) = &self.journal {
            return journal.note_metric(*load, name, change, labels);
        }
        if self.try_record(name, change, labels).is_none()
            && let Some(dropped) = &self.families.dropped
        {
            dropped.with_label_values(&self.book.labels()).inc();
        }
    }

    /// `None`: it is over the bounds, or not like the metric of this name.
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
        let (names, values): (Vec<_>, Vec<_>) = sorted.into_iter().cloned().unzip();
        let mut metrics = self.book.lock();
        if !metrics.contains_key(name) {
            if metrics.len() >= NAMES {
                return None;
            }
            let metric = Metric { labels: names.clone(), kind: kind(change), series: BTreeMap::new() };
            metrics.insert(name.to_owned(), metric);
        }
        let metric = metrics.get_mut(name).filter(|metric| metric.kind == kind(change) && metric.labels == names)?;
        let known = metric.series.contains_key(&values);
        if !known && metric.series.len() >= LABEL_SETS {
            return None;
        }
        let value = metric.series.entry(values).or_default();
        match change {
            Change::Add(delta) => *value += delta as f64,
            Change::Set(new) => *value = new,
        }
        Some(())
    }
}

impl Drop for PluginMetrics {
    fn drop(&mut self) {
        self.families.remove(&self.book);
    }
}

fn valid_name(name: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.len() <= NAME_BYTES && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(word)
}

fn valid_label(name: &str) -> bool {
    // The host sets these, and Prometheus reserves names that begin with two underscores.
    valid_name(name) && !["hook", "plugin"].contains(&name)
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
        let families = Arc::new(MetricFamilies::new(registry));
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
        assert!(text.contains(r#"camshaft_plugin_seen{hook="auth",kind="b",plugin="keys",zone="a"} 5"#), "{text}");
        assert!(text.contains(r#"camshaft_plugin_level{hook="auth",plugin="keys"} 0.5"#), "{text}");
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

    #[test]
    fn regression_names_over_the_bound_leave_nothing_behind() {
        let registry = Registry::new();
        let plugin = keys(&registry);
        for i in 0..10 * NAMES {
            plugin.record(&format!("name{i}"), Change::Add(1), &[]);
        }
        let families = |registry: &Registry| {
            registry.gather().iter().filter(|family| family.name().starts_with("camshaft_plugin_")).count()
        };
        assert_eq!(families(&registry), NAMES);
        drop(plugin);
        assert_eq!(families(&registry), 0, "nor does a plugin that is gone");
    }

    #[test]
    fn regression_a_plugin_that_is_gone_leaves_no_count_of_what_it_dropped() {
        let registry = Registry::new();
        let families = Arc::new(MetricFamilies::new(&registry));
        let of = |name: &str| PluginMetrics::new(Hook::Auth, PolicyName::from(name), families.clone());
        let (old, other) = (of("a"), of("b"));
        old.record("Bad Name", Change::Add(1), &[]);
        let new = of("a");
        drop(old);
        let line = r#"camshaft_policy_metrics_dropped_total{hook="auth",plugin="a"}"#;
        assert!(text(&registry).contains(&format!("{line} 1")), "the next one of that name counts on");
        drop(new);
        assert!(!text(&registry).contains(line) && text(&registry).contains(r#"plugin="b""#));
        drop(other);
    }

    #[test]
    fn regression_metrics_of_two_plugins_may_share_a_name() {
        let registry = Registry::new();
        let families = Arc::new(MetricFamilies::new(&registry));
        let of = |hook, name: &str| PluginMetrics::new(hook, PolicyName::from(name), families.clone());
        let (first, second, third) = (of(Hook::Auth, "a"), of(Hook::Auth, "b"), of(Hook::Sampler, "a"));
        first.record("seen", Change::Add(1), &[label("zone", "x")]);
        second.record("seen", Change::Set(0.5), &[]);
        third.record("seen", Change::Add(3), &[label("zone", "x")]);
        first.record("only", Change::Add(4), &[]);
        third.record("only", Change::Add(5), &[label("other", "y")]);
        let text = text(&registry);
        for line in [
            r#"camshaft_plugin_seen{hook="auth",plugin="a",zone="x"} 1"#,
            r#"camshaft_plugin_seen{hook="auth",plugin="b"} 0.5"#,
            r#"camshaft_plugin_seen{hook="sampler",plugin="a",zone="x"} 3"#,
            "# TYPE camshaft_plugin_seen gauge",
            r#"camshaft_plugin_only{hook="auth",plugin="a"} 4"#,
            r#"camshaft_plugin_only{hook="sampler",other="y",plugin="a"} 5"#,
            "# TYPE camshaft_plugin_only counter",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
        assert!(text.lines().all(|line| !line.contains("dropped_total{") || line.ends_with(" 0")), "{text}");
    }
}
