//! The routes, and which of them are open to anybody.
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::{CompressionLayer, DefaultPredicate};
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::flow::api::Api;
use crate::flow::{chat, completions, embeddings};
use crate::http::request_id::X_REQUEST_ID;
use crate::http::{admin, auth, health, models, observe, session, stats, tokenize};
use crate::wire::error::ApiError;

/// How long browsers may remember what they were allowed.
const PREFLIGHT: Duration = Duration::from_secs(600);
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Routes that need no credentials. Every other route does: a new one is guarded until it is listed here.
const OPEN: [&str; 4] = ["/healthz", "/readyz", "/health", "/ready"];

pub(crate) fn is_open(route: &str) -> bool {
    OPEN.contains(&route)
}

/// What clients reach. Serve it with `ConnectInfo<SocketAddr>`: without it no peer counts as local.
///
/// `cors_origins`: web pages of these origins may call (`*`: of all); without any the browser lets none.
pub fn public_router(api: Arc<Api>, cors_origins: &[String]) -> Router {
    let routes = health_routes()
        .route("/health", get(health::alive))
        .route("/ready", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route("/server/stats", get(stats::stats))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/chat", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/embeddings", post(embeddings::embed))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::show))
        .route("/v1/session/close", post(session::close))
        .route("/v1/tokenize", post(tokenize::tokenize))
        .route("/v1/detokenize", post(tokenize::detokenize))
        .method_not_allowed_fallback(method_not_allowed)
        .route_layer(from_fn_with_state(api.clone(), auth::guard));
    // A stream is never compressed: every frame has to go out when it is there.
    let compression = CompressionLayer::new().gzip(true).compress_when(DefaultPredicate::new());
    let router = finish(routes, api).layer(compression);
    if cors_origins.is_empty() { router } else { router.layer(cors(cors_origins)) }
}

fn cors(origins: &[String]) -> CorsLayer {
    let origin = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE, X_API_KEY, X_REQUEST_ID])
        .expose_headers([X_REQUEST_ID, header::RETRY_AFTER])
        .max_age(PREFLIGHT)
}

/// What operators reach, on a listener of its own. It asks for no credentials: bind it to where only operators are.
pub fn admin_router(api: Arc<Api>) -> Router {
    let routes = health_routes()
        .route("/metrics", get(health::metrics))
        .route("/admin/policies", get(admin::policies))
        .route("/admin/policies/{hook}/{name}/{mode}", post(admin::set_policy_mode))
        .route("/admin/models", get(admin::models))
        .route("/admin/config", get(admin::config))
        .route("/admin/workers", get(stats::workers))
        .route("/admin/drain", post(admin::drain))
        .route("/admin/resume", post(admin::resume))
        .route("/admin/reload", post(admin::reload))
        .route("/server/stats", get(stats::stats))
        .method_not_allowed_fallback(method_not_allowed)
        .route_layer(from_fn(no_web_pages));
    finish(routes, api)
}

/// A page in an operator's browser could post to an address that only operators reach. Browsers say where a post comes
/// from; whoever else posts does not.
async fn no_web_pages(request: Request, next: Next) -> Result<Response, ApiError> {
    if request.method() == Method::POST && request.headers().contains_key(header::ORIGIN) {
        return Err(ApiError::WebPage);
    }
    Ok(next.run(request).await)
}

fn health_routes() -> Router<Arc<Api>> {
    Router::new().route("/healthz", get(health::alive)).route("/readyz", get(health::ready))
}

/// What surrounds every route, from the inside out.
fn finish(routes: Router<Arc<Api>>, api: Arc<Api>) -> Router {
    routes
        .fallback(unknown_url)
        .layer(CatchPanicLayer::custom(observe::panicked))
        .layer(from_fn_with_state(api.clone(), observe::observe))
        .with_state(api)
}

async fn unknown_url(request: Request) -> ApiError {
    ApiError::UnknownUrl { method: request.method().to_string(), path: request.uri().path().to_owned() }
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed { method: request.method().to_string(), path: request.uri().path().to_owned() }
}
