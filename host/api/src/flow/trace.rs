//! The spans of a request, for OpenTelemetry: the server's, and below it auth, validate, tokenize (of a long body), and for each
//! choice queue, prefill, decode, or queue and compute of what is computed in batches; then stream.
//!
//! The server's span has the attributes of OpenTelemetry's conventions for HTTP and for generative AI; a refusal is an error, too.
//!
//! All have the target [`TARGET`], which the log excludes. They cost almost nothing unless spans are exported.
use std::collections::HashMap;

use axum::extract::{MatchedPath, Request};
use axum::http::HeaderMap;
use opentelemetry::StringValue;
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
    let method = Shown(request.method().as_str());
    let span = tracing::info_span!(
        target: TARGET,
        "accept",
        otel.kind = "server",
        otel.name = format!("{method} {route}").trim_end(),
        otel.status_code = Empty,
        otel.status_description = Empty,
        http.request.method = %method,
        http.route = route,
        http.response.status_code = Empty,
        error.type = Empty,
        gen_ai.operation.name = operation(route),
        gen_ai.provider.name = Empty,
        gen_ai.request.model = Empty,
        gen_ai.response.model = Empty,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        camshaft.request_id = id,
        camshaft.tenant = Empty,
    );
    if !span.is_disabled() && request.headers().contains_key(HEADERS[0]) {
        // With an unreadable parent, the span begins a new trace.
        let _ = span.set_parent(TraceContextPropagator::new().extract(&carrier(request.headers())));
    }
    span
}

/// The well-known name of what a route does with a model.
fn operation(route: &str) -> Option<&'static str> {
    match route.rsplit('/').next()? {
        "completions" if !route.ends_with("chat/completions") => Some("text_completion"),
        "completions" | "chat" | "responses" | "messages" | "generate" => Some("chat"),
        "embeddings" => Some("embeddings"),
        _ => None,
    }
}

/// What the server's span says of an exchange once it is over.
pub(crate) struct Outcome<'a> {
    pub(crate) status: u16,
    /// The code of the error that the client was told.
    pub(crate) error: Option<&'a str>,
    pub(crate) tenant: Option<&'a str>,
    /// The model as the client called it, and the one that answered.
    pub(crate) asked: Option<&'a str>,
    pub(crate) model: Option<&'a str>,
    pub(crate) prompt_tokens: u64,
    pub(crate) generated_tokens: u64,
    pub(crate) finish_reasons: Vec<&'static str>,
}

/// Ends the server's span.
pub(crate) fn ended(accept: &Span, outcome: Outcome<'_>) {
    if accept.is_disabled() {
        return;
    }
    let Outcome { status, error, tenant, asked, model, prompt_tokens, generated_tokens, finish_reasons } = outcome;
    accept.record("http.response.status_code", i64::from(status));
    let failed = error.map(str::to_owned).or_else(|| (status >= 400).then(|| status.to_string()));
    if let Some(failed) = failed {
        accept.record("otel.status_code", "error");
        accept.record("otel.status_description", &failed);
        accept.record("error.type", failed);
    }
    tenant.iter().for_each(|tenant| _ = accept.record("camshaft.tenant", tenant));
    let Some(model) = model else { return };
    accept.record("gen_ai.provider.name", "camshaft");
    accept.record("gen_ai.request.model", asked.unwrap_or(model));
    accept.record("gen_ai.response.model", model);
    accept.record("gen_ai.usage.input_tokens", prompt_tokens as i64);
    accept.record("gen_ai.usage.output_tokens", generated_tokens as i64);
    let reasons: Vec<StringValue> = finish_reasons.into_iter().map(StringValue::from).collect();
    if !reasons.is_empty() {
        accept.set_attribute("gen_ai.response.finish_reasons", opentelemetry::Value::Array(reasons.into()));
    }
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

/// The span of reading a long body for its model.
pub(crate) fn tokenize(accept: &Span) -> Span {
    tracing::info_span!(target: TARGET, parent: accept, "tokenize")
}

/// The span of waiting for a batch, and of computing in batches.
pub(crate) fn queue(accept: &Span) -> Span {
    tracing::info_span!(target: TARGET, parent: accept, "queue")
}

pub(crate) fn compute(accept: &Span) -> Span {
    tracing::info_span!(target: TARGET, parent: accept, "compute")
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
