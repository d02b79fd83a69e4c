//! The routes: one table that says who may call each of them. Both routers are built from it.
use std::sync::{Arc, LazyLock};

use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post};
use axum::{Extension, Router};
use camshaft_core::policy::guarded;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::compression::CompressionLayer;

use crate::flow::api::Api;
use crate::flow::incoming::Incoming;
use crate::flow::{embeddings, generate, tokens};
use crate::http::access::{self, Guard, PublicAccess};
use crate::http::admin::{self, AdminAccess};
use crate::http::error::ApiError;
use crate::http::openapi::{self, Document, PublicRoute};
use crate::http::{encoding, head, health, inference, model_admin, models, observe, paths};
use crate::wire::dialect::{Dialect, Framing};

/// Who may call a route. Only a route with `Open` in the table can be called without credentials.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Anyone, on both listeners, at any time.
    Open,
    /// Callers that the auth policies allow, on the public listener, while the server is ready.
    Guarded,
    /// Operators on the admin listener, and callers that the auth policies allow on the public one, where those who are no
    /// operators see their own. Also while draining.
    Monitoring,
    /// Operators on the admin listener only. Also while draining.
    Operators,
}

/// A row of the table.
#[derive(Clone, Copy)]
pub struct Route {
    pub method: &'static Method,
    pub path: &'static str,
    pub access: Access,
    /// Machines poll it, so its lines in the access log have the debug level.
    polled: bool,
    handler: fn() -> MethodRouter<Arc<Api>>,
}

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} ({:?})", self.method, self.path, self.access)
    }
}

impl Route {
    /// Its path for people to read: of a path that ends in any text, with what follows the model's name there.
    pub fn shown(&self) -> String {
        let end = match (self.path, self.method) {
            (guarded::MODEL, &Method::POST) => paths::PREDICT_SUFFIX,
            (paths::OPEN_MODEL, &Method::POST) => "/infer",
            _ => "",
        };
        format!("{}{end}", self.path)
    }

    /// The path by which policies know it. Routes that are the same to them have the same.
    pub fn canonical(&self) -> &'static str {
        paths::canonical(self.method, self.path)
    }
}

type Handler = fn() -> MethodRouter<Arc<Api>>;

const fn getting(path: &'static str, access: Access, handler: Handler) -> Route {
    Route { method: &Method::GET, path, access, polled: false, handler }
}

const fn posting(path: &'static str, access: Access, handler: Handler) -> Route {
    Route { method: &Method::POST, path, access, polled: false, handler }
}

const fn deleting(path: &'static str, access: Access, handler: Handler) -> Route {
    Route { method: &Method::DELETE, path, access, polled: false, handler }
}

const fn polled(path: &'static str, access: Access, handler: Handler) -> Route {
    Route { polled: true, ..getting(path, access, handler) }
}

/// Where anyone learns that the process can answer.
pub(crate) const ALIVE: [&str; 3] = ["/healthz", "/health", paths::OPEN_LIVE];

const ADAPTERS: &str = "/admin/models/{id}/adapters";

/// Every route of both listeners.
pub const ROUTES: &[Route] = &[
    polled(ALIVE[0], Access::Open, || get(health::alive)),
    polled(ALIVE[1], Access::Open, || get(health::alive)),
    polled(ALIVE[2], Access::Open, || get(inference::live)),
    // Clients find out by it whether there is a server.
    getting("/", Access::Open, || get(health::root)),
    polled("/readyz", Access::Open, || get(health::ready)),
    polled("/ready", Access::Open, || get(health::ready)),
    polled(paths::OPEN_READY, Access::Open, || get(inference::ready)),
    getting(openapi::OPENAPI, Access::Open, || get(openapi::openapi)),
    getting(openapi::DOCS, Access::Open, || get(openapi::docs)),
    polled(guarded::METRICS, Access::Monitoring, || get(health::metrics)),
    getting(guarded::STATS, Access::Monitoring, || get(admin::stats)),
    posting(guarded::CHAT, Access::Guarded, || generating(Dialect::Chat)),
    posting(paths::CHAT_ALIAS, Access::Guarded, || generating(Dialect::Chat)),
    posting(paths::RESPONSES, Access::Guarded, || generating(Dialect::Responses)),
    posting(paths::MESSAGES, Access::Guarded, || generating(Dialect::Messages)),
    posting(guarded::COMPLETIONS, Access::Guarded, || generating(Dialect::Completions)),
    posting(paths::GENERATE, Access::Guarded, generating_natively),
    posting(paths::GENERATE_ALIAS, Access::Guarded, generating_natively),
    posting(guarded::EMBEDDINGS, Access::Guarded, || post(embeddings::respond)),
    posting(paths::EMBEDDINGS_ALIAS, Access::Guarded, || post(embeddings::respond)),
    posting(paths::RERANK, Access::Guarded, || post(embeddings::rank)),
    posting(paths::RERANK_ALIAS, Access::Guarded, || post(embeddings::rank)),
    posting(paths::RERANK_COHERE, Access::Guarded, || post(embeddings::rank)),
    posting(paths::SCORE, Access::Guarded, || post(embeddings::score)),
    posting(guarded::PREDICT, Access::Guarded, || post(inference::predict)),
    posting(guarded::MODEL, Access::Guarded, || post(inference::predict_by)),
    posting(paths::OPEN_MODEL, Access::Guarded, || post(inference::infer)),
    getting(guarded::MODEL_INFO, Access::Guarded, || get(models::info)),
    getting(guarded::MODELS, Access::Guarded, || get(models::list)),
    getting(paths::OPEN_SERVER, Access::Guarded, || get(inference::server)),
    posting(paths::OPEN_INDEX, Access::Guarded, || post(inference::index)),
    getting(guarded::MODEL, Access::Guarded, || get(models::show)),
    getting(paths::OPEN_MODEL, Access::Guarded, || get(inference::describe)),
    getting(guarded::SESSIONS, Access::Guarded, || get(models::sessions)),
    posting(guarded::CLOSE_SESSION, Access::Guarded, || post(tokens::close_session)),
    posting(guarded::TOKENIZE, Access::Guarded, || post(tokens::tokenize)),
    posting(paths::TEMPLATE, Access::Guarded, || post(tokens::template)),
    posting(paths::COUNT_TOKENS, Access::Guarded, || post(tokens::count_message)),
    posting(paths::COUNT_INPUT, Access::Guarded, || post(tokens::count_response)),
    posting(guarded::DETOKENIZE, Access::Guarded, || post(tokens::detokenize)),
    getting("/admin/policies", Access::Operators, || get(admin::policies)),
    posting("/admin/policies/check", Access::Operators, || post(admin::check)),
    posting("/admin/policies/{hook}/{name}/{action}", Access::Operators, || post(admin::change)),
    getting("/admin/models", Access::Operators, || get(model_admin::models)),
    posting("/admin/models", Access::Operators, || post(model_admin::load)),
    getting("/admin/models/{id}", Access::Operators, || get(model_admin::model)),
    deleting("/admin/models/{id}", Access::Operators, || delete(model_admin::unload)),
    posting("/admin/models/{id}/swap", Access::Operators, || post(model_admin::swap)),
    posting("/admin/models/{id}/limits", Access::Operators, || post(model_admin::set_limits)),
    posting("/admin/models/{id}/weight", Access::Operators, || post(model_admin::set_weight)),
    getting(ADAPTERS, Access::Operators, || get(model_admin::list_adapters)),
    posting(ADAPTERS, Access::Operators, || post(model_admin::load_adapter)),
    deleting("/admin/models/{id}/adapters/{adapter}", Access::Operators, || delete(model_admin::unload_adapter)),
    getting("/admin/operations", Access::Operators, || get(model_admin::operations)),
    getting("/admin/operations/{id}", Access::Operators, || get(model_admin::operation)),
    getting("/admin/config", Access::Operators, || get(admin::config)),
    getting("/admin/workers", Access::Operators, || get(admin::workers)),
    posting("/admin/drain", Access::Operators, || post(admin::drain)),
    posting("/admin/resume", Access::Operators, || post(admin::resume)),
    posting("/admin/reload", Access::Operators, || post(admin::reload)),
];

/// The endpoint that generates what requests of an API ask for.
fn generating(api: Dialect) -> MethodRouter<Arc<Api>> {
    post(move |incoming: Incoming| generate::respond(api, incoming))
}

fn generating_natively() -> MethodRouter<Arc<Api>> {
    post(|incoming: Incoming| generate::respond(Dialect::Native(Framing::of(&incoming.headers)), incoming))
}

/// What both listeners say of the public one's routes.
static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
    let public = ROUTES.iter().filter(|route| route.access != Access::Operators);
    Document::of(public.map(|route| PublicRoute {
        method: route.method,
        path: route.path,
        shown: route.shown(),
        open: route.access == Access::Open,
    }))
});

/// The router of the public listener. Serve it with `ConnectInfo<SocketAddr>`: without it no peer counts as local.
pub fn public_router(api: Arc<Api>, access: PublicAccess) -> Router {
    let access = Arc::new(access);
    let of = |access| table(ROUTES.iter().filter(move |route| route.access == access));
    let guard = || from_fn_with_state(Guard { api: api.clone(), access: access.clone() }, access::guard);
    let guarded = of(Access::Guarded).route_layer(guard()).route_layer(from_fn_with_state(api.clone(), admit));
    let routes = of(Access::Open).merge(of(Access::Monitoring).route_layer(guard())).merge(guarded);
    let compression = CompressionLayer::new().gzip(true).compress_when(encoding::compressed());
    let routes = whole(routes).layer(compression).layer(from_fn(encoding::check));
    finish(head::allow_origins(routes, &access.cors_origins), api)
}

/// The router of the admin listener. Without a token, bind the listener to an address that only operators reach.
pub fn admin_router(api: Arc<Api>, access: Arc<AdminAccess>) -> Router {
    let of = |open| {
        table(ROUTES.iter().filter(move |route| match route.access {
            Access::Guarded => false,
            access => (access == Access::Open) == open,
        }))
    };
    let guarded = of(false).route_layer(from_fn_with_state(access.clone(), admin::check_token));
    let routes = whole(of(true).merge(guarded)).layer(from_fn_with_state(access, admin::check_host));
    finish(routes, api)
}

fn table<'a>(routes: impl Iterator<Item = &'a Route>) -> Router<Arc<Api>> {
    let mut paths: Vec<(&str, MethodRouter<Arc<Api>>)> = Vec::new();
    for route in routes {
        let polled = |handler: MethodRouter<Arc<Api>>| match route.polled {
            true => handler.layer(from_fn(observe::polled)),
            false => handler,
        };
        let handler = (route.handler)();
        match paths.iter_mut().find(|(path, _)| *path == route.path) {
            Some((_, methods)) => *methods = std::mem::take(methods).merge(polled(handler)),
            // Once for each path.
            None => paths.push((route.path, polled(handler.fallback(method_not_allowed)))),
        }
    }
    paths.into_iter().fold(Router::new(), |router, (path, methods)| router.route(path, methods))
}

/// Refuses requests while the server loads or drains.
async fn admit(State(api): State<Arc<Api>>, request: Request, next: Next) -> Result<Response, ApiError> {
    api.readiness.admit()?;
    Ok(next.run(request).await)
}

/// The routes with an answer to every other path.
fn whole(routes: Router<Arc<Api>>) -> Router<Arc<Api>> {
    routes.fallback(unknown_url).layer(CatchPanicLayer::custom(observe::panicked))
}

/// Wraps the routes in the layers that see every request and its last response.
fn finish(routes: Router<Arc<Api>>, api: Arc<Api>) -> Router {
    let observed = from_fn_with_state(api.clone(), observe::observe);
    routes.layer(Extension(DOCUMENT.clone())).layer(from_fn(head::check)).layer(observed).with_state(api)
}

/// Clients' base URL ends with `/v1`; one that lacks it, or has it twice, is the usual mistake.
async fn unknown_url(request: Request) -> ApiError {
    let path = request.uri().path();
    let is_meant = |route: &&Route| {
        let is = |one: &str, other: &str| one.strip_prefix("/v1") == Some(other);
        route.access == Access::Guarded && (is(route.path, path) || is(path, route.path))
    };
    let meant = ROUTES.iter().find(is_meant).map(|route| route.path);
    ApiError::UnknownUrl { method: request.method().clone(), path: path.to_owned(), meant }
}

async fn method_not_allowed(request: Request) -> ApiError {
    ApiError::MethodNotAllowed {
        method: request.method().clone(),
        path: request.uri().path().to_owned(),
        allowed: None,
    }
}
