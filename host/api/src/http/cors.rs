//! Web pages that may call: what browsers ask before they let a page send, and let it read.
use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use std::time::Duration;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::http::request_id::{REQUEST_ID, X_REQUEST_ID};
use crate::wire::answer::X_SHOULD_RETRY;
use crate::wire::quota_headers;
use crate::wire::settings::TIMEOUT_HEADER;

/// How long browsers may cache the answer to a preflight request.
const PREFLIGHT: Duration = Duration::from_secs(600);
/// Headers that a page may send, besides those that begin with [`SDK`]: ours, and those of OpenAI's and Anthropic's SDKs.
const SENT: [&str; 16] = [
    "authorization",
    "content-type",
    "x-api-key",
    "anthropic-version",
    "anthropic-beta",
    "anthropic-dangerous-direct-browser-access",
    "x-request-id",
    TIMEOUT_HEADER,
    "accept",
    "user-agent",
    "idempotency-key",
    "openai-beta",
    "openai-organization",
    "openai-project",
    "traceparent",
    "tracestate",
];
/// Beginning of the headers in which these SDKs say what they are. Later versions add some.
const SDK: &str = "x-stainless-";
/// Names of such headers that one answer repeats.
const SDK_HEADERS: usize = 32;

/// Routes that pages of these origins may call; `*`: all; without any the routes as they are.
pub(crate) fn allow<S: Clone + Send + Sync + 'static>(routes: Router<S>, origins: &[String]) -> Router<S> {
    match origins {
        [] => routes,
        origins => routes.layer(layer(origins)).layer(from_fn(allow_sdk)),
    }
}

fn layer(origins: &[String]) -> CorsLayer {
    let origin = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    let read = quota_headers::NAMES.map(HeaderName::from_static);
    let read = read.into_iter().chain([X_REQUEST_ID, REQUEST_ID, X_SHOULD_RETRY, header::RETRY_AFTER]);
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(SENT.map(HeaderName::from_static))
        .expose_headers(read.collect::<Vec<_>>())
        .max_age(PREFLIGHT)
}

/// Middleware around the layer: also allows the headers of the SDKs that the browser asks for.
async fn allow_sdk(request: Request, next: Next) -> Response {
    let asked = match *request.method() {
        Method::OPTIONS => request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned(),
        _ => None,
    };
    let mut response = next.run(request).await;
    if let Some(asked) = asked.as_ref().and_then(|asked| asked.to_str().ok())
        && let Some(allowed) = response.headers_mut().get_mut(header::ACCESS_CONTROL_ALLOW_HEADERS)
        && let Ok(before) = allowed.to_str()
    {
        let names = asked.split(',').map(|name| name.trim().to_ascii_lowercase());
        let more = names.filter(|name| name.starts_with(SDK)).take(SDK_HEADERS);
        let all = more.fold(before.to_owned(), |all, name| format!("{all},{name}"));
        if let Ok(all) = HeaderValue::from_str(&all) {
            *allowed = all;
        }
    }
    response
}
