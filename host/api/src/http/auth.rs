//! Runs the auth policies on guarded routes, before the body is read, unless one asks for its digest.
use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use camshaft_core::policy::{AuthOutcome, AuthRequest, Authentication};
use tracing::Instrument;

use crate::flow::api::Api;
use crate::flow::caller::Caller;
use crate::flow::exchange::Exchange;
use crate::flow::trace;
use crate::http::error::ApiError;
use crate::http::let_in::LetIn;
use crate::http::paths::canonical;
use crate::http::public_access::PublicAccess;
use crate::http::{body, reply};

/// Where clients put their keys.
const KEYS: [HeaderName; 2] = [header::AUTHORIZATION, HeaderName::from_static("x-api-key")];

/// What guarding needs.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    pub(crate) api: Arc<Api>,
    pub(crate) access: Arc<PublicAccess>,
}

/// The certificates of a TLS client, DER, its own first, which the listener has verified. A listener that asks for them puts them
/// among the extensions of all requests of a connection.
#[derive(Debug, Clone)]
pub struct PeerCertificates(pub Arc<Vec<Vec<u8>>>);

/// Middleware of guarded routes. Lets only requests with a principal pass.
pub(crate) async fn guard(
    State(Guard { api, access }): State<Guard>,
    mut request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let policies = api.policies.current();
    check_keys(request.headers())?;
    let body_sha256 = match policies.wants_body_digest() {
        true => Some(body::read_ahead(&mut request, &api).await?),
        false => None,
    };
    let exchange = request.extensions().get::<Arc<Exchange>>().cloned();
    let id = exchange.as_ref().map_or("", |exchange| exchange.id());
    let head = Arc::new(AuthRequest { body_sha256, ..head(&request, id, &access) });
    let span = exchange.as_ref().map_or_else(tracing::Span::none, |exchange| trace::auth(exchange.span()));
    let Authentication { outcome, reply } = policies.authenticate(&head).instrument(span).await;
    let principal = match outcome {
        AuthOutcome::Allow(principal) => principal,
        AuthOutcome::Refuse(refusal) => {
            let (refusal, retry) = (Box::new(refusal), reply.retry_seconds());
            let mut response = ApiError::AuthRefused { refusal, retry }.into_response();
            reply::write(&reply, response.headers_mut());
            return Ok(response);
        }
        AuthOutcome::Fault(fault) => return Err(ApiError::AuthFault(Box::new(fault))),
    };
    let policies = policies.assigned(&principal.tenant).unwrap_or(policies);
    if let Some(let_in) = request.extensions().get::<LetIn>() {
        let_in.set(&principal.tenant);
    }
    if let Some(exchange) = exchange {
        exchange.set_caller(&principal);
    }
    let operator = api.is_operator(&principal, head.loopback);
    request.extensions_mut().insert(Caller { principal: Arc::new(principal), policies, operator });
    let mut response = next.run(request).await;
    reply::write(&reply, response.headers_mut());
    Ok(response)
}

/// A caller whose key is not UTF-8 would be one without a key to a policy that reads text.
fn check_keys(headers: &HeaderMap) -> Result<(), ApiError> {
    let unreadable = |name: &HeaderName| {
        let mut values = headers.get_all(name).iter();
        values.any(|value| std::str::from_utf8(value.as_bytes()).is_err())
    };
    match KEYS.into_iter().find(unreadable) {
        Some(header) => Err(ApiError::UnreadableKey { header }),
        None => Ok(()),
    }
}

fn head(request: &Request, id: &str, access: &PublicAccess) -> AuthRequest {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip().to_canonical());
    let certificates = request.extensions().get::<PeerCertificates>();
    AuthRequest {
        method: request.method().to_string(),
        path: request.uri().path().to_owned(),
        route: route(request).to_owned(),
        query: request.uri().query().unwrap_or_default().to_owned(),
        id: id.to_owned(),
        headers: headers(request.headers()),
        remote_address: peer.map_or_else(String::new, |ip| ip.to_string()),
        loopback: peer.is_some_and(|ip| ip.is_loopback())
            && !is_forwarded(request.headers())
            && access.is_local(request),
        peer_certificates: certificates.map(|certificates| certificates.0.clone()).unwrap_or_default(),
        body_sha256: None,
    }
}

/// The route as the table has it, however its path was spelled.
fn route(request: &Request) -> &str {
    request
        .extensions()
        .get::<MatchedPath>()
        .map_or_else(|| request.uri().path(), |matched| canonical(request.method(), matched.as_str()))
}

/// Whether a proxy has forwarded the request.
fn is_forwarded(headers: &HeaderMap) -> bool {
    ["forwarded", "x-forwarded-for", "x-real-ip", "via"].into_iter().any(|name| headers.contains_key(name))
}

/// The headers that a policy sees. `HeaderMap` has their names in lower case.
fn headers(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    headers.iter().map(|(name, value)| (name.as_str().to_owned(), value.as_bytes().to_owned())).collect()
}
