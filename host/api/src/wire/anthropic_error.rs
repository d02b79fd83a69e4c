//! Errors in the shape of Anthropic's API.
use serde::Serialize;

/// The wire shape of an error.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorBody<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    error: ErrorObject<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct ErrorObject<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details>,
}

/// By this its clients know that they must send whole conversations.
#[derive(Debug, Serialize)]
struct Details {
    error_code: &'static str,
}

/// The status of an overloaded server, which has a number of its own there.
pub(crate) const OVERLOADED: u16 = 529;
const OVERLOADED_KIND: &str = "overloaded_error";

pub(crate) fn body<'a>(kind: &'static str, message: &'a str) -> ErrorBody<'a> {
    ErrorBody { kind: "error", error: ErrorObject { kind, message, details: None }, request_id: None }
}

impl<'a> ErrorBody<'a> {
    /// `param`: the field that the error is about.
    pub(crate) fn about(mut self, param: Option<&str>) -> Self {
        let unthreaded = param.filter(|param| *param == "thread");
        self.error.details = unthreaded.map(|_| Details { error_code: "thread_unsupported_request" });
        self
    }

    pub(crate) fn request(mut self, id: &'a str) -> Self {
        self.request_id = Some(id);
        self
    }
}

/// The status and the type of an error that other endpoints tell with this status and code.
pub(crate) fn of_answer(status: u16, code: &str) -> (u16, &'static str) {
    match status {
        401 => (status, "authentication_error"),
        403 => (status, "permission_error"),
        404 => (status, "not_found_error"),
        413 => (status, "request_too_large"),
        429 => (status, "rate_limit_error"),
        503 if code == "overloaded" => (OVERLOADED, OVERLOADED_KIND),
        504 => (status, "timeout_error"),
        500.. => (status, "api_error"),
        _ => (status, "invalid_request_error"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_status_has_the_type_that_anthropics_clients_know() {
        let check = |status: u16, code: &str, expected: (u16, &str)| assert_eq!(of_answer(status, code), expected);
        check(400, "-", (400, "invalid_request_error"));
        check(401, "invalid_api_key", (401, "authentication_error"));
        check(403, "model_not_allowed", (403, "permission_error"));
        check(404, "model_not_found", (404, "not_found_error"));
        check(405, "method_not_allowed", (405, "invalid_request_error"));
        check(413, "request_too_large", (413, "request_too_large"));
        check(429, "queue_full", (429, "rate_limit_error"));
        check(500, "server_error", (500, "api_error"));
        check(503, "draining", (503, "api_error"));
        check(503, "overloaded", (529, "overloaded_error"));
        check(504, "deadline_exceeded", (504, "timeout_error"));
    }

    #[test]
    fn an_error_about_a_thread_has_what_its_clients_go_on_by() {
        let got = serde_json::to_value(body("invalid_request_error", "m").about(Some("thread"))).unwrap();
        assert_eq!(got["error"]["details"], json!({"error_code": "thread_unsupported_request"}));
        let other = serde_json::to_value(body("invalid_request_error", "m").about(Some("model"))).unwrap();
        assert!(other["error"].get("details").is_none(), "{other}");
    }

    #[test]
    fn an_error_has_its_type_its_message_and_its_request() {
        let got = serde_json::to_value(body("api_error", "m").request("r")).unwrap();
        assert_eq!(got, json!({"type": "error", "error": {"type": "api_error", "message": "m"}, "request_id": "r"}));
    }
}
