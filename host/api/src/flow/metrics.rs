//! The metrics of the HTTP surface.
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prometheus::{Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, Opts, Registry};
use serde::Serialize;

use crate::wire::error::Rejection;

/// Buckets in seconds, from 100 us to two minutes.
const BUCKETS: [f64; 19] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0,
];

#[derive(Debug, Clone)]
pub(crate) struct HttpMetrics {
    pub(crate) requests: IntCounterVec,
    pub(crate) request_duration: HistogramVec,
    pub(crate) stream_errors: IntCounterVec,
    pub(crate) rejections: IntCounterVec,
    time_to_first_token: HistogramVec,
    inter_token_latency: HistogramVec,
    prompt_tokens: IntCounterVec,
    prompt_tokens_cached: IntCounterVec,
    generated_tokens: IntCounterVec,
    pub(crate) unknown_fields: UnknownFields,
    left_out: IntCounterVec,
    latencies: Arc<Mutex<HashMap<String, Latencies>>>,
}

/// Counts fields that nobody knows, by name. Clients choose the names.
#[derive(Debug, Clone)]
pub(crate) struct UnknownFields {
    counter: IntCounterVec,
    /// Names that have a series of their own.
    names: Arc<Mutex<BTreeSet<String>>>,
}

impl UnknownFields {
    /// Names that have a series of their own: the first ones that come. Others are counted together.
    const NAMES: usize = 64;
    /// Characters of a name.
    const NAME_CHARS: usize = 64;
    const OTHERS: &str = "other";

    pub(crate) fn count(&self, field: &str) {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
        let name: String = field.chars().take(Self::NAME_CHARS).map(plain).collect();
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let is_own = names.contains(&name) || names.len() < Self::NAMES && names.insert(name.clone());
        drop(names);
        let label = if is_own { name.as_str() } else { Self::OTHERS };
        self.counter.with_label_values(&[label]).inc();
    }
}

/// The latest latencies of one model.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies {
    pub(crate) first_token: Recent,
    pub(crate) between_tokens: Recent,
}

/// One model's series. A request looks them up once, so that a token costs no look-up.
#[derive(Debug, Clone)]
pub(crate) struct ModelMetrics {
    pub(crate) time_to_first_token: Histogram,
    pub(crate) inter_token_latency: Histogram,
    pub(crate) prompt_tokens: IntCounter,
    pub(crate) prompt_tokens_cached: IntCounter,
    pub(crate) generated_tokens: IntCounter,
    pub(crate) latencies: Latencies,
}

impl HttpMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let histogram = |name: &str, help: &str, label: &str| {
            let histogram = HistogramVec::new(HistogramOpts::new(name, help).buckets(BUCKETS.to_vec()), &[label])?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        let metrics = Self {
            requests: counter(
                "camshaft_requests_total",
                "HTTP requests by route and status (499: the client went away).",
                &["endpoint", "status"],
            )?,
            request_duration: histogram(
                "camshaft_request_duration_seconds",
                "Time from the request's head to the end of its response.",
                "endpoint",
            )?,
            stream_errors: counter(
                "camshaft_stream_errors_total",
                "Streams that failed after their head, by the status that they would have had.",
                &["endpoint", "status"],
            )?,
            rejections: counter(
                "camshaft_rejections_total",
                "Requests that were turned away, by reason.",
                &["reason"],
            )?,
            time_to_first_token: histogram(
                "camshaft_time_to_first_token_seconds",
                "Time from a request's arrival to its first token.",
                "model",
            )?,
            inter_token_latency: histogram(
                "camshaft_inter_token_latency_seconds",
                "Time between two tokens of one generation.",
                "model",
            )?,
            prompt_tokens: counter(
                "camshaft_prompt_tokens_total",
                "Prompt tokens of started generations.",
                &["model"],
            )?,
            prompt_tokens_cached: counter(
                "camshaft_prompt_tokens_cached_total",
                "Prompt tokens that were found in a prefix cache.",
                &["model"],
            )?,
            generated_tokens: counter("camshaft_generated_tokens_total", "Tokens generated.", &["model"])?,
            unknown_fields: UnknownFields {
                counter: counter(
                    "camshaft_unknown_fields_total",
                    "Fields of bodies that nobody knows, and that were ignored.",
                    &["field"],
                )?,
                names: Arc::default(),
            },
            left_out: counter(
                "camshaft_left_out_total",
                "What requests asked for and was left out, because the answer means the same without it.",
                &["endpoint", "what"],
            )?,
            latencies: Arc::default(),
        };
        metrics.unknown_fields.counter.with_label_values(&[UnknownFields::OTHERS]);
        for reason in Rejection::ALL {
            metrics.rejections.with_label_values(&[reason.as_str()]);
        }
        Ok(metrics)
    }

    pub(crate) fn of_model(&self, model: &str) -> ModelMetrics {
        let labels = [model];
        ModelMetrics {
            time_to_first_token: self.time_to_first_token.with_label_values(&labels),
            inter_token_latency: self.inter_token_latency.with_label_values(&labels),
            prompt_tokens: self.prompt_tokens.with_label_values(&labels),
            prompt_tokens_cached: self.prompt_tokens_cached.with_label_values(&labels),
            generated_tokens: self.generated_tokens.with_label_values(&labels),
            latencies: self.latencies(model),
        }
    }

    /// Something of a request was left out.
    pub(crate) fn leave_out(&self, endpoint: &str, what: &str) {
        self.left_out.with_label_values(&[endpoint, what]).inc();
    }

    pub(crate) fn latencies(&self, model: &str) -> Latencies {
        let mut latencies = self.latencies.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.entry(model.to_owned()).or_default().clone()
    }
}

/// Age and number of the values that percentiles consider.
const SPAN: Duration = Duration::from_secs(60);
const VALUES: usize = 8192;
/// The time that a rate is of.
const RATE_SPAN: Duration = Duration::from_secs(5);
/// The latest values of a latency.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recent(Arc<Mutex<VecDeque<(Instant, f32)>>>);

/// Percentiles of the last minute, of at most the last 8192 values, in seconds; `null` without values.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Percentiles {
    count: usize,
    p50: Option<f32>,
    p90: Option<f32>,
    p99: Option<f32>,
}

impl Recent {
    pub(crate) fn record(&self, at: Instant, seconds: f64) {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if values.len() == VALUES {
            values.pop_front();
        }
        values.push_back((at, seconds as f32));
    }

    /// Values per second in the last seconds.
    pub(crate) fn rate(&self, now: Instant) -> f64 {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = values.iter().rev().take_while(|(at, _)| now.saturating_duration_since(*at) <= RATE_SPAN);
        fresh.count() as f64 / RATE_SPAN.as_secs_f64()
    }

    pub(crate) fn percentiles(&self, now: Instant) -> Percentiles {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = values.iter().filter(|(at, _)| now.saturating_duration_since(*at) <= SPAN);
        let mut sorted: Vec<f32> = fresh.map(|(_, seconds)| *seconds).collect();
        drop(values);
        sorted.sort_by(f32::total_cmp);
        let at =
            |share: f64| sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().max(1) - 1)).copied();
        Percentiles { count: sorted.len(), p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}

#[cfg(test)]
mod metrics_tests {
    use super::*;

    #[test]
    fn unknown_fields_have_a_bounded_number_of_short_plain_names() {
        let registry = Registry::new();
        let fields = HttpMetrics::register(&registry).unwrap().unknown_fields;
        let count = |name: &str| fields.counter.with_label_values(&[name]).get();
        fields.count("a\nb\"\u{e4}");
        assert_eq!(count("a_b__"), 1);
        fields.count(&"x".repeat(1 << 20));
        assert_eq!(count(&"x".repeat(64)), 1);
        (2..UnknownFields::NAMES).for_each(|n| fields.count(&format!("field{n}")));
        assert_eq!((count("field63"), count("other")), (1, 0), "at the bound");
        fields.count("one_more");
        fields.count("field63");
        assert_eq!((count("field63"), count("other")), (2, 1));
    }
}

#[cfg(test)]
mod recent_tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_last_minute_and_bounded() {
        let recent = Recent::default();
        let begun = Instant::now();
        assert_eq!(recent.percentiles(begun).p50, None);
        recent.record(begun, 1000.0);
        let later = begun + SPAN + Duration::from_millis(1);
        (1..=100).for_each(|n| recent.record(later, f64::from(n)));
        let found = recent.percentiles(later);
        assert_eq!((found.count, found.p50, found.p90, found.p99), (100, Some(51.0), Some(91.0), Some(100.0)));
        (0..VALUES).for_each(|_| recent.record(later, 7.0));
        let found = recent.percentiles(later);
        assert_eq!((found.count, found.p99), (VALUES, Some(7.0)));
    }
}
