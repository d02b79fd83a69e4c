//! The head of a request: it is checked before anything else reads it, so that no two readers can take it for two things, and named. What
//! a connection says of one that cannot be read, and which web pages may read what is answered.
use std::net::Ipv6Addr;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version, header};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use tower_http::cors::{AllowOrigin, CorsLayer};

use crate::http::error::{ApiError, MAX_HEADERS};
use crate::wire::error::{self, ErrorBody, X_SHOULD_RETRY};
use crate::wire::settings::TIMEOUT_HEADER;
use crate::wire::stamp;

/// Middleware of both routers.
pub(crate) async fn check(request: Request, next: Next) -> Result<Response, ApiError> {
    check_head(&request)?;
    Ok(next.run(request).await)
}

fn check_head(request: &Request) -> Result<(), ApiError> {
    let headers = request.headers();
    if headers.len() > MAX_HEADERS {
        return Err(ApiError::TooManyHeaders { count: headers.len() });
    }
    check_host(request)?;
    check_transfer(headers)?;
    check_expectation(headers)
}

/// HTTP/1.1 and HTTP/2 name the host once. HTTP/1.0 need not.
fn check_host(request: &Request) -> Result<(), ApiError> {
    let mut hosts = request.headers().get_all(header::HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(ApiError::Host("more than one Host header"));
    }
    if host.is_some_and(|host| !is_host(host)) {
        return Err(ApiError::Host("the Host header names no host"));
    }
    let named = request.uri().authority().map(|authority| authority.as_str());
    if named.is_some_and(|named| !is_authority(named)) {
        return Err(ApiError::Host("the request's target names no host"));
    }
    match (request.version(), host, named) {
        (Version::HTTP_11, None, _) => Err(ApiError::Host("no Host header")),
        (Version::HTTP_2, None, None) => Err(ApiError::Host("neither :authority nor a Host header")),
        (Version::HTTP_2, Some(host), Some(named)) if !host.as_bytes().eq_ignore_ascii_case(named.as_bytes()) => {
            Err(ApiError::Host("the Host header differs from :authority"))
        }
        _ => Ok(()),
    }
}

/// A body comes in chunks or with its length, and nothing else.
fn check_transfer(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut codings = headers.get_all(header::TRANSFER_ENCODING).iter();
    match (codings.next(), codings.next()) {
        (None, _) => Ok(()),
        (Some(coding), None) if coding.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => Err(ApiError::TransferEncoding),
    }
}

/// RFC 9110, section 10.1.1.
fn check_expectation(headers: &HeaderMap) -> Result<(), ApiError> {
    let all_met =
        headers.get_all(header::EXPECT).iter().all(|wish| wish.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    if all_met { Ok(()) } else { Err(ApiError::Expectation) }
}

fn is_host(value: &HeaderValue) -> bool {
    value.to_str().is_ok_and(is_authority)
}

/// Whether a text is `uri-host [":" port]` (RFC 9110, section 7.2): it names no user.
pub(crate) fn is_authority(text: &str) -> bool {
    let Some((host, port)) = split_port(text) else { return false };
    let is_name = |c: u8| c.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=".contains(&c);
    let is_address = |inner: &str| inner.parse::<Ipv6Addr>().is_ok();
    let good = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(inner) => is_address(inner),
        None => !host.is_empty() && host.bytes().all(is_name),
    };
    good && (port.is_empty() || port.bytes().all(|c| c.is_ascii_digit()) && port.parse::<u16>().is_ok())
}

/// Host and port, which is empty if it is not there.
pub(crate) fn split_port(authority: &str) -> Option<(&str, &str)> {
    if authority.starts_with('[') {
        let end = authority.find(']')? + 1;
        let (host, rest) = authority.split_at(end);
        return if rest.is_empty() { Some((host, "")) } else { Some((host, rest.strip_prefix(':')?)) };
    }
    Some(authority.split_once(':').unwrap_or((authority, "")))
}

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's clients look for it.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const MAX_CHARS: usize = 128;

/// The client's id, or a fresh one.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let sent = headers.get(X_REQUEST_ID).and_then(|value| value.to_str().ok());
    match sent.filter(|id| is_sane(id)) {
        Some(id) => id.to_owned(),
        None => stamp::id("req_"),
    }
}

/// Whether an id is safe to repeat in headers and logs.
fn is_sane(id: &str) -> bool {
    (1..=MAX_CHARS).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// Header lines, each with its end, and the body that they announce, for an answer over HTTP/1 with this status.
/// `head_bytes`: the most that a head may have.
pub fn refused_head(status: StatusCode, head_bytes: usize) -> (String, Vec<u8>) {
    let error = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE | StatusCode::URI_TOO_LONG => ApiError::HeadTooLarge { head_bytes },
        _ => ApiError::UnreadableHead,
    };
    let (answer, id) = (error.answer(), request_id(&HeaderMap::new()));
    let body = serde_json::to_vec(&ErrorBody { error: &answer.note().object, request_id: &id }).unwrap_or_default();
    let length = body.len();
    let lines = format!("content-type: application/json\r\ncontent-length: {length}\r\n{X_REQUEST_ID}: {id}\r\n");
    (lines, body)
}

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
pub(crate) fn allow_origins<S: Clone + Send + Sync + 'static>(routes: Router<S>, origins: &[String]) -> Router<S> {
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
    let read = error::RATE_HEADERS.map(HeaderName::from_static);
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

#[cfg(test)]
mod head_tests {
    use super::*;
    use axum::body::Body;

    #[test]
    fn regression_a_host_is_a_name_or_an_address_with_or_without_a_port() {
        for good in ["a", "a.example", "a:1", "a:65535", "a:", "127.0.0.1:80", "[::1]", "[::1]:80", "a_b", "%41"] {
            assert!(is_host(&HeaderValue::from_static(good)), "{good}");
        }
        for bad in [
            "", ":80", "a b", "a/b", "user@a", "a:65536", "a:x", "a:1:2", "[::1", "::1", "[a]", "[::1]x", "[::1]80",
            "a?b", "a#b", "http://a", "a:+1",
        ] {
            assert!(!is_host(&HeaderValue::from_static(bad)), "{bad}");
        }
        assert!(!is_host(&HeaderValue::from_bytes(&[0xff]).unwrap()));
    }

    fn check(version: Version, uri: &str, headers: &[(&str, &str)]) -> Result<(), String> {
        let mut request = Request::builder().version(version).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        check_head(&request.body(Body::empty()).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn regression_a_request_names_its_host_once() {
        let (old, one, two) = (Version::HTTP_10, Version::HTTP_11, Version::HTTP_2);
        let host = ("host", "a");
        for (version, uri, headers) in [
            (old, "/", &[][..]),
            (old, "/", &[host]),
            (one, "/", &[host]),
            (one, "http://b/", &[host]),
            (two, "https://a/", &[]),
            (two, "https://a/", &[("host", "A")]),
            (two, "/", &[host]),
        ] {
            assert_eq!(check(version, uri, headers), Ok(()), "{version:?} {uri} {headers:?}");
        }
        for (version, uri, headers) in [
            (old, "/", &[host, host][..]),
            (old, "/", &[("host", "")]),
            (one, "/", &[]),
            (one, "http://a/", &[]),
            (one, "/", &[host, host]),
            (one, "/", &[("host", "a b")]),
            (two, "/", &[]),
            (two, "https://a/", &[("host", "b")]),
            (two, "https://a@b/", &[]),
            (one, "http://a:80@b/", &[host]),
            (old, "http://a@b/", &[]),
        ] {
            assert!(check(version, uri, headers).is_err(), "{version:?} {uri} {headers:?}");
        }
    }

    #[test]
    fn an_expectation_that_nobody_meets_is_refused() {
        let one = |wish: &str| check(Version::HTTP_11, "/", &[("host", "a"), ("expect", wish)]);
        assert_eq!((one("100-continue"), one("100-Continue")), (Ok(()), Ok(())));
        for wish in ["", "foo", "100-continue, foo", "100"] {
            assert!(one(wish).is_err(), "{wish}");
        }
    }

    #[test]
    fn regression_no_transfer_coding_but_chunked_is_taken() {
        let one = |codings: &[&str]| {
            let mut headers = vec![("host", "a")];
            headers.extend(codings.iter().map(|coding| ("transfer-encoding", *coding)));
            check(Version::HTTP_11, "/", &headers)
        };
        assert_eq!((one(&[]), one(&["chunked"]), one(&["Chunked"])), (Ok(()), Ok(()), Ok(())));
        for bad in
            [&["gzip"][..], &["gzip, chunked"], &["chunked, chunked"], &["chunked", "chunked"], &["identity"], &[""]]
        {
            assert!(one(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn regression_the_headers_are_as_many_as_allowed_or_refused() {
        let many = |count: usize| check(Version::HTTP_2, "https://a/", &vec![("x-many", "1"); count]);
        assert_eq!(many(MAX_HEADERS), Ok(()));
        assert!(many(MAX_HEADERS + 1).unwrap_err().contains("101"));
    }
}

#[cfg(test)]
mod request_id_tests {
    use super::*;

    #[test]
    fn keeps_a_sane_id_and_replaces_any_other() {
        let check = |id: &str, kept: bool| {
            let headers = HeaderMap::from_iter([(X_REQUEST_ID, id.parse().unwrap())]);
            assert_eq!(request_id(&headers) == id, kept, "{id}");
        };
        check("A-1_b.c", true);
        check(&"x".repeat(128), true);
        check(&"x".repeat(129), false);
        check("", false);
        check("a b", false);
        check("a\"b", false);
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}

#[cfg(test)]
mod refused_head_tests {
    use super::*;

    #[test]
    fn a_head_that_cannot_be_read_has_the_error_of_its_status() {
        let check = |status: StatusCode, code: &str, word: &str| {
            let (lines, body) = refused_head(status, 77);
            assert!(lines.contains(&format!("\r\ncontent-length: {}\r\nx-request-id: req_", body.len())), "{lines}");
            let error: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(error["error"]["code"], code, "{error}");
            assert!(error["error"]["message"].as_str().unwrap().contains(word), "{error}");
        };
        check(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", "at most 77 bytes and 100 headers");
        check(StatusCode::URI_TOO_LONG, "head_too_large", "77");
        check(StatusCode::BAD_REQUEST, "invalid_head", "HTTP/1.1");
    }
}
