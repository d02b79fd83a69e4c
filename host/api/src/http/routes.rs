//! The routes: one table that says for each who may call it, from which both routers are made.
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodRouter, get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::{CompressionLayer, DefaultPredicate};
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::flow::api::Api;
use crate::http::error::ApiError;
use crate::http::request_id::X_REQUEST_ID;
use crate::http::{admin, auth, endpoints, health, models, observe, stats};

/// How long browsers may remember what they were allowed.
const PREFLIGHT: Duration = Duration::from_secs(600);
const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Who may call a route. There is no other way to be reachable without credentials than to be listed as such.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everybody, on both listeners, at any time.
    Open,
    /// Whom the auth policies let through, on the public listener, while the server is ready.
    Guarded,
    /// Operators on the admin listener; on the public one whom the auth policies let through. Also while draining.
    Monitoring,
    /// Operators on the admin listener only. Also while draining.
    Operators,
}

/// A line of the table.
#[derive(Clone, Copy)]
pub struct Route {
    pub method: &'static Method,
    pub path: &'static str,
    pub access: Access,
    /// Machines ask it every few seconds: its lines in the access log are for debugging.
    polled: bool,
    handler: fn() -> MethodRouter<Arc<Api>>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({:?})", self.method, self.path, self.access)
    }
}

type Handler = fn() -> MethodRouter<Arc<Api>>;

const fn getting(path: &'static str, access: Access, handler: Handler) -> Route {
    Route { method: &Method::GET, path, access, polled: false, handler }
}

const fn posting(path: &'static str, access: Access, handler: Handler) -> Route {
    Route { method: &Method::POST, path, access, polled: false, handler }
}

const fn polled(path: &'static str, access: Access, handler: Handler) -> Route {
    Route { polled: true, ..getting(path, access, handler) }
}

/// Every route of both listeners.
pub const ROUTES: &[Route] = &[
    polled("/healthz", Access::Open, || get(health::alive)),
    polled("/health", Access::Open, || get(health::alive)),
    polled("/readyz", Access::Open, || get(health::ready)),
    polled("/ready", Access::Open, || get(health::ready)),
    polled("/metrics", Access::Monitoring, || get(health::metrics)),
    getting("/server/stats", Access::Monitoring, || get(stats::stats)),
    posting("/v1/chat/completions", Access::Guarded, || post(endpoints::chat)),
    posting("/chat", Access::Guarded, || post(endpoints::chat)),
    posting("/v1/completions", Access::Guarded, || post(endpoints::complete)),
    posting("/v1/embeddings", Access::Guarded, || post(endpoints::embed)),
    posting("/embeddings", Access::Guarded, || post(endpoints::embed)),
    getting("/v1/models", Access::Guarded, || get(models::list)),
    getting("/v1/models/{*id}", Access::Guarded, || get(models::show)),
    posting("/v1/session/close", Access::Guarded, || post(endpoints::close_session)),
    posting("/v1/tokenize", Access::Guarded, || post(endpoints::tokenize)),
    posting("/v1/detokenize", Access::Guarded, || post(endpoints::detokenize)),
    getting("/admin/policies", Access::Operators, || get(admin::policies)),
    posting("/admin/policies/{hook}/{name}/{mode}", Access::Operators, || post(admin::set_policy_mode)),
    getting("/admin/models", Access::Operators, || get(admin::models)),
    getting("/admin/config", Access::Operators, || get(admin::config)),
    getting("/admin/workers", Access::Operators, || get(stats::workers)),
    posting("/admin/drain", Access::Operators, || post(admin::drain)),
    posting("/admin/resume", Access::Operators, || post(admin::resume)),
    posting("/admin/reload", Access::Operators, || post(admin::reload)),
];

/// What clients reach. Serve it with `ConnectInfo<SocketAddr>`: without it no peer counts as local.
///
/// `cors_origins`: web pages of these origins may call (`*`: of all); without any the browser lets none.
pub fn public_router(api: Arc<Api>, cors_origins: &[String]) -> Router {
    let of = |access| table(ROUTES.iter().filter(move |route| route.access == access));
    let guard = || from_fn_with_state(api.clone(), auth::guard);
    let guarded = of(Access::Guarded).route_layer(guard()).route_layer(from_fn_with_state(api.clone(), admit));
    let routes = of(Access::Open).merge(of(Access::Monitoring).route_layer(guard())).merge(guarded);
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
    let routes = table(ROUTES.iter().filter(|route| route.access != Access::Guarded));
    finish(routes.route_layer(from_fn(no_web_pages)), api)
}

fn table<'a>(routes: impl Iterator<Item = &'a Route>) -> Router<Arc<Api>> {
    routes.fold(Router::new(), |router, route| {
        let handler = (route.handler)().fallback(method_not_allowed);
        let handler = if route.polled { handler.layer(from_fn(observe::polled)) } else { handler };
        router.route(route.path, handler)
    })
}

/// A server that loads or drains takes no new work.
async fn admit(State(api): State<Arc<Api>>, request: Request, next: Next) -> Result<Response, ApiError> {
    api.readiness.admit()?;
    Ok(next.run(request).await)
}

/// A page in an operator's browser could post to an address that only operators reach. Browsers say where a post comes
/// from; whoever else posts does not.
async fn no_web_pages(request: Request, next: Next) -> Result<Response, ApiError> {
    if request.method() == Method::POST && request.headers().contains_key(header::ORIGIN) {
        return Err(ApiError::WebPage);
    }
    Ok(next.run(request).await)
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
    ApiError::UnknownUrl { method: request.method().clone(), path: request.uri().path().to_owned() }
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed { method: request.method().clone(), path: request.uri().path().to_owned() }
}
