//! Middleware around every request: its id, its line in the access log, its metrics.
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Version, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::flow::api::Api;
use crate::flow::exchange::{Exchange, Head};
use crate::flow::{readiness, trace};
use crate::http::error::{ApiError, ErrorShape};
use crate::http::head;
use crate::wire::echo::Shown;
use crate::wire::error;

/// Names the model that was asked for, where its fallback answers.
pub(crate) const FALLBACK_FOR: &str = "x-camshaft-fallback-for";
/// Value of the label `endpoint` if no route matched.
const NO_ROUTE: &str = "other";

/// Outermost middleware of both routers.
pub(crate) async fn observe(State(api): State<Arc<Api>>, mut request: Request, next: Next) -> Response {
    let exchange = Arc::new(begin(&api, &request));
    let keeps_connections = request.version() <= Version::HTTP_11;
    request.extensions_mut().insert(exchange.clone());
    let shape = ErrorShape::of(request.uri().path());
    let mut response = next.run(request).await;
    if let Some(note) = shape.finish(exchange.id(), &mut response) {
        exchange.note(&note);
    }
    exchange.set_status(response.status().as_u16());
    let headers = response.headers_mut();
    if let Some(meant) = exchange.instead_of().and_then(|meant| HeaderValue::from_str(meant).ok()) {
        headers.insert(FALLBACK_FOR, meant);
    }
    if let Some(standings) = exchange.standings() {
        error::write_standings(standings, headers);
    }
    // HTTP/2 has no such header. There the server sends GOAWAY on the connection.
    if keeps_connections && api.readiness.state() == readiness::ServerState::Draining {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Middleware of routes that machines poll. Logs their lines at the debug level.
pub(crate) async fn polled(request: Request, next: Next) -> Response {
    if let Some(exchange) = request.extensions().get::<Arc<Exchange>>() {
        exchange.set_polled();
    }
    next.run(request).await
}

fn begin(api: &Api, request: &Request) -> Exchange {
    let route = request.extensions().get::<MatchedPath>().map_or(NO_ROUTE, MatchedPath::as_str);
    let id = head::request_id(request.headers());
    let span = trace::accept(request, &id);
    let head = Head {
        id,
        method: Shown(request.method().as_str()).to_string(),
        path: Shown(request.uri().path()).to_string(),
        endpoint: route.to_owned(),
    };
    Exchange::new(api.metrics.clone(), head, span, api.readiness.enter())
}

/// Turns a panic in a handler into a 500 of the usual shape. The server's panic hook has logged it.
pub(crate) fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    ApiError::HandlerPanicked.into_response()
}
