//! Errors in the shape of Anthropic's API.
use std::borrow::Cow;

use schemars::JsonSchema;
use serde::Serialize;

use crate::wire::answer::ErrorNote;

/// An error on any path of this API.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MessageError<'a> {
    /// `error`.
    r#type: &'static str,
    error: MessageErrorObject<'a>,
    request_id: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MessageErrorObject<'a> {
    r#type: &'static str,
    message: Cow<'a, str>,
    /// Of an error about `thread`.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<MessageErrorDetails>,
}

/// By this its clients know that they must send whole conversations.
#[derive(Debug, Serialize, JsonSchema)]
struct MessageErrorDetails {
    /// `thread_unsupported_request`.
    error_code: &'static str,
}

/// The status of an overloaded server, which has a number of its own there.
pub(crate) const OVERLOADED: u16 = 529;
const OVERLOADED_KIND: &str = "overloaded_error";

impl<'a> MessageError<'a> {
    pub(crate) fn new(error: MessageErrorObject<'a>, request_id: &'a str) -> Self {
        Self { r#type: "error", error, request_id }
    }
}

impl<'a> MessageErrorObject<'a> {
    /// `kind`: see [`of_answer`].
    pub(crate) fn new(kind: &'static str, note: &'a ErrorNote) -> Self {
        let unthreaded = note.object.param.as_deref() == Some("thread");
        let details = unthreaded.then_some(MessageErrorDetails { error_code: "thread_unsupported_request" });
        Self { r#type: kind, message: note.naming_field(), details }
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
    use crate::wire::answer::Answer;
    use serde_json::{Value, json};

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
        let check = |param: &str, details: Option<Value>| {
            let note = Answer::invalid("m").param(param.to_owned()).note().clone();
            let error = MessageErrorObject::new("invalid_request_error", &note);
            let got = serde_json::to_value(MessageError::new(error, "r")).unwrap();
            let mut expected = json!({"type": "error", "request_id": "r",
                "error": {"type": "invalid_request_error", "message": format!("{param}: m")}});
            expected["error"].as_object_mut().unwrap().extend(details.map(|details| ("details".to_owned(), details)));
            assert_eq!(got, expected);
        };
        check("thread", Some(json!({"error_code": "thread_unsupported_request"})));
        check("model", None);
    }
}
