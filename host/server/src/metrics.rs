//! Metrics of queue, workers and KV cache.
use std::sync::{Arc, Mutex, PoisonError};

use camshaft_api::Health;
use camshaft_core::cache::CacheFacts;
use camshaft_core::policy::{KvTokens, WorkerFacts};
use camshaft_core::report::{Report, WorkerCounters};
use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
};

use crate::error::ServerError;
use crate::supervisor::{Gauges, ThreadMetrics};

/// Families of all models.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    waiting: GaugeVec,
    running: GaugeVec,
    queue_duration: HistogramVec,
    batch_tokens: HistogramVec,
    batch_requests: HistogramVec,
    kv_tokens: GaugeVec,
    kv_usage: GaugeVec,
    /// Not exported: what `kv_tokens` and `kv_usage` are made from.
    kv_sums: GaugeVec,
    worker_up: IntGaugeVec,
    worker_restarts: IntCounterVec,
    preemptions: IntCounterVec,
    /// `preemptions` under its former name.
    parks: IntCounterVec,
    pauses: IntCounterVec,
    cache_evictions: IntCounterVec,
    cache_tokens: GaugeVec,
    cache_ram_bytes: GaugeVec,
    sessions: GaugeVec,
    draft_tokens: IntCounterVec,
    adapter_switches: IntCounterVec,
    rewinds: IntCounterVec,
    tokens_taken_back: IntCounterVec,
}

/// One of several who add up in a gauge: while a model is swapped, two of its versions are counted under one name.
#[derive(Debug)]
struct Part {
    of: Gauge,
    now: Mutex<f64>,
}

impl Part {
    fn new(of: Gauge) -> Self {
        Self { of, now: Mutex::new(0.0) }
    }

    fn set(&self, value: f64) {
        let before = std::mem::replace(&mut *self.now.lock().unwrap_or_else(PoisonError::into_inner), value);
        if value != before {
            self.of.add(value - before);
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.set(0.0);
    }
}

/// Handles of a model's queue.
#[derive(Debug)]
pub(crate) struct QueueMetrics {
    waiting: Part,
    running: Part,
    pub(crate) duration: Histogram,
    /// Requests of a batch.
    pub(crate) batch: Histogram,
}

/// Handles of one model's pool.
#[derive(Debug)]
pub(crate) struct PoolMetrics {
    pub(crate) queue: QueueMetrics,
    kv_free: Part,
    /// Set by the workers.
    kv_cached: Gauge,
    kv_held: Gauge,
    kv_usage: Gauge,
    /// What sequences and prefixes take together, and what there is.
    kv_used: Part,
    kv_total: Part,
}

/// Handles of one worker.
#[derive(Debug)]
pub(crate) struct WorkerMetrics {
    batch_tokens: Histogram,
    preemptions: IntCounter,
    parks: IntCounter,
    pauses: IntCounter,
    evicted_from_ram: IntCounter,
    evicted_from_disk: IntCounter,
    cache_tokens: Part,
    cache_ram_bytes: Part,
    sessions: Part,
    /// Of all workers of the model together.
    kv_cached: Part,
    drafts_accepted: IntCounter,
    drafts_rejected: IntCounter,
    adapter_switches: IntCounter,
    rewinds: IntCounter,
    tokens_taken_back: IntCounter,
}

impl WorkerMetrics {
    /// Takes in everything that a worker reports of itself.
    pub(crate) fn note(&self, report: &Report) {
        report.batches.iter().for_each(|&tokens| self.batch_tokens.observe(f64::from(tokens)));
        let WorkerCounters {
            preemptions,
            pauses,
            drafts_accepted,
            drafts_rejected,
            adapter_switches,
            rewinds,
            tokens_taken_back,
            evicted_from_ram,
            evicted_from_cold,
        } = report.counters;
        self.preemptions.inc_by(preemptions);
        self.parks.inc_by(preemptions);
        self.pauses.inc_by(pauses);
        self.drafts_accepted.inc_by(drafts_accepted);
        self.drafts_rejected.inc_by(drafts_rejected);
        self.adapter_switches.inc_by(adapter_switches);
        self.rewinds.inc_by(rewinds);
        self.tokens_taken_back.inc_by(tokens_taken_back);
        self.evicted_from_ram.inc_by(evicted_from_ram);
        self.evicted_from_disk.inc_by(evicted_from_cold);
        self.publish(&report.cache);
    }

    /// The worker is down, and its cache with it.
    pub(crate) fn lost(&self) {
        self.publish(&CacheFacts::default());
    }

    fn publish(&self, facts: &CacheFacts) {
        self.cache_tokens.set(facts.tokens as f64);
        self.cache_ram_bytes.set(facts.ram_bytes as f64);
        self.sessions.set(facts.sessions as f64);
        self.kv_cached.set(facts.live_tokens as f64);
    }
}

/// Makes families. What it makes is registered, so that none can be counted and never exported.
struct Families<'a> {
    registry: &'a Registry,
}

impl Families<'_> {
    fn registered<T: Collector + Clone + 'static>(&self, family: T) -> prometheus::Result<T> {
        self.registry.register(Box::new(family.clone()))?;
        Ok(family)
    }

    fn gauge(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.registered(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn float(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<GaugeVec> {
        self.registered(GaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn counter(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntCounterVec> {
        self.registered(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    /// Of each model.
    fn histogram(&self, name: &str, help: &str, buckets: Vec<f64>) -> prometheus::Result<HistogramVec> {
        self.registered(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets), &["model"])?)
    }
}

/// Makes what counts threads.
pub(crate) fn threads(registry: &Registry) -> Result<ThreadMetrics, ServerError> {
    let families = Families { registry };
    let make = || {
        let running = families.gauge("camshaft_threads", "Threads that run, by what they do", &["thread"])?;
        let help = "Threads of no model restarted after a panic";
        let restarts = families.counter("camshaft_thread_restarts_total", help, &["thread"])?;
        Ok::<_, prometheus::Error>(ThreadMetrics { running, restarts })
    };
    make().map_err(|error| ServerError::internal("register metrics", error))
}

/// Seconds from 100 us up.
fn seconds() -> Vec<f64> {
    vec![1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
}

impl ServerMetrics {
    /// Makes the families, and what tells of the build.
    pub(crate) fn new(registry: &Registry) -> Result<Self, ServerError> {
        Self::make(&Families { registry }).map_err(|error| ServerError::internal("register metrics", error))
    }

    fn make(families: &Families<'_>) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str, labels: &[&str]| families.gauge(name, help, labels);
        let counter = |name: &str, help: &str, labels: &[&str]| families.counter(name, help, labels);
        let (model, worker) = (&["model"], &["model", "worker"]);
        let build = gauge("camshaft_build_info", "What is running; always 1", &["version", "llama_cpp"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), camshaft_engine::LLAMA_CPP]).set(1);
        let kv = "KV cache of all workers, in tokens: free, cached (prompts that further requests share), held by one request each";
        let batches = prometheus::exponential_buckets(1.0, 2.0, 13)?;
        let queued = "Time from arrival to dispatch";
        Ok(Self {
            waiting: families.float(
                "camshaft_requests_waiting",
                "Requests in the queue; of embeddings and predictions, those with inputs in it",
                model,
            )?,
            running: families.float("camshaft_requests_running", "Requests that a worker computes", model)?,
            queue_duration: families.histogram("camshaft_queue_duration_seconds", queued, seconds())?,
            batch_tokens: families.histogram("camshaft_batch_tokens", "Tokens decoded in one step", batches.clone())?,
            batch_requests: families.histogram(
                "camshaft_batch_requests",
                "Requests of one batch of an embedding or tensor model",
                batches,
            )?,
            kv_tokens: families.float("camshaft_kv_tokens", kv, &["model", "state"])?,
            kv_usage: families.float("camshaft_kv_usage_ratio", "Share of the KV cache that is held", model)?,
            kv_sums: GaugeVec::new(Opts::new("kv", "Used and total"), &["model", "of"])?,
            worker_up: gauge(
                "camshaft_worker_up",
                "Whether the worker runs; two of a number do while a model is swapped",
                worker,
            )?,
            worker_restarts: counter(
                "camshaft_worker_restarts_total",
                "Workers and embedders restarted after a panic",
                worker,
            )?,
            preemptions: counter(
                "camshaft_preemptions_total",
                "Sequences preempted because the KV cache was full, or by policy",
                model,
            )?,
            parks: counter("camshaft_parks_total", "Former name of camshaft_preemptions_total", model)?,
            pauses: counter("camshaft_pauses_total", "Sequences paused because their readers were behind", model)?,
            cache_evictions: counter(
                "camshaft_cache_evictions_total",
                "Segments of KV cache evicted from a tier",
                &["model", "tier"],
            )?,
            cache_tokens: families.float(
                "camshaft_cache_tokens",
                "Tokens of prefixes saved in segments, in RAM or on disk",
                worker,
            )?,
            cache_ram_bytes: families.float("camshaft_cache_ram_bytes", "Bytes of saved segments in RAM", worker)?,
            sessions: families.float("camshaft_sessions", "Sessions that pin a prefix", worker)?,
            draft_tokens: counter(
                "camshaft_draft_tokens_total",
                "Draft tokens of speculative decoding, accepted or rejected",
                &["model", "result"],
            )?,
            adapter_switches: counter(
                "camshaft_adapter_switches_total",
                "Steps before which the LoRA adapters were changed",
                model,
            )?,
            rewinds: counter("camshaft_filter_rewinds_total", "Times that filters had text drawn anew", model)?,
            tokens_taken_back: counter(
                "camshaft_filter_tokens_taken_back_total",
                "Generated tokens that filters took back, which no client got",
                model,
            )?,
        })
    }

    pub(crate) fn queue(&self, model: &str) -> QueueMetrics {
        QueueMetrics {
            waiting: Part::new(self.waiting.with_label_values(&[model])),
            running: Part::new(self.running.with_label_values(&[model])),
            duration: self.queue_duration.with_label_values(&[model]),
            batch: self.batch_requests.with_label_values(&[model]),
        }
    }

    pub(crate) fn pool(&self, model: &str) -> Arc<PoolMetrics> {
        let kv = |state| self.kv_tokens.with_label_values(&[model, state]);
        Arc::new(PoolMetrics {
            queue: self.queue(model),
            kv_free: Part::new(kv("free")),
            kv_cached: kv("cached"),
            kv_held: kv("held"),
            kv_usage: self.kv_usage.with_label_values(&[model]),
            kv_used: Part::new(self.kv_sums.with_label_values(&[model, "used"])),
            kv_total: Part::new(self.kv_sums.with_label_values(&[model, "total"])),
        })
    }

    /// Forgets whether the workers of a model run that is served no more. Its counters stay.
    pub(crate) fn forget_workers(&self, model: &str, workers: u32) {
        for worker in (0..workers).map(|number| number.to_string()) {
            // There is none where its threads never began.
            let _ = self.worker_up.remove_label_values(&[model, &worker]);
        }
    }

    /// Of a worker or an embedder.
    pub(crate) fn gauges(&self, model: &str, worker: &str, health: Health) -> Gauges {
        Gauges {
            up: self.worker_up.with_label_values(&[model, worker]),
            restarts: self.worker_restarts.with_label_values(&[model, worker]),
            health,
        }
    }

    pub(crate) fn worker(&self, model: &str, worker: &str) -> Arc<WorkerMetrics> {
        Arc::new(WorkerMetrics {
            batch_tokens: self.batch_tokens.with_label_values(&[model]),
            preemptions: self.preemptions.with_label_values(&[model]),
            parks: self.parks.with_label_values(&[model]),
            pauses: self.pauses.with_label_values(&[model]),
            evicted_from_ram: self.cache_evictions.with_label_values(&[model, "ram"]),
            evicted_from_disk: self.cache_evictions.with_label_values(&[model, "disk"]),
            cache_tokens: Part::new(self.cache_tokens.with_label_values(&[model, worker])),
            cache_ram_bytes: Part::new(self.cache_ram_bytes.with_label_values(&[model, worker])),
            sessions: Part::new(self.sessions.with_label_values(&[model, worker])),
            kv_cached: Part::new(self.kv_tokens.with_label_values(&[model, "cached"])),
            drafts_accepted: self.draft_tokens.with_label_values(&[model, "accepted"]),
            drafts_rejected: self.draft_tokens.with_label_values(&[model, "rejected"]),
            adapter_switches: self.adapter_switches.with_label_values(&[model]),
            rewinds: self.rewinds.with_label_values(&[model]),
            tokens_taken_back: self.tokens_taken_back.with_label_values(&[model]),
        })
    }
}

impl QueueMetrics {
    pub(crate) fn publish(&self, waiting: usize, running: usize) {
        self.waiting.set(waiting as f64);
        self.running.set(running as f64);
    }
}

impl PoolMetrics {
    pub(crate) fn publish(&self, waiting: usize, running: usize, workers: &[WorkerFacts]) {
        self.queue.publish(waiting, running);
        let kv = KvTokens::of(workers);
        self.kv_free.set(kv.free as f64);
        self.kv_used.set(kv.held as f64);
        self.kv_total.set(kv.total as f64);
        self.tell_usage();
    }

    fn tell_usage(&self) {
        let (used, total) = (self.kv_used.of.get(), self.kv_total.of.get());
        // Reports of the workers set what is cached, so the two may be a moment apart.
        self.kv_held.set((used - self.kv_cached.get()).max(0.0));
        self.kv_usage.set(if total > 0.0 { used / total } else { 0.0 });
    }
}

impl Drop for PoolMetrics {
    fn drop(&mut self) {
        self.kv_used.set(0.0);
        self.kv_total.set(0.0);
        self.tell_usage();
    }
}

#[cfg(test)]
mod tests {
    use camshaft_core::ids::WorkerId;

    use super::*;

    #[test]
    fn regression_cached_kv_is_what_the_prefix_trees_of_all_workers_hold() {
        let metrics = ServerMetrics::new(&Registry::new()).unwrap();
        let (pool, first, second) = (metrics.pool("m"), metrics.worker("m", "0"), metrics.worker("m", "1"));
        let facts = |live_tokens| CacheFacts { live_tokens, ..CacheFacts::default() };
        first.publish(&facts(30));
        second.publish(&facts(12));
        first.publish(&facts(10));
        assert_eq!(pool.kv_cached.get(), 22.0);
        first.publish(&facts(0));
        second.publish(&facts(0));
        assert_eq!(pool.kv_cached.get(), 0.0);
    }
    #[test]
    fn what_a_worker_counts_is_exported_and_adds_up() {
        let registry = Registry::new();
        let metrics = ServerMetrics::new(&registry).unwrap();
        let (first, second) = (metrics.worker("m", "0"), metrics.worker("m", "1"));
        let facts = WorkerFacts {
            worker: WorkerId(0),
            healthy: true,
            free_sequences: 1,
            running_sequences: 0,
            kv_free: 8,
            kv_used: 0,
            kv_total: 8,
            prefilling_tokens: 0,
            tokens_per_second: 0.0,
            can_preempt: true,
        };
        let counters = WorkerCounters {
            preemptions: 5,
            pauses: 6,
            drafts_accepted: 1,
            drafts_rejected: 2,
            adapter_switches: 9,
            rewinds: 7,
            tokens_taken_back: 8,
            evicted_from_ram: 3,
            evicted_from_cold: 4,
        };
        let report = Report { counters, ..Report::of(facts) };
        first.note(&report);
        // Nothing is counted from the worker's start, so nothing is lost when it restarts.
        first.lost();
        first.note(&report);
        second.note(&report);
        let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
        for line in [
            r#"camshaft_preemptions_total{model="m"} 15"#,
            r#"camshaft_parks_total{model="m"} 15"#,
            r#"camshaft_pauses_total{model="m"} 18"#,
            r#"camshaft_draft_tokens_total{model="m",result="accepted"} 3"#,
            r#"camshaft_draft_tokens_total{model="m",result="rejected"} 6"#,
            r#"camshaft_adapter_switches_total{model="m"} 27"#,
            r#"camshaft_filter_rewinds_total{model="m"} 21"#,
            r#"camshaft_filter_tokens_taken_back_total{model="m"} 24"#,
            r#"camshaft_cache_evictions_total{model="m",tier="ram"} 9"#,
            r#"camshaft_cache_evictions_total{model="m",tier="disk"} 12"#,
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
