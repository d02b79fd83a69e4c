//! One HTTP exchange, with what the access log, the metrics and the trace report about it.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::ids::SessionId;
use camshaft_core::policy::Principal;
use camshaft_core::quota::Standings;
use sha2::{Digest, Sha256};
use tracing::{Level, Span};

use crate::flow::metrics::HttpMetrics;
use crate::flow::readiness::InFlight;
use crate::flow::trace::{self, Outcome};
use crate::wire::echo::Shown;
use crate::wire::error::ErrorNote;

/// Status that is logged and counted, but never sent: the client left before the response was complete.
const CLIENT_GONE: u16 = 499;
/// Bytes of the hash of an end user that are logged.
const USER_BYTES: usize = 8;
/// Status of every stream.
const STREAMED: u16 = 200;
/// Statuses that streams fail with after their heads: the server's own faults.
const LATE: [&str; 3] = ["500", "503", "504"];

/// An exchange. When its last owner drops it, it is counted and logged. The owner is the middleware, or the body of a
/// stream. That covers clients that leave, too, because their futures are dropped.
#[derive(Debug)]
pub(crate) struct Exchange {
    metrics: HttpMetrics,
    head: Head,
    started: Instant,
    span: Span,
    /// Whether machines poll this route.
    polled: AtomicBool,
    first_token: OnceLock<Instant>,
    progress: Mutex<ResponseState>,
    tenant: OnceLock<String>,
    /// The name of the caller's key, or of the caller.
    caller: OnceLock<String>,
    model: OnceLock<String>,
    /// The model, as the client called it.
    asked: OnceLock<String>,
    /// How its choices ended.
    finish_reasons: Mutex<Vec<&'static str>>,
    /// A hash of the end user that the client names.
    user: OnceLock<String>,
    session: OnceLock<String>,
    /// The code of the error that the client was told.
    error: OnceLock<String>,
    standings: OnceLock<Standings>,
    /// The model that was meant, where another one stood in for it.
    instead_of: OnceLock<String>,
    prompt_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    /// The last field, so that the request is in flight until it is counted and logged.
    _in_flight: InFlight,
}

/// The facts in a request's head.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) id: String,
    pub(crate) method: String,
    pub(crate) path: String,
    /// The route that matched, for metrics.
    pub(crate) endpoint: String,
}

/// State of the response.
#[derive(Debug, Clone, Copy)]
enum ResponseState {
    /// The head was not sent.
    Waiting,
    /// The head was sent, and the body is not complete.
    Streaming,
    Answered(u16),
}

impl Exchange {
    pub(crate) fn new(metrics: HttpMetrics, head: Head, span: Span, in_flight: InFlight) -> Self {
        Self {
            metrics,
            head,
            started: Instant::now(),
            span,
            polled: AtomicBool::new(false),
            first_token: OnceLock::new(),
            progress: Mutex::new(ResponseState::Waiting),
            tenant: OnceLock::new(),
            caller: OnceLock::new(),
            model: OnceLock::new(),
            asked: OnceLock::new(),
            finish_reasons: Mutex::default(),
            user: OnceLock::new(),
            session: OnceLock::new(),
            error: OnceLock::new(),
            standings: OnceLock::new(),
            instead_of: OnceLock::new(),
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            _in_flight: in_flight,
        }
    }

    /// When the request's head arrived.
    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// The route that matched.
    pub(crate) fn endpoint(&self) -> &str {
        &self.head.endpoint
    }

    /// The parent of all spans of the request.
    pub(crate) fn span(&self) -> &Span {
        &self.span
    }

    /// Records the time of the first token of any choice.
    pub(crate) fn note_first_token(&self) {
        let _ = self.first_token.set(Instant::now());
    }

    /// Auth knows who asks.
    pub(crate) fn set_caller(&self, principal: &Principal) {
        let _ = self.tenant.set(principal.tenant.as_str().to_owned());
        let _ = self.caller.set(Shown(&principal.name).to_string());
    }

    /// `model` must be a served model, not just a name from the client.
    pub(crate) fn set_model(&self, model: &str) {
        let _ = self.model.set(model.to_owned());
    }

    /// The name that led to the model.
    pub(crate) fn set_asked(&self, name: &str) {
        let _ = self.asked.set(name.to_owned());
    }

    /// A choice has ended.
    pub(crate) fn note_finish(&self, reason: &'static str) {
        self.finish_reasons.lock().unwrap_or_else(PoisonError::into_inner).push(reason);
    }

    /// The end user whom the client names. Only a hash is kept, which differs for each tenant.
    pub(crate) fn set_user(&self, user: &str) {
        let tenant = self.tenant.get().map(String::as_str).unwrap_or_default();
        let digest = Sha256::new().chain_update(tenant).chain_update([0_u8]).chain_update(user).finalize();
        let _ = self.user.set(digest.iter().take(USER_BYTES).map(|byte| format!("{byte:02x}")).collect());
    }

    pub(crate) fn set_session(&self, session: &SessionId) {
        let _ = self.session.set(session.as_str().to_owned());
    }

    /// Sets what the caller has left of its quotas, for the response's headers.
    pub(crate) fn set_standings(&self, standings: Standings) {
        let _ = self.standings.set(standings);
    }

    /// A fallback serves the request.
    pub(crate) fn set_instead_of(&self, meant: &str) {
        let _ = self.instead_of.set(meant.to_owned());
    }

    pub(crate) fn instead_of(&self) -> Option<&str> {
        self.instead_of.get().map(String::as_str)
    }

    pub(crate) fn set_prompt_tokens(&self, tokens: u64) {
        self.prompt_tokens.store(tokens, Ordering::Relaxed);
    }

    pub(crate) fn add_generated_tokens(&self, tokens: u64) {
        self.generated_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// Records the status of the response's head.
    pub(crate) fn set_status(&self, status: u16) {
        let mut progress = self.progress();
        // A stream counts as answered only at its end.
        if let ResponseState::Waiting = *progress {
            *progress = ResponseState::Answered(status);
        }
    }

    /// Marks the exchange as streaming. Unless [`Exchange::end_stream`] follows, it is counted as a client that left.
    pub(crate) fn begin_stream(&self) {
        // A rate of a series that begins with its first error leaves that one out.
        for status in LATE {
            self.metrics.stream_errors.with_label_values(&[self.head.endpoint.as_str(), status]);
        }
        *self.progress() = ResponseState::Streaming;
    }

    /// Marks the stream as complete: its whole body was passed to the connection.
    pub(crate) fn end_stream(&self) {
        *self.progress() = ResponseState::Answered(STREAMED);
    }

    /// Moves its line in the access log to the debug level.
    pub(crate) fn set_polled(&self) {
        self.polled.store(true, Ordering::Relaxed);
    }

    pub(crate) fn id(&self) -> &str {
        &self.head.id
    }

    pub(crate) fn standings(&self) -> Option<&Standings> {
        self.standings.get()
    }

    /// Counts and logs an error that comes too late for a status.
    pub(crate) fn note_in_stream(&self, status: u16, error: &ErrorNote) {
        self.metrics.stream_errors.with_label_values(&[self.head.endpoint.as_str(), &status.to_string()]).inc();
        self.note(error);
    }

    /// Counts and logs an error that was sent to the client.
    pub(crate) fn note(&self, error: &ErrorNote) {
        let _ = self.error.set(error.code().to_owned());
        if let Some(rejection) = error.rejection {
            self.metrics.rejections.with_label_values(&[rejection.as_str()]).inc();
        }
        if let Some(detail) = &error.detail {
            tracing::error!(request_id = self.head.id, code = error.code(), detail = ?detail, "request failed");
        }
    }

    fn progress(&self) -> MutexGuard<'_, ResponseState> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, status: u16, elapsed: Duration) {
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    $level,
                    request_id = self.head.id,
                    // Escaped, because the client chose them.
                    method = %self.head.method.escape_debug(),
                    path = %self.head.path.escape_debug(),
                    status,
                    error = self.error.get(),
                    tenant = self.tenant.get(),
                    caller = self.caller.get(),
                    model = self.model.get(),
                    instead_of = self.instead_of.get(),
                    user = self.user.get(),
                    session = self.session.get(),
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
            ResponseState::Answered(status) => status,
            ResponseState::Waiting | ResponseState::Streaming => CLIENT_GONE,
        };
        let elapsed = self.started.elapsed();
        let endpoint = self.head.endpoint.as_str();
        self.metrics.requests.with_label_values(&[endpoint, &status.to_string()]).inc();
        self.metrics.request_duration.with_label_values(&[endpoint]).observe(elapsed.as_secs_f64());
        let finish_reasons = self.finish_reasons.get_mut().unwrap_or_else(PoisonError::into_inner);
        let outcome = Outcome {
            status,
            error: self.error.get().map(String::as_str),
            tenant: self.tenant.get().map(String::as_str),
            asked: self.asked.get().map(String::as_str),
            model: self.model.get().map(String::as_str),
            prompt_tokens: self.prompt_tokens.load(Ordering::Relaxed),
            generated_tokens: self.generated_tokens.load(Ordering::Relaxed),
            finish_reasons: std::mem::take(finish_reasons),
        };
        trace::ended(&self.span, outcome);
        self.log(status, elapsed);
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
