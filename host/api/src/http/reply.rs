//! Writes what an auth policy says of the response into its headers.
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use camshaft_core::policy::Reply;

/// Sets the headers, in place of the server's own of the same name. None is of those that frame the response.
pub(crate) fn write(reply: &Reply, headers: &mut HeaderMap) {
    for (name, value) in reply.headers() {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value)) {
            headers.insert(name, value);
        }
    }
}
