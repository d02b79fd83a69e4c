//! What both listeners answer while the server loads, and where there is no memory for a request.
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::get;

use crate::flow::error::FlowError;
use crate::flow::readiness::Readiness;
use crate::http::error_shape::ErrorShape;
use crate::http::request_id;
use crate::http::{cors, health, inference, open_inference, routes};

/// The server is alive, so that nobody ends it for being slow; everything else may come again, and is told how far it is.
/// Pages of these origins are told, too.
pub fn loading_router(readiness: Arc<Readiness>, cors_origins: &[String]) -> Router {
    let alive = |router: Router<_>, path: &&str| {
        let handler = if open_inference::is_under(path) { get(inference::live) } else { get(health::alive_loading) };
        router.route(path, handler.fallback(not_ready))
    };
    let routes = routes::ALIVE.iter().fold(Router::new(), alive).fallback(not_ready);
    cors::allow(routes, cors_origins).layer(from_fn(name)).with_state(readiness)
}

/// Answers everything with 503: there is no memory for the request. Pages of these origins are told, too.
pub fn overloaded_router(cors_origins: &[String]) -> Router {
    let refuse = Router::new().fallback(async || FlowError::Overloaded);
    cors::allow(refuse, cors_origins).layer(from_fn(name))
}

async fn not_ready(State(readiness): State<Arc<Readiness>>) -> FlowError {
    FlowError::NotReady(readiness.loading())
}

/// Gives the response its request's id, and an error the shape of its protocol.
async fn name(request: Request, next: Next) -> Response {
    let id = request_id::of(request.headers());
    let shape = ErrorShape::of(request.uri().path());
    let mut response = next.run(request).await;
    shape.finish(&id, &mut response);
    response
}
