//! Who may use the admin listener: callers that name it as it is called, with its token if it has one.
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, header};
use axum::middleware::Next;
use axum::response::Response;
use camshaft_core::ids::TenantId;
use subtle::ConstantTimeEq;

use crate::http::error::ApiError;
use crate::http::let_in::LetIn;
use crate::http::names;

/// What the admin listener asks of its callers.
#[derive(Debug, Default)]
pub struct AdminAccess {
    /// The host name that the listener is configured with, if it is one.
    host: Option<String>,
    token: ArcSwapOption<String>,
}

impl AdminAccess {
    /// `host`: a name by which the listener may be addressed, besides `localhost` and IP addresses.
    pub fn new(host: Option<String>) -> Self {
        Self { host, token: ArcSwapOption::empty() }
    }

    /// Asks every later request for this token: `Authorization: Bearer TOKEN`.
    pub fn set_token(&self, token: String) {
        self.token.store(Some(Arc::new(token)));
    }

    /// A page can make its own name point to this listener (DNS rebinding), but it cannot know the token, nor send
    /// another name.
    fn allows_host(&self, request: &Request) -> bool {
        if self.token.load().is_some() {
            return true;
        }
        // HTTP/1.0 names none; no browser speaks it.
        names::of_request(request).is_none_or(|host| names::is_own(host, self.host.as_deref()))
    }

    /// Compares in a time that says nothing about the token but its length.
    fn allows_token(&self, headers: &HeaderMap) -> bool {
        let token = self.token.load();
        let Some(token) = token.as_ref() else { return true };
        let sent = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().split_at_checked(7));
        sent.is_some_and(|(scheme, sent)| {
            scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(sent.ct_eq(token.as_bytes()))
        })
    }
}

/// Middleware of the whole listener. A browser sends the origin of a post; other clients send none.
pub(crate) async fn check_host(
    State(access): State<Arc<AdminAccess>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    if !access.allows_host(&request) {
        return Err(ApiError::ForeignHost);
    }
    if request.method() == Method::POST && request.headers().contains_key(header::ORIGIN) {
        return Err(ApiError::WebPage);
    }
    Ok(next.run(request).await)
}

/// Whose the connections of operators are: of no tenant.
const OPERATORS: &str = "";

/// Middleware of its routes that are not open.
pub(crate) async fn check_token(
    State(access): State<Arc<AdminAccess>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    // Somebody on the way may have read the other one.
    if request.headers().get_all(header::AUTHORIZATION).iter().nth(1).is_some() {
        return Err(ApiError::TwoTokens);
    }
    match access.allows_token(request.headers()) {
        true => {
            if let Some(let_in) = request.extensions().get::<LetIn>() {
                let_in.set(&TenantId::from(OPERATORS));
            }
            Ok(next.run(request).await)
        }
        false => Err(ApiError::NoToken),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn allowed(access: &AdminAccess, host: &str) -> bool {
        access.allows_host(&Request::builder().header("host", host).body(Body::empty()).unwrap())
    }

    #[test]
    fn regression_only_its_own_names_reach_it() {
        let access = AdminAccess::new(Some("node-1".to_owned()));
        for good in
            ["localhost", "LOCALHOST:9090", "localhost.", "127.0.0.1:9090", "[::1]:9090", "10.0.0.1", "node-1:9"]
        {
            assert!(allowed(&access, good), "{good}");
        }
        for bad in
            ["evil.example", "evil.example:9090", "localhost.evil.example", "127.0.0.1.evil.example", "node-2", "a"]
        {
            assert!(!allowed(&access, bad), "{bad}");
        }
        assert!(!allowed(&AdminAccess::default(), "node-1"));
        access.set_token("a token that is long".to_owned());
        assert!(allowed(&access, "evil.example"), "it has no token");
    }

    #[test]
    fn a_token_is_asked_for_once_there_is_one() {
        let access = AdminAccess::default();
        let with = |value: &str| HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().unwrap())]);
        assert!(access.allows_token(&HeaderMap::new()));
        access.set_token("secret-0123456789".to_owned());
        assert!(access.allows_token(&with("Bearer secret-0123456789")));
        assert!(access.allows_token(&with("bearer secret-0123456789")));
        for bad in
            ["", "Bearer", "Bearer ", "Bearer secret-012345678", "Bearer secret-0123456789x", "secret-0123456789"]
        {
            assert!(!access.allows_token(&with(bad)), "{bad}");
        }
        assert!(!access.allows_token(&HeaderMap::new()));
        access.set_token("another-0123456789".to_owned());
        assert!(!access.allows_token(&with("Bearer secret-0123456789")), "it was replaced");
    }
}
