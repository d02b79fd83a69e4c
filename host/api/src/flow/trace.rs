//! The spans of a request, for OpenTelemetry: accept, and below it auth, validate, and for each choice queue, prefill,
//! decode; then stream.
//!
//! All have the target [`TARGET`], which the log excludes. They cost almost nothing unless spans are exported.
use std::collections::HashMap;

use axum::extract::{MatchedPath, Request};
use axum::http::HeaderMap;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing::field::Empty;
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::wire::echo::Shown;

/// The target of all spans.
pub const TARGET: &str = "camshaft::trace";
/// The headers of the W3C trace context.
const HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// The span of a whole exchange, below the one that the client named in `traceparent`.
pub(crate) fn accept(request: &Request, id: &str) -> Span {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let span = tracing::info_span!(
        target: TARGET,
        "accept",
        otel.kind = "server",
        http.request.method = %Shown(request.method().as_str()),
        http.route = route,
        camshaft.request_id = id,
        http.response.status_code = Empty,
        camshaft.tenant = Empty,
        camshaft.model = Empty,
        camshaft.prompt_tokens = Empty,
        camshaft.generated_tokens = Empty,
    );
    if !span.is_disabled() && request.headers().contains_key(HEADERS[0]) {
        // With an unreadable parent, the span begins a new trace.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&carrier(request.headers())));
    }
    span
}

fn carrier(headers: &HeaderMap) -> HashMap<String, String> {
    let value = |name: &str| Some((name.to_owned(), headers.get(name)?.to_str().ok()?.to_owned()));
    HEADERS.iter().filter_map(|name| value(name)).collect()
}

/// The span of authentication.
pub(crate) fn auth(accept: &Span) -> Span {
    tracing::info_span!(target: TARGET, parent: accept, "auth")
}

/// The span of parsing, tokenizing and the validators.
pub(crate) fn validate(accept: &Span) -> Span {
    tracing::info_span!(target: TARGET, parent: accept, "validate")
}

/// The span of sending the response.
pub(crate) fn stream(accept: &Span) -> Span {
    tracing::info_span!(target: TARGET, parent: accept, "stream")
}

/// The stage of one choice. A stage's span ends when the next one begins.
#[derive(Debug)]
pub(crate) struct Stages {
    accept: Span,
    choice: u32,
    now: Span,
    decoding: bool,
}

impl Stages {
    /// The choice was submitted to the pool.
    pub(crate) fn queued(accept: &Span, choice: u32) -> Self {
        let now = tracing::info_span!(target: TARGET, parent: accept, "queue", camshaft.choice = i64::from(choice));
        Self { accept: accept.clone(), choice, now, decoding: false }
    }

    /// A worker has begun to compute the prompt.
    pub(crate) fn started(&mut self, prompt_tokens: u32, cached_tokens: u32) {
        self.now = tracing::info_span!(
            target: TARGET,
            parent: &self.accept,
            "prefill",
            camshaft.choice = i64::from(self.choice),
            camshaft.prompt_tokens = i64::from(prompt_tokens),
            camshaft.cached_tokens = i64::from(cached_tokens),
        );
    }

    /// A token was drawn. Later calls do nothing.
    pub(crate) fn decoding(&mut self) {
        if !std::mem::replace(&mut self.decoding, true) {
            self.now = tracing::info_span!(
                target: TARGET,
                parent: &self.accept,
                "decode",
                camshaft.choice = i64::from(self.choice),
                camshaft.generated_tokens = Empty,
            );
        }
    }

    /// The choice has ended.
    pub(crate) fn ended(&mut self, generated_tokens: u32) {
        self.now.record("camshaft.generated_tokens", i64::from(generated_tokens));
        self.now = Span::none();
    }
}
