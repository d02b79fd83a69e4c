//! Builds refusals.
use crate::Refusal;

impl Refusal {
    /// A refusal with an HTTP `status` from 400 to 499 (any other is a fault), a machine-readable `code` of at most 64
    /// characters, and a message for the client of at most 1024 characters.
    pub fn new(status: u16, code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { status, code: code.into(), message: message.into(), param: None }
    }

    /// Names the request field at fault.
    #[must_use]
    pub fn param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }
}
