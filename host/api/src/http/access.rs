//! Who may call: runs the auth policies on guarded routes, before the body is read unless one asks for its digest, and knows what makes a
//! caller of the public listener local.
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use camshaft_core::policy::{AuthOutcome, AuthRequest, Authentication, Reply};
use tracing::Instrument;

use crate::flow::api::{Api, Caller};
use crate::flow::exchange::Exchange;
use crate::flow::trace;
use crate::http::body;
use crate::http::error::ApiError;
use crate::http::head::{is_authority, split_port};
use crate::http::paths::canonical;

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
            write_reply(&reply, response.headers_mut());
            return Ok(response);
        }
        AuthOutcome::Fault(fault) => return Err(ApiError::AuthFault(Box::new(fault))),
    };
    let policies = policies.assigned(&principal.tenant).unwrap_or(policies);
    if let Some(exchange) = exchange {
        exchange.set_caller(&principal);
    }
    let operator = api.is_operator(&principal, head.loopback);
    request.extensions_mut().insert(Caller { principal: Arc::new(principal), policies, operator });
    let mut response = next.run(request).await;
    write_reply(&reply, response.headers_mut());
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

/// Sets the headers, in place of the server's own of the same name. None is of those that frame the response.
pub(crate) fn write_reply(reply: &Reply, headers: &mut HeaderMap) {
    for (name, value) in reply.headers() {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
            headers.insert(name, value);
        }
    }
}

/// By what names the public listener is addressed, and whose web pages may call it.
#[derive(Debug, Clone, Default)]
pub struct PublicAccess {
    /// The host name that the listener is configured with, if it is one.
    pub host: Option<String>,
    /// Origins of web pages that may call (`*`: all). Without any, browsers let no page call.
    pub cors_origins: Vec<String>,
}

impl PublicAccess {
    /// Whether a request on a loopback connection comes from this machine, and from no web page but its own and those that
    /// may call.
    pub(crate) fn is_local(&self, request: &Request) -> bool {
        let own = self.host.as_deref();
        // HTTP/1.0 names none; no browser speaks it.
        let host = host_of_request(request);
        let mut origins = request.headers().get_all(header::ORIGIN).iter();
        host.is_none_or(|host| is_own_host(host, own))
            && origins.all(|origin| {
                let page = host_of_origin(origin);
                is_local_host(page, own)
                    || host.is_some_and(|host| host.eq_ignore_ascii_case(page))
                    || self.cors_origins.iter().any(|listed| listed == "*" || listed.as_bytes() == origin.as_bytes())
            })
    }
}

// Names of hosts tell callers of this machine from web pages of others: a page can make its own name point to a listener here (DNS
// rebinding), but it cannot send another name, nor hide its origin.

/// The host that a request is for, without its port; `None` if it names none.
pub(crate) fn host_of_request(request: &Request) -> Option<&str> {
    let sent = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    request.uri().authority().map(|authority| authority.as_str()).or(sent).map(without_port)
}

/// The host of a web page's origin (`https://a.example:8443`), without its port; empty if it has none. What a browser does
/// not send has none, either: a user before the host, a path after it, another scheme.
pub(crate) fn host_of_origin(origin: &HeaderValue) -> &str {
    let is_web = |scheme: &str| ["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
    let named = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    named.filter(|(scheme, host)| is_web(scheme) && is_authority(host)).map_or("", |(_, host)| without_port(host))
}

/// Whether a listener whose configured host name is `own` may be addressed so: as `localhost`, as an IP address, or by that
/// name.
pub(crate) fn is_own_host(host: &str, own: Option<&str>) -> bool {
    address(host).is_some() || is_named(host, own)
}

/// Whether this is a name or an address of this machine and of no other.
pub(crate) fn is_local_host(host: &str, own: Option<&str>) -> bool {
    address(host).is_some_and(|ip| ip.to_canonical().is_loopback()) || is_named(host, own)
}

fn is_named(host: &str, own: Option<&str>) -> bool {
    host.eq_ignore_ascii_case("localhost") || own.is_some_and(|own| own.eq_ignore_ascii_case(host))
}

fn address(host: &str) -> Option<IpAddr> {
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => inner.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    }
}

fn without_port(authority: &str) -> &str {
    split_port(authority).map_or("", |(host, _)| host.strip_suffix('.').unwrap_or(host))
}

#[cfg(test)]
mod public_access_tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn regression_a_page_that_points_its_name_here_is_not_local() {
        let access =
            PublicAccess { host: Some("node-1".to_owned()), cors_origins: vec!["https://ui.example".to_owned()] };
        let is_local = |access: &PublicAccess, host: &str, origin: Option<&str>| {
            let request = Request::builder().header("host", host);
            let request = origin.iter().fold(request, |request, origin| request.header("origin", *origin));
            access.is_local(&request.body(Body::empty()).unwrap())
        };
        for (host, origin) in [
            ("localhost:8080", None),
            ("LOCALHOST.", None),
            ("127.0.0.1:8080", None),
            ("[::1]:8080", None),
            ("10.0.0.1", None),
            ("node-1:8080", None),
            ("localhost:8080", Some("http://localhost:3000")),
            ("localhost:8080", Some("http://127.0.0.1:3000")),
            ("127.0.0.1:8080", Some("http://[::1]:3000")),
            ("127.0.0.1", Some("https://node-1")),
            ("10.0.0.1:8080", Some("http://10.0.0.1:8080")),
            ("127.0.0.1:8080", Some("https://ui.example")),
        ] {
            assert!(is_local(&access, host, origin), "{host} {origin:?}");
        }
        for (host, origin) in [
            ("evil.example:8080", None),
            ("evil.example:8080", Some("http://evil.example:8080")),
            ("localhost.evil.example", None),
            ("127.0.0.1.evil.example", None),
            ("node-2", None),
            ("127.0.0.1:8080", Some("http://evil.example:8080")),
            // Served by another machine.
            ("127.0.0.1:8080", Some("http://192.0.2.7")),
            ("127.0.0.1:8080", Some("https://ui.example:444")),
            ("127.0.0.1:8080", Some("null")),
            ("evil.example", Some("https://ui.example")),
        ] {
            assert!(!is_local(&access, host, origin), "{host} {origin:?}");
        }
        let all = PublicAccess { cors_origins: vec!["*".to_owned()], ..PublicAccess::default() };
        assert!(is_local(&all, "localhost", Some("http://evil.example")), "the operator lets every page call");
        assert!(!is_local(&all, "evil.example", Some("http://evil.example")));
        let mut old = Request::new(Body::empty());
        assert!(access.is_local(&old), "it names no host");
        for origin in ["http://localhost", "http://evil.example"] {
            old.headers_mut().append("origin", origin.parse().unwrap());
        }
        assert!(!access.is_local(&old), "the second of them is another's");
    }
}

#[cfg(test)]
mod names_tests {
    use axum::body::Body;

    use super::*;

    const OWN: Option<&str> = Some("node-1");

    #[test]
    fn regression_no_spelling_of_an_origin_makes_another_host_local() {
        for local in [
            "http://localhost",
            "https://localhost",
            "HTTP://LOCALHOST:3000",
            "http://localhost.:80",
            "http://localhost:",
            "http://127.0.0.1",
            "http://127.1.2.3:65535",
            "http://[::1]",
            "https://[::1]:8443",
            "http://[::ffff:127.0.0.1]:1",
            "https://node-1:8080",
        ] {
            assert!(is_local_host(host_of_origin(&HeaderValue::from_static(local)), OWN), "{local}");
        }
        for other in [
            "http://localhost:80@evil.example",
            "http://localhost@evil.example",
            "http://user:localhost@localhost",
            "http://127.0.0.1:1@evil.example:80",
            "http://[::1]@evil.example",
            "http://[::1].evil.example",
            "http://[127.0.0.1]",
            "http://localhost:65536",
            "http://localhost:80:80",
            "http://localhost..",
            "http://localhost/",
            "http://localhost/evil.example",
            "http://localhost?evil.example",
            "http://localhost#evil.example",
            "http://localhost\\.evil.example",
            "http://localhost evil.example",
            "http://localhost,http://evil.example",
            "http://evil.example://localhost",
            "http://::1",
            "http://127.1",
            "http://2130706433",
            "http://%6cocalhost",
            "http://",
            "://localhost",
            "//localhost",
            "localhost",
            "localhost:80",
            "null",
            "",
            "file://localhost",
            "ftp://localhost",
            "ws://localhost",
            "chrome-extension://localhost",
            "javascript://localhost",
            "http+unix://localhost",
            " http://localhost",
            "http://evil.example",
            "http://192.0.2.7",
            "http://node-2",
        ] {
            assert!(
                !is_local_host(host_of_origin(&HeaderValue::from_bytes(other.as_bytes()).unwrap()), OWN),
                "{other}"
            );
        }
        assert_eq!(host_of_origin(&HeaderValue::from_bytes(b"http://local\xffhost").unwrap()), "");
    }

    #[test]
    fn regression_no_spelling_of_a_host_makes_another_one_this_listeners_own() {
        let own = |host: &str| {
            let request = Request::builder().header("host", host).body(Body::empty()).unwrap();
            host_of_request(&request).is_some_and(|host| is_own_host(host, OWN))
        };
        for good in ["localhost", "LocalHost:80", "localhost.", "127.0.0.1:1", "10.0.0.1", "[::1]:80", "[2001:db8::1]"]
        {
            assert!(own(good), "{good}");
        }
        for bad in [
            "localhost:80@evil.example",
            "localhost@evil.example",
            "localhost/evil.example",
            "localhost..",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[127.0.0.1]",
            "[localhost]",
            "[::1",
            "[::1].evil.example",
            "::1",
            "0x7f.1",
            "node-2",
            "",
        ] {
            // Either it is refused before, or it is somebody else's.
            assert!(!is_authority(bad) || !own(bad), "{bad}");
        }
    }
}
