//! What makes a caller of the public listener local.
use axum::extract::Request;
use axum::http::header;

use crate::http::names;

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
        let host = names::of_request(request);
        let mut origins = request.headers().get_all(header::ORIGIN).iter();
        host.is_none_or(|host| names::is_own(host, own))
            && origins.all(|origin| {
                let page = names::of_origin(origin);
                names::is_local(page, own)
                    || host.is_some_and(|host| host.eq_ignore_ascii_case(page))
                    || self.cors_origins.iter().any(|listed| listed == "*" || listed.as_bytes() == origin.as_bytes())
            })
    }
}

#[cfg(test)]
mod tests {
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
