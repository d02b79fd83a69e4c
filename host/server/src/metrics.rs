//! Metrics of queue, workers and KV cache.
use std::sync::{Arc, Mutex, PoisonError};

use camshaft_api::Health;
use camshaft_core::cache::CacheFacts;
use camshaft_core::policy::{KvTokens, WorkerFacts};
use camshaft_core::report::{Report, WorkerCounters};
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry,
    register_gauge_vec_with_registry, register_histogram_vec_with_registry, register_int_counter_vec_with_registry,
    register_int_gauge_vec_with_registry,
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
    cache_tokens: GaugeVec,
    cache_ram_bytes: GaugeVec,
    sessions: GaugeVec,
    /// What workers count, with what distinguishes one of the family beside the model.
    counters: Vec<(IntCounterVec, Option<&'static str>, CounterPart)>,
}

/// What of a worker's counters adds to one that is exported.
type CounterPart = fn(&WorkerCounters) -> u64;

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
    counters: Vec<(IntCounter, CounterPart)>,
    cache_tokens: Part,
    cache_ram_bytes: Part,
    sessions: Part,
    /// Of all workers of the model together.
    kv_cached: Part,
}

impl WorkerMetrics {
    /// Takes in everything that a worker reports of itself.
    pub(crate) fn note(&self, report: &Report) {
        report.batches.iter().for_each(|&tokens| self.batch_tokens.observe(f64::from(tokens)));
        self.counters.iter().for_each(|(counter, part)| counter.inc_by(part(&report.counters)));
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

/// Makes what counts threads.
pub(crate) fn threads(registry: &Registry) -> Result<ThreadMetrics, ServerError> {
    let (name, help) = ("camshaft_threads", "Threads that run, by what they do");
    let running = register_int_gauge_vec_with_registry!(name, help, &["thread"], registry).map_err(unregistered)?;
    let (name, help) = ("camshaft_thread_restarts_total", "Threads of no model restarted after a panic");
    let restarts = register_int_counter_vec_with_registry!(name, help, &["thread"], registry).map_err(unregistered)?;
    Ok(ThreadMetrics { running, restarts })
}

pub(crate) fn unregistered(error: prometheus::Error) -> ServerError {
    ServerError::internal("register metrics", error)
}

/// Seconds from 100 us up.
fn seconds() -> Vec<f64> {
    vec![1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
}

impl ServerMetrics {
    /// Makes the families, and what tells of the build.
    pub(crate) fn new(registry: &Registry) -> Result<Self, ServerError> {
        Self::make(registry).map_err(unregistered)
    }

    fn make(registry: &Registry) -> prometheus::Result<Self> {
        let gauge =
            |name: &str, help: &str, labels: &[&str]| register_gauge_vec_with_registry!(name, help, labels, registry);
        let whole = |name: &str, help: &str, labels: &[&str]| {
            register_int_gauge_vec_with_registry!(name, help, labels, registry)
        };
        let counter = |name: &str, help: &str, labels: &[&str]| {
            register_int_counter_vec_with_registry!(name, help, labels, registry)
        };
        let histogram = |name: &str, help: &str, buckets: Vec<f64>| {
            register_histogram_vec_with_registry!(name, help, &["model"], buckets, registry)
        };
        let (model, worker) = (&["model"], &["model", "worker"]);
        let build = whole("camshaft_build_info", "What is running; always 1", &["version", "llama_cpp"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), camshaft_engine::LLAMA_CPP]).set(1);
        let kv = "KV cache of all workers, in tokens: free, cached (prompts that further requests share), held by one request each";
        let batches = prometheus::exponential_buckets(1.0, 2.0, 13)?;
        let queued = "Time from arrival to dispatch";
        Ok(Self {
            waiting: gauge(
                "camshaft_requests_waiting",
                "Requests in the queue; of embeddings and predictions, those with inputs in it",
                model,
            )?,
            running: gauge("camshaft_requests_running", "Requests that a worker computes", model)?,
            queue_duration: histogram("camshaft_queue_duration_seconds", queued, seconds())?,
            batch_tokens: histogram("camshaft_batch_tokens", "Tokens decoded in one step", batches.clone())?,
            batch_requests: histogram(
                "camshaft_batch_requests",
                "Requests of one batch of an embedding or tensor model",
                batches,
            )?,
            kv_tokens: gauge("camshaft_kv_tokens", kv, &["model", "state"])?,
            kv_usage: gauge("camshaft_kv_usage_ratio", "Share of the KV cache that is held", model)?,
            kv_sums: GaugeVec::new(Opts::new("kv", "Used and total"), &["model", "of"])?,
            worker_up: whole(
                "camshaft_worker_up",
                "Whether the worker runs; two of a number do while a model is swapped",
                worker,
            )?,
            worker_restarts: counter(
                "camshaft_worker_restarts_total",
                "Workers and embedders restarted after a panic",
                worker,
            )?,
            cache_tokens: gauge(
                "camshaft_cache_tokens",
                "Tokens of prefixes saved in segments, in RAM or on disk",
                worker,
            )?,
            cache_ram_bytes: gauge("camshaft_cache_ram_bytes", "Bytes of saved segments in RAM", worker)?,
            sessions: gauge("camshaft_sessions", "Sessions that pin a prefix", worker)?,
            counters: Self::counters(&counter)?,
        })
    }

    fn counters(
        counter: &impl Fn(&str, &str, &[&str]) -> prometheus::Result<IntCounterVec>,
    ) -> prometheus::Result<Vec<(IntCounterVec, Option<&'static str>, CounterPart)>> {
        let of_model = |name, help| counter(name, help, &["model"]);
        let preempted = "Sequences preempted because the KV cache was full, or by policy";
        let evicted = "Segments of KV cache evicted from a tier";
        let evictions = counter("camshaft_cache_evictions_total", evicted, &["model", "tier"])?;
        let drafted = "Draft tokens of speculative decoding, accepted or rejected";
        let drafts = counter("camshaft_draft_tokens_total", drafted, &["model", "result"])?;
        let paused = "Sequences paused because their readers were behind";
        let switched = "Steps before which the LoRA adapters were changed";
        let taken_back = "Generated tokens that filters took back, which no client got";
        Ok(vec![
            (of_model("camshaft_preemptions_total", preempted)?, None, |of| of.preemptions),
            (of_model("camshaft_parks_total", "Former name of camshaft_preemptions_total")?, None, |of| of.preemptions),
            (of_model("camshaft_pauses_total", paused)?, None, |of| of.pauses),
            (evictions.clone(), Some("ram"), |of| of.evicted_from_ram),
            (evictions, Some("disk"), |of| of.evicted_from_cold),
            (drafts.clone(), Some("accepted"), |of| of.drafts_accepted),
            (drafts, Some("rejected"), |of| of.drafts_rejected),
            (of_model("camshaft_adapter_switches_total", switched)?, None, |of| of.adapter_switches),
            (of_model("camshaft_filter_rewinds_total", "Times that filters had text drawn anew")?, None, |of| {
                of.rewinds
            }),
            (of_model("camshaft_filter_tokens_taken_back_total", taken_back)?, None, |of| of.tokens_taken_back),
        ])
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
        let counter = |(family, label, part): &(IntCounterVec, Option<&'static str>, CounterPart)| {
            let labels: Vec<&str> = [model].into_iter().chain(*label).collect();
            (family.with_label_values(&labels), *part)
        };
        Arc::new(WorkerMetrics {
            batch_tokens: self.batch_tokens.with_label_values(&[model]),
            counters: self.counters.iter().map(counter).collect(),
            cache_tokens: Part::new(self.cache_tokens.with_label_values(&[model, worker])),
            cache_ram_bytes: Part::new(self.cache_ram_bytes.with_label_values(&[model, worker])),
            sessions: Part::new(self.sessions.with_label_values(&[model, worker])),
            kv_cached: Part::new(self.kv_tokens.with_label_values(&[model, "cached"])),
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
