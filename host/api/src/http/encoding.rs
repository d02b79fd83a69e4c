//! Content codings of responses: gzip or none. What a client accepts is decided before any work is done. Compression runs
//! on the threads of all connections, so only short responses are compressed.
use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use tower_http::compression::predicate::{And, DefaultPredicate, Predicate};

use crate::http::error::ApiError;

/// Longest response that is compressed: it takes some milliseconds.
const COMPRESSED_BYTES: u64 = 64 << 10;

/// What is compressed for clients that accept it: short responses that are sent whole. Each frame of a stream must be sent at
/// once.
pub(crate) fn compressed() -> And<DefaultPredicate, IsShort> {
    DefaultPredicate::new().and(IsShort)
}

/// Whether a response's length is known, and at most [`COMPRESSED_BYTES`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct IsShort;

impl Predicate for IsShort {
    fn should_compress<B: HttpBody>(&self, response: &axum::http::Response<B>) -> bool {
        response.body().size_hint().exact().is_some_and(|bytes| bytes <= COMPRESSED_BYTES)
    }
}

/// Codings that a client accepts, of those that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Accepted {
    gzip: bool,
    identity: bool,
}

/// Middleware around the compression.
///
/// # Errors
/// 406 if the client accepts no response at all.
pub(crate) async fn check(mut request: Request, next: Next) -> Result<Response, ApiError> {
    match accepted(request.headers()) {
        Accepted { identity: true, .. } => {}
        Accepted { gzip: false, .. } => return Err(ApiError::NotAcceptable),
        // A response that cannot be compressed, such as a stream, goes out as it is.
        Accepted { gzip: true, .. } => {
            request.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
    }
    compressed_whole(next.run(request).await).await
}

/// Compresses a response now. Its compressor takes many times what a short response does, and would be kept until the client
/// takes that.
async fn compressed_whole(response: Response) -> Result<Response, ApiError> {
    if !response.headers().contains_key(header::CONTENT_ENCODING) {
        return Ok(response);
    }
    let (mut head, body) = response.into_parts();
    let body = body.collect().await.map_err(ApiError::Compression)?.to_bytes();
    head.headers.insert(header::CONTENT_LENGTH, body.len().into());
    Ok(Response::from_parts(head, Body::from(body)))
}

/// RFC 9110, section 12.5.3.
fn accepted(headers: &HeaderMap) -> Accepted {
    let values = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let (mut gzip, mut identity, mut others) = (None, None, None);
    for part in values.flat_map(|value| value.split(',')) {
        let (coding, weight) = part.split_once(';').unwrap_or((part, ""));
        let weight = weight.trim().strip_prefix("q=").or(weight.trim().strip_prefix("Q="));
        // What is no number does not exclude anything.
        let wanted = weight.and_then(|q| q.trim().parse::<f32>().ok()).is_none_or(|q| q > 0.0);
        let known = match coding.trim().to_ascii_lowercase().as_str() {
            "gzip" | "x-gzip" => &mut gzip,
            "identity" => &mut identity,
            "*" => &mut others,
            _ => continue,
        };
        *known = Some(wanted);
    }
    Accepted { gzip: gzip.or(others).unwrap_or(false), identity: identity.or(others).unwrap_or(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_only_short_responses_of_known_length_are_compressed() {
        let check = |body: axum::body::Body, expected| {
            let response = Response::builder().header("content-type", "application/json").body(body).unwrap();
            assert_eq!(compressed().should_compress(&response), expected);
        };
        let bound = COMPRESSED_BYTES as usize;
        check(vec![b'a'; bound].into(), true);
        check(vec![b'a'; bound + 1].into(), false);
        let unknown = futures_util::stream::empty::<Result<Vec<u8>, std::convert::Infallible>>();
        check(axum::body::Body::from_stream(unknown), false);
    }

    #[test]
    fn regression_knows_who_accepts_nothing() {
        let check = |sent: &str, gzip, identity| {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, sent.parse().unwrap())]);
            assert_eq!(accepted(&headers), Accepted { gzip, identity }, "{sent}");
        };
        assert_eq!(accepted(&HeaderMap::new()), Accepted { gzip: false, identity: true });
        check("", false, true);
        check("gzip", true, true);
        check("gzip;q=0.5, br", true, true);
        check("br", false, true);
        check("identity;q=0", false, false);
        check("*;q=0", false, false);
        check("identity; q=0.000, br", false, false);
        check("identity;q=0, gzip", true, false);
        check("*;q=0, gzip;q=1.0", true, false);
        check("*;q=0, identity", false, true);
        check("identity;q=0, *", true, false);
        check("gzip;q=0", false, true);
        check("gzip;q=x", true, true);
    }
}
