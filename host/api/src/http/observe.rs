//! What happens around every request: its id, one line in the access log, its place in the metrics.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Version, header};
use axum::middleware::Next;
use axum::response::Response;
use camshaft_core::quota::Standings;
use tracing::Span;

use crate::flow::api::Api;
use crate::flow::metrics::Metrics;
use crate::flow::{quota, readiness, trace};
use crate::http::request_id::{self, X_REQUEST_ID};
use crate::wire::error::{ApiError, ErrorNote};

/// Never sent: the client went away before it had its answer.
const CLIENT_GONE: u16 = 499;
/// Value of the label `endpoint` where no route matched.
const NO_ROUTE: &str = "other";

/// One HTTP exchange. It is counted and logged when its last owner lets go: the middleware for most responses, the body
/// for streams. That also covers clients that leave, because their futures are dropped.
#[derive(Debug)]
pub(crate) struct Exchange {
    metrics: Metrics,
    id: String,
    method: String,
    path: String,
    endpoint: String,
    started: Instant,
    span: Span,
    first_token: OnceLock<Instant>,
    outcome: Mutex<Outcome>,
    tenant: OnceLock<String>,
    model: OnceLock<String>,
    standings: OnceLock<Standings>,
    prompt_tokens: AtomicU64,
    generated_tokens: AtomicU64,
}

#[derive(Debug, Default)]
struct Outcome {
    /// Of the response's head, once there is one.
    status: Option<u16>,
    /// The head was sent and the body is not at its end.
    streaming: bool,
}

impl Exchange {
    fn new(metrics: &Metrics, request: &Request) -> Self {
        let route = request.extensions().get::<MatchedPath>();
        let id = request_id::of(request.headers());
        Self {
            metrics: metrics.clone(),
            span: trace::accept(request, &id),
            first_token: OnceLock::new(),
            id,
            method: request.method().to_string(),
            path: request.uri().path().to_owned(),
            endpoint: route.map_or(NO_ROUTE, MatchedPath::as_str).to_owned(),
            started: Instant::now(),
            outcome: Mutex::default(),
            tenant: OnceLock::new(),
            model: OnceLock::new(),
            standings: OnceLock::new(),
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
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

    /// From here on the exchange counts as broken off unless [`Exchange::end_stream`] is called.
    pub(crate) fn begin_stream(&self) {
        self.outcome().streaming = true;
    }

    /// Everything was handed to the connection.
    pub(crate) fn end_stream(&self) {
        self.outcome().streaming = false;
    }

    /// Counts and logs an error that a client was told of.
    pub(crate) fn note(&self, error: &ErrorNote) {
        if let Some(reason) = error.reason {
            self.metrics.rejections.with_label_values(&[reason]).inc();
        }
        if let Some(detail) = &error.detail {
            tracing::error!(request_id = self.id, code = error.code, detail = ?detail, "request failed");
        }
    }

    fn outcome(&self) -> std::sync::MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        let outcome = self.outcome.get_mut().unwrap_or_else(PoisonError::into_inner);
        let status = outcome.status.filter(|_| !outcome.streaming).unwrap_or(CLIENT_GONE);
        let elapsed = self.started.elapsed();
        self.metrics.requests.with_label_values(&[self.endpoint.as_str(), &status.to_string()]).inc();
        self.metrics.request_duration.with_label_values(&[&self.endpoint]).observe(elapsed.as_secs_f64());
        let (prompt_tokens, generated_tokens) = (&self.prompt_tokens, &self.generated_tokens);
        let (prompt_tokens, generated_tokens) =
            (prompt_tokens.load(Ordering::Relaxed), generated_tokens.load(Ordering::Relaxed));
        let (tenant, model) = (self.tenant.get().map(String::as_str), self.model.get().map(String::as_str));
        let first_token_ms = self.first_token.get().map(|at| at.duration_since(self.started).as_secs_f64() * 1e3);
        self.span.record("http.response.status_code", i64::from(status));
        self.span.record("camshaft.tenant", tenant.unwrap_or_default());
        self.span.record("camshaft.model", model.unwrap_or_default());
        self.span.record("camshaft.prompt_tokens", prompt_tokens as i64);
        self.span.record("camshaft.generated_tokens", generated_tokens as i64);
        tracing::info!(
            request_id = self.id,
            // Escaped: a client wrote these.
            method = %self.method.escape_debug(),
            path = %self.path.escape_debug(),
            status,
            tenant,
            model,
            prompt_tokens,
            generated_tokens,
            first_token_ms,
            ms = elapsed.as_secs_f64() * 1e3,
            "request"
        );
    }
}

/// Outermost middleware of both routers.
pub(crate) async fn observe(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let exchange = Arc::new(Exchange::new(&api.metrics, &request));
    let keeps_connections = request.version() <= Version::HTTP_11;
    request.extensions_mut().insert(exchange.clone());
    let mut response = next.run(request).await;
    if let Some(note) = response.extensions_mut().remove::<ErrorNote>() {
        exchange.note(&note);
    }
    exchange.outcome().status = Some(response.status().as_u16());
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&exchange.id) {
        headers.insert(X_REQUEST_ID, id);
    }
    if let Some(standings) = exchange.standings.get() {
        quota::write_headers(standings, headers);
    }
    // HTTP/2 has no such header: there the server says goodbye on the connection itself.
    if keeps_connections && api.readiness.state() == readiness::State::Draining {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Makes a panic in a handler a 500 of the usual shape; the server's panic hook has logged it.
pub(crate) fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    use axum::response::IntoResponse;
    ApiError::Internal("a handler panicked".to_owned()).into_response()
}
