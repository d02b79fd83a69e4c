//! What a filter under test may ask about the request.
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct AboutRequest {
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) body: serde_json::Value,
}
