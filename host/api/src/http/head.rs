//! Checks the head of a request before anything else reads it, so that no two readers can take it for two things.
use std::net::Ipv6Addr;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Version, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::http::error::{ApiError, MAX_HEADERS};

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

#[cfg(test)]
mod tests {
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
