//! The table of the errors that endpoints answer with.

/// The errors of one status.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ErrorRow {
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    /// `None`: `code` is null.
    pub(crate) codes: &'static [Option<&'static str>],
    pub(crate) when: &'static str,
}

const fn row(status: u16, kind: &'static str, codes: &'static [Option<&'static str>], when: &'static str) -> ErrorRow {
    ErrorRow { status, kind, codes, when }
}

const INVALID: &str = "invalid_request_error";

/// Every status that the endpoints of the public listener fail with, but what policies choose themselves.
pub(crate) const ERRORS: &[ErrorRow] = &[
    row(
        400,
        INVALID,
        &[
            None,
            Some("invalid_json"),
            Some("invalid_body"),
            Some("context_length_exceeded"),
            Some("adapter_not_found"),
            Some("grammar_exhausted"),
            Some("invalid_head"),
            Some("invalid_host"),
            Some("invalid_path"),
            Some("invalid_transfer_encoding"),
        ],
        "The request is malformed, or asks for what the model cannot do.",
    ),
    row(401, "authentication_error", &[Some("invalid_api_key")], "No credentials, or wrong ones."),
    row(403, "permission_error", &[Some("model_not_allowed"), Some("operators_only")], "The key may not do this."),
    row(404, INVALID, &[Some("model_not_found"), Some("unknown_url")], "There is no such model, or no such path."),
    row(405, INVALID, &[Some("method_not_allowed")], "The path has other methods."),
    row(406, INVALID, &[Some("not_acceptable")], "No encoding of the answer is accepted."),
    row(
        408,
        INVALID,
        &[Some("timeout"), Some("slow_reader")],
        "The body was not sent, or the answer not read in time.",
    ),
    row(413, INVALID, &[Some("request_too_large")], "The body is too large, or its answer would be."),
    row(
        414,
        INVALID,
        &[Some("head_too_large")],
        "Path and query are too long, in a request after others on its connection.",
    ),
    row(415, INVALID, &[Some("unsupported_media_type")], "The body is not JSON, or compressed."),
    row(417, INVALID, &[Some("expectation_failed")], "The request expects something else than 100-continue."),
    row(
        429,
        "rate_limit_error",
        &[Some("rate_limit_exceeded"), Some("insufficient_quota"), Some("grammars_busy"), Some("queue_full")],
        "A quota is used up, or too many requests wait.",
    ),
    row(431, INVALID, &[Some("too_many_headers"), Some("head_too_large")], "The request's head is too large."),
    row(500, "server_error", &[Some("server_error")], "A policy or the engine failed."),
    row(
        503,
        "server_error",
        &[
            Some("not_ready"),
            Some("draining"),
            Some("loading"),
            Some("overloaded"),
            Some("worker_lost"),
            Some("chat_template_stopped"),
            Some("vocabulary_stopped"),
            Some("reader_lost"),
            Some("chat_template_invalid"),
        ],
        "The server, the model or the memory is not there at the moment.",
    ),
    row(504, "server_error", &[Some("deadline_exceeded")], "The answer did not begin in time."),
];
