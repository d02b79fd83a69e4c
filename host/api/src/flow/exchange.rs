//! One HTTP exchange: what the access log, the metrics and the trace say of it.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::quota::Standings;
use tracing::{Level, Span};

use crate::flow::metrics::Metrics;
use crate::flow::readiness::InFlight;
use crate::wire::answer::ErrorNote;

/// Never sent, only logged and counted: the client left before the response was complete.
const CLIENT_GONE: u16 = 499;
/// Head of every stream.
const STREAMED: u16 = 200;

/// Counted and logged when the last owner drops it: the middleware for most responses, the body for streams. That also
/// covers clients that leave, because their futures are dropped.
#[derive(Debug)]
pub(crate) struct Exchange {
    metrics: Metrics,
    head: Head,
    started: Instant,
    span: Span,
    /// Machines ask this route every few seconds.
    polled: AtomicBool,
    first_token: OnceLock<Instant>,
    progress: Mutex<Progress>,
    tenant: OnceLock<String>,
    model: OnceLock<String>,
    standings: OnceLock<Standings>,
    prompt_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    /// Last: a request is in flight until it is counted and logged.
    _in_flight: InFlight,
}

/// What the request's head says.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) method: String,
    pub(crate) path: String,
    /// The route that matched, for metrics.
    pub(crate) endpoint: String,
}

/// How far the response is.
#[derive(Debug, Clone, Copy)]
enum Progress {
    /// Without a head.
    Waiting,
    /// Its head was sent and its body is not at its end.
    Streaming,
    Answered(u16),
}

impl Exchange {
    pub(crate) fn new(metrics: Metrics, head: Head, span: Span, in_flight: InFlight) -> Self {
        Self {
            metrics,
            head,
            started: Instant::now(),
            span,
            polled: AtomicBool::new(false),
            first_token: OnceLock::new(),
            progress: Mutex::new(Progress::Waiting),
            tenant: OnceLock::new(),
            model: OnceLock::new(),
            standings: OnceLock::new(),
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            _in_flight: in_flight,
        }
    }

    /// When the request's head had arrived.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// The parent of all spans of the request.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// The first token of any choice came.
    pub(crate) fn note_first_token(&self) {
        let _ = self.first_token.set(Instant::now());
    }

    pub(crate) fn set_tenant(&self, tenant: &str) {
        let _ = self.tenant.set(tenant.to_owned());
    }

    /// `model` is one that is served, never just what a client wrote.
    pub(crate) fn set_model(&self, model: &str) {
        let _ = self.model.set(model.to_owned());
    }

    /// Where the caller stands with its quotas, for the response's headers.
    pub(crate) fn set_standings(&self, standings: Standings) {
        let _ = self.standings.set(standings);
    }

    pub(crate) fn set_prompt_tokens(&self, tokens: u64) {
        self.prompt_tokens.store(tokens, Ordering::Relaxed);
    }

    pub(crate) fn add_generated_tokens(&self, tokens: u64) {
        self.generated_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// The response's head is known.
    pub(crate) fn set_status(&self, status: u16) {
        let mut progress = self.progress();
        // A stream has begun by then; it is answered at its end.
        if let Progress::Waiting = *progress {
            *progress = Progress::Answered(status);
        }
    }

    /// The head is about to be sent. The client counts as gone unless [`Exchange::end_stream`] follows.
    pub(crate) fn begin_stream(&self) {
        *self.progress() = Progress::Streaming;
    }

    /// The whole body was handed to the connection.
    pub(crate) fn end_stream(&self) {
        *self.progress() = Progress::Answered(STREAMED);
    }

    /// Its line in the access log is for debugging.
    pub(crate) fn set_polled(&self) {
        self.polled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn id(&self) -> &str {
        &self.head.id
    }

    pub(crate) fn standings(&self) -> Option<&Standings> {
        self.standings.get()
    }

    /// Counts and logs an error that a client was told of.
    pub(crate) fn note(&self, error: &ErrorNote) {
        if let Some(rejection) = error.rejection {
            self.metrics.rejections.with_label_values(&[rejection.as_str()]).inc();
        }
        if let Some(detail) = &error.detail {
            tracing::error!(request_id = self.head.id, code = error.code, detail = ?detail, "request failed");
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, status: u16, elapsed: Duration) {
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    $level,
                    request_id = self.head.id,
                    // Escaped: a client wrote these.
                    method = %self.head.method.escape_debug(),
                    path = %self.head.path.escape_debug(),
                    status,
                    tenant = self.tenant.get(),
                    model = self.model.get(),
                    prompt_tokens = self.prompt_tokens.load(Ordering::Relaxed),
                    generated_tokens = self.generated_tokens.load(Ordering::Relaxed),
                    first_token_ms = self.first_token.get().map(|at| milliseconds(at.duration_since(self.started))),
                    ms = milliseconds(elapsed),
                    "request"
                )
            };
        }
        match self.polled.load(Ordering::Relaxed) {
            true => line!(Level::DEBUG),
            false => line!(Level::INFO),
        }
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let status = match *self.progress() {
            Progress::Answered(status) => status,
            Progress::Waiting | Progress::Streaming => CLIENT_GONE,
        };
        let elapsed = self.started.elapsed();
        let endpoint = self.head.endpoint.as_str();
        self.metrics.requests.with_label_values(&[endpoint, &status.to_string()]).inc();
        self.metrics.request_duration.with_label_values(&[endpoint]).observe(elapsed.as_secs_f64());
        let text = |cell: &OnceLock<String>| cell.get().cloned().unwrap_or_default();
        self.span.record("http.response.status_code", i64::from(status));
        self.span.record("camshaft.tenant", text(&self.tenant));
        self.span.record("camshaft.model", text(&self.model));
        self.span.record("camshaft.prompt_tokens", self.prompt_tokens.load(Ordering::Relaxed) as i64);
        self.span.record("camshaft.generated_tokens", self.generated_tokens.load(Ordering::Relaxed) as i64);
        self.log(status, elapsed);
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
