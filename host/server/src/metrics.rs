//! Metrics of queue, workers and KV cache.
use std::sync::{Arc, Mutex, PoisonError};

use camshaft_api::Health;
use camshaft_core::cache::CacheFacts;
use camshaft_core::message::{Event, Usage};
use camshaft_core::policy::{KvTokens, WorkerFacts};
use camshaft_core::report::Report;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry,
};

use crate::error::ServerError;
use crate::supervisor::{Gauges, ThreadMetrics};

/// Families of all models.
#[derive(Debug)]
pub(crate) struct ServerMetrics {
    waiting: IntGaugeVec,
    running: IntGaugeVec,
    queue_duration: HistogramVec,
    batch_tokens: HistogramVec,
    kv_tokens: GaugeVec,
    kv_usage: GaugeVec,
    worker_up: IntGaugeVec,
    worker_restarts: IntCounterVec,
    preemptions: IntCounterVec,
    /// `preemptions` under its former name.
    parks: IntCounterVec,
    cache_evictions: IntCounterVec,
    cache_tokens: IntGaugeVec,
    cache_ram_bytes: IntGaugeVec,
    sessions: IntGaugeVec,
    draft_tokens: IntCounterVec,
}

/// Handles of one model's pool.
#[derive(Debug)]
pub(crate) struct PoolMetrics {
    waiting: IntGauge,
    running: IntGauge,
    pub(crate) queue_duration: Histogram,
    kv_free: Gauge,
    kv_cached: Gauge,
    kv_held: Gauge,
    kv_usage: Gauge,
}

/// Handles of one worker.
#[derive(Debug)]
pub(crate) struct WorkerMetrics {
    batch_tokens: Histogram,
    preemptions: IntCounter,
    parks: IntCounter,
    evicted_from_ram: IntCounter,
    evicted_from_disk: IntCounter,
    cache_tokens: IntGauge,
    cache_ram_bytes: IntGauge,
    sessions: IntGauge,
    /// Of all workers of the model together.
    kv_cached: Gauge,
    drafts_accepted: IntCounter,
    drafts_rejected: IntCounter,
    published: Mutex<CacheFacts>,
}

impl WorkerMetrics {
    /// Takes in everything that a worker reports of itself.
    pub(crate) fn note(&self, report: &Report) {
        report.batches.iter().for_each(|&tokens| self.batch_tokens.observe(f64::from(tokens)));
        for event in &report.events {
            match event {
                Event::Preempted { .. } => {
                    self.preemptions.inc();
                    self.parks.inc();
                }
                Event::Finished { usage, .. } => self.count_drafts(usage),
                _ => {}
            }
        }
        self.publish(&report.cache);
    }

    fn count_drafts(&self, usage: &Usage) {
        self.drafts_accepted.inc_by(u64::from(usage.accepted_tokens));
        self.drafts_rejected.inc_by(u64::from(usage.drafted_tokens.saturating_sub(usage.accepted_tokens)));
    }

    /// The worker is down, and its cache with it.
    pub(crate) fn lost(&self) {
        self.publish(&CacheFacts::default());
    }

    /// `facts` count from the worker's beginning; a restarted one begins again.
    fn publish(&self, facts: &CacheFacts) {
        self.cache_tokens.set(facts.tokens as i64);
        self.cache_ram_bytes.set(facts.ram_bytes as i64);
        self.sessions.set(facts.sessions as i64);
        let before = std::mem::replace(&mut *self.published.lock().unwrap_or_else(PoisonError::into_inner), *facts);
        self.kv_cached.add(facts.live_tokens as f64 - before.live_tokens as f64);
        self.evicted_from_ram.inc_by(facts.evicted_from_ram.saturating_sub(before.evicted_from_ram));
        self.evicted_from_disk.inc_by(facts.evicted_from_cold.saturating_sub(before.evicted_from_cold));
    }
}

/// Makes and registers what counts threads.
pub(crate) fn threads(registry: &Registry) -> Result<ThreadMetrics, ServerError> {
    let make = || {
        let running = Opts::new("camshaft_threads", "Threads that run, by what they do");
        let restarts = Opts::new("camshaft_thread_restarts_total", "Threads of no model restarted after a panic");
        let running = IntGaugeVec::new(running, &["thread"])?;
        let restarts = IntCounterVec::new(restarts, &["thread"])?;
        registry.register(Box::new(running.clone()))?;
        registry.register(Box::new(restarts.clone()))?;
        Ok::<_, prometheus::Error>(ThreadMetrics { running, restarts })
    };
    make().map_err(|error| ServerError::internal("register metrics", error))
}

/// Seconds from 100 us up.
fn seconds() -> Vec<f64> {
    vec![1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0]
}

impl ServerMetrics {
    /// Makes and registers the families.
    pub(crate) fn new(registry: &Registry) -> Result<Self, ServerError> {
        Self::make(registry).map_err(|error| ServerError::internal("register metrics", error))
    }

    fn make(registry: &Registry) -> prometheus::Result<Self> {
        let gauge = |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(Opts::new(name, help), labels);
        let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let metrics = Self {
            waiting: gauge("camshaft_requests_waiting", "Generations in the queue", &["model"])?,
            running: gauge("camshaft_requests_running", "Generations that a worker has", &["model"])?,
            queue_duration: HistogramVec::new(
                HistogramOpts::new("camshaft_queue_duration_seconds", "Time from arrival to dispatch")
                    .buckets(seconds()),
                &["model"],
            )?,
            batch_tokens: HistogramVec::new(
                HistogramOpts::new("camshaft_batch_tokens", "Tokens decoded in one step")
                    .buckets(prometheus::exponential_buckets(1.0, 2.0, 13)?),
                &["model"],
            )?,
            kv_tokens: GaugeVec::new(
                Opts::new(
                    "camshaft_kv_tokens",
                    "KV cache of all workers, in tokens: free, cached (prompts that further requests share), held by one request each",
                ),
                &["model", "state"],
            )?,
            kv_usage: GaugeVec::new(
                Opts::new("camshaft_kv_usage_ratio", "Share of the KV cache that is held"),
                &["model"],
            )?,
            worker_up: gauge("camshaft_worker_up", "Whether the worker or embedder runs", &["model", "worker"])?,
            worker_restarts: counter(
                "camshaft_worker_restarts_total",
                "Workers and embedders restarted after a panic",
                &["model", "worker"],
            )?,
            preemptions: counter(
                "camshaft_preemptions_total",
                "Sequences preempted because the KV cache was full, or by policy",
                &["model"],
            )?,
            parks: counter("camshaft_parks_total", "Former name of camshaft_preemptions_total", &["model"])?,
            cache_evictions: counter(
                "camshaft_cache_evictions_total",
                "Segments of KV cache evicted from a tier",
                &["model", "tier"],
            )?,
            cache_tokens: gauge(
                "camshaft_cache_tokens",
                "Tokens of prefixes saved in segments, in RAM or on disk",
                &["model", "worker"],
            )?,
            cache_ram_bytes: gauge("camshaft_cache_ram_bytes", "Bytes of saved segments in RAM", &["model", "worker"])?,
            sessions: gauge("camshaft_sessions", "Sessions that pin a prefix", &["model", "worker"])?,
            draft_tokens: counter(
                "camshaft_draft_tokens_total",
                "Draft tokens of speculative decoding, accepted or rejected",
                &["model", "result"],
            )?,
        };
        metrics.register(registry)?;
        Ok(metrics)
    }

    fn register(&self, registry: &Registry) -> prometheus::Result<()> {
        let build =
            IntGaugeVec::new(Opts::new("camshaft_build_info", "What is running; always 1"), &["version", "llama_cpp"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), camshaft_engine::LLAMA_CPP]).set(1);
        registry.register(Box::new(build))?;
        registry.register(Box::new(self.queue_duration.clone()))?;
        registry.register(Box::new(self.batch_tokens.clone()))?;
        registry.register(Box::new(self.kv_tokens.clone()))?;
        registry.register(Box::new(self.kv_usage.clone()))?;
        for gauge in
            [&self.waiting, &self.running, &self.worker_up, &self.cache_tokens, &self.cache_ram_bytes, &self.sessions]
        {
            registry.register(Box::new(gauge.clone()))?;
        }
        for counter in
            [&self.worker_restarts, &self.preemptions, &self.parks, &self.cache_evictions, &self.draft_tokens]
        {
            registry.register(Box::new(counter.clone()))?;
        }
        Ok(())
    }

    pub(crate) fn pool(&self, model: &str) -> Arc<PoolMetrics> {
        let kv = |state| self.kv_tokens.with_label_values(&[model, state]);
        Arc::new(PoolMetrics {
            waiting: self.waiting.with_label_values(&[model]),
            running: self.running.with_label_values(&[model]),
            queue_duration: self.queue_duration.with_label_values(&[model]),
            kv_free: kv("free"),
            kv_cached: kv("cached"),
            kv_held: kv("held"),
            kv_usage: self.kv_usage.with_label_values(&[model]),
        })
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
            evicted_from_ram: self.cache_evictions.with_label_values(&[model, "ram"]),
            evicted_from_disk: self.cache_evictions.with_label_values(&[model, "disk"]),
            cache_tokens: self.cache_tokens.with_label_values(&[model, worker]),
            cache_ram_bytes: self.cache_ram_bytes.with_label_values(&[model, worker]),
            sessions: self.sessions.with_label_values(&[model, worker]),
            kv_cached: self.kv_tokens.with_label_values(&[model, "cached"]),
            drafts_accepted: self.draft_tokens.with_label_values(&[model, "accepted"]),
            drafts_rejected: self.draft_tokens.with_label_values(&[model, "rejected"]),
            published: Mutex::new(CacheFacts::default()),
        })
    }
}

impl PoolMetrics {
    pub(crate) fn publish(&self, waiting: usize, running: usize, workers: &[WorkerFacts]) {
        self.waiting.set(waiting as i64);
        self.running.set(running as i64);
        let kv = KvTokens::of(workers);
        let (used, total) = (kv.held as f64, kv.total as f64);
        self.kv_free.set(kv.free as f64);
        // Reports of the workers set what is cached, so the two may be a moment apart.
        self.kv_held.set((used - self.kv_cached.get()).max(0.0));
        self.kv_usage.set(if total > 0.0 { used / total } else { 0.0 });
    }
}

#[cfg(test)]
mod tests {
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
}
